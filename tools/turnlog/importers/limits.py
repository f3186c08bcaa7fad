"""Bounds of what an importer reads, with unit and reason.

Inputs are untrusted: each bound keeps a file from taking memory without end.
"""

from __future__ import annotations

from typing import Final

from eventlog.limits import BODY_BYTES_MAX, DEPTH_MAX, MIB

LINE_BYTES_MAX: Final = 64 * MIB  # one line without its end: room for the largest body, escaped
DOCUMENT_BYTES_MAX: Final = 512 * MIB  # a JSON document is held as text while it is read
YAML_BYTES_MAX: Final = 64 * MIB  # a YAML document is held as events, some 50 times its size
YAML_DEPTH_MAX: Final = 900  # of a node that is passed over; the parser in C gives up at 1,000
HEAD_BYTES: Final = (1 << 12, 1 << 16, 1 << 20, 1 << 24)  # how much detection reads, step by step
BINARY_BYTES: Final = 4_096  # a NUL among so many first bytes means binary data
RECORD_DEPTH_MAX: Final = DEPTH_MAX  # a record's turns lie inside it, so bodies stay below
LINE_DEPTH_MAX: Final = DEPTH_MAX + 2  # an export line wraps the body once, an escape once more

assert BODY_BYTES_MAX <= LINE_BYTES_MAX <= DOCUMENT_BYTES_MAX
