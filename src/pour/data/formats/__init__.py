"""Readers of dataset formats, one file each."""
