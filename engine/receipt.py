"""What a caller was told of a store, compared with the store that is there.

A position alone tells a store that ends before it. It does not tell a history that forked: a backup
that was restored and appended to has the position too, with another event. Its ``store_id`` is
another one, and its marker says up to where both histories are the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from eventlog.arguments import shown, whole
from eventlog.errors import CorruptionError, UsageError
from eventlog.limits import POSITION_MAX

_STORE_ID: Final = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a caller kept.

    Attributes:
        min_position: A position that was acknowledged, or None.
        store_id: The ``store_id`` of the store that acknowledged it, or None.
    """

    min_position: int | None
    store_id: str | None

    def __post_init__(self) -> None:
        if self.min_position is not None:
            whole(self.min_position, "min_position", 0, POSITION_MAX)
        if self.store_id is None:
            return
        if type(self.store_id) is not str or not _STORE_ID.fullmatch(self.store_id):
            raise UsageError(f"store_id must be 32 hex digits, not {shown(self.store_id)}")

    def require(self, marker: Mapping[str, Any], last_position: int, where: str) -> None:
        """Raise unless a store has the history that this tells of.

        Args:
            marker: The store's marker.
            last_position: Its last position.
            where: Its path.

        Raises:
            CorruptionError: It ends before the position, or is another store.
        """
        needed = self.min_position or 0
        if needed > last_position:
            raise CorruptionError(
                f"last position is {last_position}, but {needed} was acknowledged: the store was "
                "rolled back",
                where=where,
                hint="Restore a newer copy, or open without min_position to accept the loss.",
            )
        if self.store_id is None or marker.get("store_id") == self.store_id:
            return
        if marker.get("restored_from") != self.store_id:
            raise CorruptionError(
                f"is not the store {self.store_id}, nor was it restored from a backup of that one",
                where=where,
                hint="Check the path, or open without store_id and read everything anew.",
            )
        common = marker.get("restored_position")
        if type(common) is not int or needed > common:
            raise CorruptionError(
                f"was restored from a backup that ends at position {common}, but {needed} was "
                "acknowledged: what has that position here is another event",
                where=where,
                hint="Restore a newer copy, or open without min_position and store_id, and read "
                "what follows the position of the backup anew.",
            )
