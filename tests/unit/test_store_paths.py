"""Every path that the file system has can hold a store, or is refused as ours."""

from __future__ import annotations

import os
from pathlib import Path

from engine import Store
from eventlog.errors import TurnlogError


def test_a_path_that_is_not_utf8_is_opened_or_refused_typed(tmp_path: Path) -> None:
    """LMDB's binding was given the path as text and raised ``UnicodeEncodeError``."""
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe"))
    try:
        with Store.open(path) as store:
            assert store.session("s").append({"n": 1}).result(10).position == 1
    except TurnlogError:
        assert not path.exists()
    assert all(not each.name.startswith(".") for each in tmp_path.iterdir())
