"""One flipped bit: what a store says of it. ``python -m tests.crash.flips`` is ``make flips``.

A store that holds every type of row is damaged by one bit at a time, opened with ``verify=True`` as
tools for damage do, and read in every way there is. What is allowed: the same answers, or an error
of ours that names a place and all other answers the same. A commit that is taken back is allowed
only where no meta page can tell, and never with ``min_position``.

Flips are tried in forked children, each of which goes on until it dies, so that a death is one
more outcome.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Final

from engine import Event, Store
from engine.export import event_to_line
from engine.reading import Events
from eventlog.errors import CorruptionError, DuplicateIdError, TurnlogError
from eventlog.limits import KIB
from eventlog.raw import DATA_FILE
from tests import reference_store
from tests.crash.pages import HEADER_BYTES, META_BYTES, PAGE_BYTES, Layout
from tests.reference_store import KEYED, NAMED, SPECIAL

HANG_S: Final = 30
ALLOWED: Final = ("same", "found", "error", "wide", "refused", "rolled back")
WRITTEN: Final = frozenset(
    {"key", "id", "name", "tenant", "session", "commit", "spare", "activity"}
)
FREE_SHARE: Final = 16  # of what no commit uses, and of LMDB's reader table, so much less
RAMDISK: Final = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Flip:
    """One bit.

    Attributes:
        file: Name of the file in the store's folder.
        offset: The byte.
        bit: 0 to 7.
        where: What the byte is: database and part, or the file's name.
    """

    file: str
    offset: int
    bit: int
    where: tuple[str, str]


@dataclass(slots=True)
class Outcome:
    """What became of it.

    Attributes:
        kind: ``same``; ``found`` by ``check`` alone; ``error``, of the right kind; ``wide``, such
            errors for more than one session; ``refused`` by opening; ``rolled back`` by a commit,
            which ``min_position`` tells. Not allowed are ``silent``, ``death``, ``hang``,
            ``untyped``, and ``unnoticed`` by ``check``.
        details: What tells more.
        failed: Names of the reads that raised.
    """

    kind: str
    details: str = ""
    failed: list[str] = field(default_factory=list)


Read = tuple[str, Callable[[], Any]]


def reads(
    store: Store, sessions: Sequence[tuple[str, str]], blobs: Sequence[bytes]
) -> Iterator[Read]:
    """Every way to read, by name; a read that fails has no effect on the others."""
    yield "last position", lambda: store.last_position
    yield "tenants", store.tenants
    yield "read", lambda: store.read(voids=True)
    for tenant in sorted({tenant for tenant, _ in sessions}):
        yield (
            f"sessions of {tenant!r}",
            lambda tenant=tenant: list(map(_logical, store.tenant(tenant).sessions().sessions)),
        )
    for tenant, name in sessions:
        session = store.tenant(tenant).session(name)
        label = f"{tenant}/{name}"
        yield f"info {label}", lambda session=session: _logical(session.info())
        yield f"events {label}", session.events
        if (tenant, name) not in SPECIAL:
            continue
        yield f"history {label}", session.history
        yield f"newest {label}", lambda session=session: session.history(3)
        yield f"state {label}", lambda session=session: (session.state, session.variables())
        yield f"lines {label}", lambda session=session: map(_told, session.events())
        for back in (1, 8):
            yield f"at {label} {back}", lambda session=session, back=back: _at(session, back)
    content = store.tenant("acme").blobs
    for address in blobs:
        name = address.hex()
        yield f"blob {name}", lambda address=address: (content.get(address), content.read(address))


def _logical(info: Any) -> Any:
    """A session without what sealing alone changes: nothing is lost when that is taken back."""
    return None if info is None else replace(info, unsealed_count=0)


def _told(event: Any) -> Any:
    return event_to_line(event), event.event_id, event.role, event.kind, event.metadata, event.blobs


def _at(session: Any, back: int) -> Any:
    info = session.info()
    if info is None:
        return None
    then = session.at(max(info.last_sequence - back, 0))
    return then.state, then.variables(), then.history(), then.info()


def answer(read: Callable[[], Any], expected: Any = None) -> Any:
    """What a read gives, as text because NaN is not NaN; of an iterator the items, as they come.

    Raises:
        AssertionError: It ended with an error, after items that are not those expected.
    """
    found = read()
    if not isinstance(found, (Events, map)):
        return repr(found)
    items: list[Any] = []
    try:
        for item in found:
            items.append(item if isinstance(item, Event) else repr(item))
    except TurnlogError:
        assert items == expected[: len(items)], "wrong before its error"
        raise
    return items


class Specimen:
    """A whole store: its files, and what it answers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with Store.open(path, create=False, read_only=True, verify=True) as store:
            assert store.check().ok
            self.last_position = store.last_position
            self.sessions = sorted(
                {
                    *SPECIAL,
                    *[
                        (tenant, info.name)
                        for tenant in store.tenants()
                        for info in store.tenant(tenant).sessions(limit=1_000).sessions
                    ],
                }
            )
            self.blobs = sorted({blob for event in store.read() for blob in event.blobs})
            assert len(self.blobs) == 2
            self.answers = {
                name: answer(read) for name, read in reads(store, self.sessions, self.blobs)
            }
        self.files = {item.name: item.read_bytes() for item in sorted(path.iterdir())}
        self.layout = Layout(self.files[DATA_FILE])

    def where(self, file: str, offset: int) -> tuple[str, str]:
        """Database and part of a byte, or the file."""
        if file != DATA_FILE:
            return file, ""
        span = self.layout.at(offset)
        return span.database, span.part

    def flips(self, every: int, seed: int, *, bits: int = 1, metas: int = 1) -> list[Flip]:
        """What to try: bits of every so many bytes, and of every so many bits of the meta pages."""
        random = Random(seed)
        found = []
        for file, data in self.files.items():
            start = 0
            while start < len(data):
                where = self.where(file, start)
                thin = where[0] == "free" or (file == "lock.mdb" and start >= 8 * KIB)
                stop = min(start + every * (FREE_SHARE if thin else 1), len(data))
                offset = random.randrange(start, stop)  # rows of one size would beat with steps
                where = self.where(file, offset)
                found += [
                    Flip(file, offset, bit, where) for bit in random.sample(range(8), min(bits, 8))
                ]
                start = stop
        start = random.randrange(metas)
        every_bit = [
            Flip(DATA_FILE, page * PAGE_BYTES + place // 8, place % 8, ("meta", "page"))
            for page in (0, 1)
            for place in range(8 * HEADER_BYTES, 8 * (HEADER_BYTES + META_BYTES))
        ]
        return list(dict.fromkeys([*every_bit[start::metas], *found]))

    def try_flip(self, folder: Path, flip: Flip) -> Outcome:
        """Put a damaged copy into a folder, open and read it."""
        for name, data in self.files.items():
            if name == flip.file:
                changed = bytearray(data)
                changed[flip.offset] ^= 1 << flip.bit
                (folder / name).write_bytes(changed)
            else:
                (folder / name).write_bytes(data)
        try:
            store = Store.open(folder, create=False, read_only=True, verify=True)
        except TurnlogError as error:
            return Outcome("refused", f"{type(error).__name__}: {error}")
        with store:
            outcome = self._judge(store, folder)
        if outcome.kind in ALLOWED and flip.where[0] in WRITTEN:
            wrong = self._write(folder)
            if wrong is not None:
                outcome = Outcome("silent", wrong, outcome.failed)
        return outcome

    def _judge(self, store: Store, folder: Path) -> Outcome:
        if store.last_position == self.last_position - 1:
            store.close()
            return self._rolled_back(folder)
        failed: list[str] = []
        first = ""
        for name, read in reads(store, self.sessions, self.blobs):
            try:
                found = answer(read, self.answers[name])
            except CorruptionError as error:
                if not error.where:
                    return Outcome("untyped", f"{name}: no place: {error}")
                failed.append(name)
                first = first or f"{name}: {error}"
                continue
            except AssertionError as error:
                return Outcome("silent", f"{name}: {error}", failed)
            if found != self.answers[name]:
                return Outcome(
                    "silent", f"{name}: {_difference(found, self.answers[name])}", failed
                )
        report = store.check()
        assert all([finding.where and finding.message for finding in report.findings])
        if failed:
            if report.ok:
                return Outcome("unnoticed", first, failed)
            return Outcome("wide" if len(_sessions(failed)) > 1 else "error", first, failed)
        if report.ok:
            return Outcome("same")
        finding = report.findings[0]
        return Outcome("found", f"{finding.where}: {finding.message}")

    def _rolled_back(self, folder: Path) -> Outcome:
        try:
            Store.open(
                folder,
                create=False,
                read_only=True,
                verify=True,
                min_position=self.last_position,
            ).close()
        except CorruptionError as error:
            return Outcome("rolled back", str(error))
        return Outcome("silent", "rolled back, and min_position did not tell")

    def _write(self, folder: Path) -> str | None:
        """What is wrong with what a writer says of keys and ids; None when nothing is."""
        tenant, name, key, message = KEYED
        other, named, id_ = NAMED
        try:
            with Store.open(folder, create=False, verify=True) as store:
                ack = store.tenant(tenant).session(name).append(message, idempotency_key=key)
                try:
                    if not ack.result(HANG_S).already:
                        return "a key that was used is not known"
                except CorruptionError:
                    pass
                again = store.tenant(other).session(named).append({"n": 0}, id=id_)
                try:
                    again.result(HANG_S)
                    return "an id that was used is not known"
                except (DuplicateIdError, CorruptionError):
                    return None
        except CorruptionError:
            return None


def _sessions(failed: Sequence[str]) -> set[str]:
    """The sessions of which reads failed."""
    return {name.split(" ")[1] for name in failed if "/" in name}


def _difference(found: Any, expected: Any) -> str:
    if isinstance(found, list) and isinstance(expected, list):
        for place, (one, other) in enumerate(zip(found, expected, strict=False)):
            if one != other:
                return f"item {place}: {one!r:.200} in place of {other!r:.200}"
        return f"{len(found)} items in place of {len(expected)}"
    return f"{found!r:.200} in place of {expected!r:.200}"


def sweep(
    specimen: Specimen, flips: Sequence[Flip], folder: Path, *, end_s: float | None = None
) -> Iterator[tuple[Flip, Outcome]]:
    """Try flips in forked children, one after the other; what each came to.

    Args:
        specimen: The store.
        flips: What to try.
        folder: Where the copies may lie; used by this sweep alone.
        end_s: ``time.monotonic`` after which none is begun.
    """
    done = 0
    while done < len(flips) and (end_s is None or time.monotonic() < end_s):
        inlet, outlet = os.pipe()
        child = os.fork()
        if not child:
            os.close(inlet)
            _work(specimen, flips[done:], folder, outlet, end_s)
        os.close(outlet)
        with open(inlet, "rb") as stream:
            for line in stream:
                yield flips[done], Outcome(**json.loads(line))
                done += 1
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            assert os.WEXITSTATUS(status) == 0
            continue
        number = os.WTERMSIG(status)
        kind = "hang" if number == signal.SIGALRM else "death"
        yield flips[done], Outcome(kind, signal.Signals(number).name)
        done += 1


def _work(
    specimen: Specimen, flips: Sequence[Flip], folder: Path, outlet: int, end_s: float | None
) -> None:
    """What a child does; it never returns."""
    code = 1
    try:
        faulthandler.disable()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        for flip in flips:
            if end_s is not None and time.monotonic() >= end_s:
                break
            signal.alarm(HANG_S)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            try:
                outcome = specimen.try_flip(folder, flip)
            except Exception:  # noqa: BLE001 - whatever else comes out is an outcome
                outcome = Outcome("untyped", traceback.format_exc()[-700:])
            os.write(outlet, json.dumps(asdict(outcome)).encode() + b"\n")
        code = 0
    finally:
        os._exit(code)


@dataclass(slots=True)
class Summary:
    """All that was tried.

    Attributes:
        counts: By database and part, how often each outcome came.
        bad: What must not be.
        rolled_back: Flips that took the last commit back.
    """

    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    bad: list[tuple[Flip, Outcome]] = field(default_factory=list)
    rolled_back: list[Flip] = field(default_factory=list)

    def add(self, flip: Flip, outcome: Outcome) -> None:
        """Count one."""
        self.counts[*flip.where, outcome.kind] += 1
        if outcome.kind not in ALLOWED:
            self.bad.append((flip, outcome))
        if outcome.kind == "rolled back":
            self.rolled_back.append(flip)

    def table(self) -> str:
        """Outcomes by database and part."""
        kinds = [*ALLOWED, *sorted({kind for *_, kind in self.counts} - {*ALLOWED})]
        lines = [f"{'':24}" + "".join([f"{kind:>13}" for kind in kinds])]
        for place in sorted({(database, part) for database, part, _ in self.counts}):
            cells = [self.counts[*place, kind] for kind in kinds]
            lines.append(f"{' '.join(place):24}" + "".join([f"{cell or '':>13}" for cell in cells]))
        totals = [sum(n for (*_, of), n in self.counts.items() if of == kind) for kind in kinds]
        lines.append(f"{'all':24}" + "".join([f"{total:>13}" for total in totals]))
        return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the store, try the flips in as many processes as asked for, print what came of it."""
    parser = argparse.ArgumentParser(prog="flips", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--every", type=int, default=1, help="bytes from one to the next (1)")
    parser.add_argument("--bits", type=int, default=8, help="bits of each of them (8)")
    parser.add_argument("--metas", type=int, default=1, help="each so many bits of the metas (1)")
    parser.add_argument("--only", help="a database, like log.01, or a file")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--seed", type=int, default=20250601, help="which bytes and bits")
    parser.add_argument("--seconds", type=float, help="begin none after that")
    parser.add_argument("--json", type=Path, help="a file for one line for each flip")
    given = parser.parse_args(arguments)
    began = time.monotonic()
    base = RAMDISK if os.access(RAMDISK, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="turnlog-flips-", dir=base) as name:
        folder = Path(name)
        reference_store.make(folder / "store")
        specimen = Specimen(folder / "store")
        flips = specimen.flips(given.every, given.seed, bits=given.bits, metas=given.metas)
        if given.only is not None:
            flips = [flip for flip in flips if given.only in (flip.file, flip.where[0])]
        Random(given.seed).shuffle(flips)
        end_s = None if given.seconds is None else began + given.seconds
        summary = Summary()
        log = None if given.json is None else given.json.open("w")
        for flip, outcome in _in_parallel(specimen, flips, folder, given.jobs, end_s):
            summary.add(flip, outcome)
            if log is not None:
                log.write(json.dumps([asdict(flip), asdict(outcome)]) + "\n")
        if log is not None:
            log.close()
    print(summary.table())
    for flip, outcome in summary.bad[:20]:
        print(f"{outcome.kind}: {flip}: {outcome.details}; failed before: {outcome.failed}")
    for flip in summary.rolled_back:
        print(f"rolled back, found by min_position alone: {flip}")
    tried = sum(summary.counts.values())
    seconds = time.monotonic() - began
    print(
        f"{tried:,} of {len(flips):,} flips of {sum(map(len, specimen.files.values())):,} bytes in "
        f"{seconds:,.0f} s with {given.jobs} processes; --seed {given.seed}; "
        f"{len(summary.bad)} not allowed, {len(summary.rolled_back)} rolled back"
    )
    return 1 if summary.bad or len(summary.rolled_back) > 1 or not tried else 0


def _in_parallel(
    specimen: Specimen, flips: Sequence[Flip], folder: Path, jobs: int, end_s: float | None
) -> Iterator[tuple[Flip, Outcome]]:
    """``sweep`` in several processes, each with its share."""
    inlets = []
    for job in range(jobs):
        inlet, outlet = os.pipe()
        share = flips[job::jobs]
        if not os.fork():
            code = 1
            try:
                os.close(inlet)
                with open(outlet, "w") as stream:
                    found = sweep(specimen, share, folder / f"copy {job}" / "store", end_s=end_s)
                    for flip, outcome in found:
                        stream.write(json.dumps([asdict(flip), asdict(outcome)]) + "\n")
                        stream.flush()
                code = 0
            except BaseException:  # noqa: BLE001 - a forked child must not go on as its parent
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(outlet)
        inlets.append(inlet)
    waiting = dict.fromkeys(inlets, b"")
    while waiting:
        for inlet in select.select(list(waiting), [], [])[0]:
            data = os.read(inlet, 1 << 16)
            if not data:
                assert not waiting.pop(inlet)
                os.close(inlet)
                continue
            *lines, waiting[inlet] = (waiting[inlet] + data).split(b"\n")
            for line in lines:
                flip, outcome = json.loads(line)
                flip["where"] = tuple(flip["where"])
                yield Flip(**flip), Outcome(**outcome)
    for _ in inlets:
        _, status = os.wait()
        assert status == 0, "a sweep ended early"


if __name__ == "__main__":
    sys.exit(main())
