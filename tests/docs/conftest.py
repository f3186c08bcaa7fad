"""A folder whose stores are checked when the test ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def checked_folder(tmp_path: Path) -> Iterator[Path]:
    """Where documents' programs run; every store they leave there is checked."""
    from engine import Store

    folder = tmp_path / "work"
    folder.mkdir()
    yield folder
    for data in folder.rglob("data.mdb"):
        with Store.open(data.parent, create=False) as store:
            report = store.check()
        assert report.ok, report.findings
