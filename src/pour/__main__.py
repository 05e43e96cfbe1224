"""``python -m pour``."""

from pour.cli import main

if __name__ == "__main__":
    main()
