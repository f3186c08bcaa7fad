"""Blobs as FORMAT.md tells them: read by the implementation that was written from the page."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import Store
from eventlog import blobput, blobtable
from eventlog.limits import CHUNK_BYTES_MAX
from eventlog.rows import CommitRecord
from eventlog.tables import WriteTables
from tests.format import independent, independent_rows

CONTENTS = {
    "empty": b"",
    "text": b"again and again, " * 100_000,
    "noise": random.Random(3).randbytes(2 * CHUNK_BYTES_MAX + 5),
}
MESSAGE = {"role": "user", "content": "look"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store with blobs that are named, pending, unfinished and being removed."""
    path = tmp_path / "store"
    with Store.open(path) as store:
        acme = store.tenant("acme")
        blobs = {name: acme.blobs.put(each) for name, each in CONTENTS.items()}
        acme.session("a").append(MESSAGE, blobs=[blobs["text"], blobs["empty"]]).result()
        store.flush()
        acme.session("a").append(MESSAGE, blobs=[blobs["text"]], id="again").result()
        store.blobs.put(CONTENTS["text"])
        assert store.check().ok
    return path


def test_contents_references_and_events(folder: Path) -> None:
    reader = independent.Reader(folder)
    contents = sorted(reader.blobs.values(), key=len)
    assert contents == sorted([*CONTENTS.values(), CONTENTS["text"]], key=len)
    text, empty = (
        independent.keyed(reader.secrets[1], b"turnlog-blob", CONTENTS[name])
        for name in ("text", "empty")
    )
    assert [event.blobs for event in reader.events()] == [(text, empty), (text,)]


def test_export_lines(folder: Path) -> None:
    """The page alone gives the lines of an export, and these load into another store."""
    reader = independent.Reader(folder)
    told: list[str] = []
    seen: set[bytes] = set()
    for event in reader.events():
        contents = [reader.blobs[1, address] for address in event.blobs]
        for content in contents:
            if content not in seen:
                told += independent_rows.content_lines(event, content, "")
                seen.add(content)
        told.append(independent_rows.export_line(event, contents))
    with Store.open(folder, create=False) as store:
        assert list(store.export_lines(store.read())) == told
    with Store.open(folder.parent / "other") as store:
        store.load(map(json.loads, told))
        assert list(store.export_lines(store.read())) == told
        assert store.check().ok


def test_what_is_not_whole_and_what_is_being_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a process that ended in the middle of a stream leaves it, and of a removal."""

    def source() -> Iterator[bytes]:
        yield CONTENTS["noise"]
        raise KeyboardInterrupt

    monkeypatch.setattr(blobput.Upload, "abandon", lambda self: None)
    monkeypatch.setattr(blobtable, "COLLECT_CHUNKS_MAX", 1)
    with Store.open(folder, create=False) as store:
        with pytest.raises(KeyboardInterrupt):
            store.blobs.put(source())
        noise = store.tenant("acme").blobs.put(CONTENTS["noise"])
        store._log.writer.run(Erasure(noise.address))
        assert store.check().ok
    assert len(independent.Reader(folder).blobs) == 3


class Erasure:
    """The first step of erasing a blob; the others are never taken."""

    def __init__(self, address: bytes) -> None:
        self.done = False
        self._address = address

    def step(self, tables: WriteTables, record: CommitRecord) -> CommitRecord | None:
        self.done = True
        assert blobtable.erase(tables, 1, [self._address]) == 1
        return record
