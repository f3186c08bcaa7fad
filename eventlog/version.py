"""The version of turnlog, in the one place where it is written down."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
