"""``python -m omnirecall``."""

from omnirecall.cli import main

main()
