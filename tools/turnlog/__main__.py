"""``python -m turnlog``, and where the installed command begins."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run ``sys.argv``; Ctrl-C leaves no traceback, not even while modules are loaded."""
    try:
        from turnlog.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)  # ExitCode.INTERRUPTED, whose module may not be loaded


if __name__ == "__main__":
    main()
