"""``python -m turnlog``."""

from __future__ import annotations

import sys

from turnlog.cli import main

if __name__ == "__main__":
    sys.exit(main())
