"""Unlearning methods, one file each. The file `pour_d.py` contains the method `pour-d`."""
