"""A store with a row of every kind, made once, and copies of it to be damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests import damaged_store


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that nothing is wrong with; not to be changed."""
    path = tmp_path_factory.mktemp("whole") / "store"
    damaged_store.make(path)
    return path


@pytest.fixture
def path(whole: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "store"))
