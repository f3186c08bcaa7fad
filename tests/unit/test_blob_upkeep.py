"""Blobs across format versions, backups, a vacuum and an upgrade."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from engine import FormatVersionError, Store
from eventlog.limits import CHUNK_BYTES_MAX
from tests import old_store

NOISE = random.Random(4).randbytes(2 * CHUNK_BYTES_MAX + 1)
MESSAGE = {"role": "user", "content": "look"}


def test_a_store_of_version_1_has_none_until_it_is_upgraded(tmp_path: Path) -> None:
    path = tmp_path / "store"
    old_store.make(path)
    with Store.open(path, create=False) as store:
        call = store.session("a")
        for attempt in (
            lambda: store.blobs.put(b"x"),
            lambda: call.append(MESSAGE, blobs=[bytes(16)]),
            lambda: call.draft([MESSAGE], blobs=[[bytes(16)]]),
            store.collect_blobs,
            lambda: store.load(
                [{"session": "a", "kind": "message", "body": {}, "blobs": ["0" * 32]}]
            ),
        ):
            with pytest.raises(FormatVersionError) as caught:
                attempt()
            assert "turnlog upgrade" in caught.value.hint and caught.value.found == 1
        assert store.blobs.get(bytes(16)) is None
        assert store.stats()["blobs"] is None
        call.append(MESSAGE, blobs=[]).result(10)
        assert store.check().ok
    Store.upgrade(path, backup=tmp_path / "before")
    with Store.open(path, create=False) as store:
        blob = store.blobs.put(NOISE)
        store.session("a").append(MESSAGE, blobs=[blob]).result(10)
        assert store.check().ok


def test_copies_hold_the_same_blobs(tmp_path: Path) -> None:
    path, copy, again = (tmp_path / name for name in ("store", "copy", "again"))
    with Store.open(path) as store:
        blob = store.tenant("acme").blobs.put(NOISE, media_type="image/png")
        store.tenant("acme").session("a").append(MESSAGE, blobs=[blob]).result(10)
        dropped = store.blobs.put(NOISE[: CHUNK_BYTES_MAX // 2])
        store.backup(copy, check=True)
    Store.restore(copy, again)
    Store.vacuum(path)
    for each in (path, copy, again):
        with Store.open(each, create=False, read_only=each == copy) as store:
            acme = store.tenant("acme")
            assert acme.blobs.get(blob) == blob
            assert acme.blobs.read(blob) == NOISE
            assert store.blobs.read(dropped) == NOISE[: CHUNK_BYTES_MAX // 2]
            assert store.check().ok
