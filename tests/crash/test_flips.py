"""One flipped bit anywhere in a store: never a wrong answer, never the end of the process.

A few of the bits in a normal run; each ninth byte, and all bits of the meta pages, when the crash
tests are repeated. ``make flips`` tries them all.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from eventlog import rows
from eventlog.raw import DATA_FILE
from tests import reference_store
from tests.crash.flips import Flip, Specimen, sweep

REPOSITORY = Path(__file__).resolve().parents[2]
REPEATED = 20  # cycles from which on each ninth byte is tried
SAMPLE_S = 10

pytestmark = pytest.mark.crash


def flips(*arguments: str) -> str:
    """Run the sweep as ``make flips`` does; what it says. Fails with that if bits do harm."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.flips", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tools'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_some_bits(crash_cycles: int) -> None:
    """What one run tries depends on the machine; which bits come first, on the seed alone."""
    if crash_cycles >= REPEATED:
        pytest.skip("each ninth byte is tried")
    said = flips("--every", "500", "--bits", "1", "--metas", "8", "--seconds", str(SAMPLE_S))
    assert "0 not allowed" in said


@pytest.mark.slow
def test_every_ninth_byte(crash_cycles: int) -> None:
    """FAULTS: no silent answer, no death; at most one bit takes a commit back."""
    if crash_cycles < REPEATED:
        pytest.skip(f"takes minutes: from --crash-cycles={REPEATED} on")
    assert "0 not allowed" in flips("--every", "9", "--bits", "1", "--metas", "1")


@pytest.fixture
def specimen(tmp_path: Path) -> Specimen:
    reference_store.make(tmp_path / "store")
    return Specimen(tmp_path / "store")


def test_every_kind_of_row_is_there(specimen: Specimen) -> None:
    """A sweep shows nothing of what it does not flip."""
    there = {database for database, part in specimen.layout.counts() if part == "value"}
    assert there >= {
        *("commit", "segment", "order", "session", "name", "tenant", "key", "id", "activity"),
        *("dict", "blob", "chunk", "state", "removal", "spare", "main", "free list"),
    }
    assert any([database.startswith("log.") for database in there])
    tried = specimen.flips(9, 1)
    assert {flip.file for flip in tried} == {*specimen.files}
    assert sum([flip.where == ("meta", "page") for flip in tried]) >= 2 * 136 * 8


def test_what_a_store_without_checksums_says_is_noticed(
    specimen: Specimen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep that finds nothing in such a store finds nothing anywhere."""
    monkeypatch.setattr(rows, "xxh3_64_digest", _Anything())
    start = next(
        span.start
        for span in specimen.layout.spans("session", "value")
        if b"hard" in specimen.files[DATA_FILE][span.start : span.start + 200]
    )
    for bit in range(8):  # of the time of its first event
        flip = Flip(DATA_FILE, start + 24, bit, ("session", "value"))
        ((_, outcome),) = sweep(specimen, [flip], tmp_path / "copy")
        assert outcome.kind == "silent", outcome


class _Anything:
    """A checksum that is whatever it is compared with."""

    def __call__(self, data: bytes) -> _Anything:
        return self

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


def test_a_death_and_a_hang_are_outcomes(
    specimen: Specimen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what comes after is tried all the same."""
    from signal import SIGABRT, SIGALRM

    flips = [Flip("turnlog.json", 0, bit, ("turnlog.json", "")) for bit in range(5)]

    def die(specimen: Specimen, folder: Path, flip: Flip) -> None:
        if flip.bit in (1, 3):
            os.kill(os.getpid(), SIGABRT if flip.bit == 1 else SIGALRM)
        raise ValueError

    monkeypatch.setattr(Specimen, "try_flip", die)
    found = [outcome.kind for _, outcome in sweep(specimen, flips, tmp_path / "copy")]
    assert found == ["untyped", "death", "untyped", "hang", "untyped"]
