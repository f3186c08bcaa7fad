"""Check: each fault is reported once, with its session; what follows from it is only counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine import Store
from eventlog.check import CheckReport, Finding
from eventlog.errors import CorruptionError
from eventlog.findings import FINDINGS_MAX
from eventlog.idrows import continue_fingerprint, decode_run
from eventlog.keys import PAIR, U64, U64_MAX, name_key
from eventlog.limits import BLOCK_POSITIONS, HOT_TABLE_POSITIONS
from eventlog.order import decode_block, encode_block
from eventlog.record import Flag, Origin, Record
from eventlog.rows import KeyedResult, SessionRow, protect
from eventlog.segment import decode_segment
from tests import damaged_store
from tests.damaged_store import Row, content_of, flipped, hot_row, put, rows, value_of

Damage = Callable[[Path], object]


def check(path: Path) -> CheckReport:
    with Store.open(path, create=False, read_only=True) as store:
        return store.check()


def rows_of(path: Path, table: str) -> list[Row]:
    return [row for row in rows(path) if row[0] == table]


def segments_of(path: Path, number: int) -> list[Row]:
    return [row for row in rows_of(path, "segment") if row[1].startswith(U64.pack(number))]


def change_row(path: Path, number: int, **changes: Any) -> None:
    key = U64.pack(number)
    (value,) = [row[2] for row in rows_of(path, "session") if row[1] == key]
    row = replace(SessionRow.decode(key, value), **changes)
    put(path, ("session", key, replace(row, details=b"").encode(key)))


def change_key(path: Path, **changes: Any) -> None:
    table, key, value = rows_of(path, "key")[3]
    put(path, (table, key, replace(KeyedResult.decode(key, value), **changes).encode(key)))


def change_words(path: Path, row: Row, start: int, content: bytes) -> None:
    table, key, value = row
    whole = content_of(table, value)
    whole = whole[:start] + content + whole[start + len(content) :]
    put(path, (table, key, value_of(table, key, whole)))


def drop_key_row(path: Path) -> None:
    put(path, ("key", rows_of(path, "key")[3][1], None))


def add_key_row(path: Path) -> None:
    """Of an event that has no key."""
    key = U64.pack(1) + bytes(16)
    put(path, ("key", key, KeyedResult(bytes(16), 3, 3, 4).encode(key)))


def drop_id_run(path: Path) -> None:
    put(path, *[("id", key, None) for _, key, _ in rows_of(path, "id")])


def entries(path: Path) -> Row:
    (row,) = [row for row in rows_of(path, "id") if row[1][:1] == b"\x05"]
    return row


def lead_id_elsewhere(path: Path) -> None:
    """The first entry leads to the event before; directory row and all else stay as they were."""
    table, key, value = entries(path)
    sequence = int.from_bytes(value[56:64], "big") - 1
    value = protect(key, value[8:56] + sequence.to_bytes(8, "big") + value[64:])
    (run,) = [row for row in rows_of(path, "id") if row[1][:1] == b"\x02"]
    found = replace(decode_run(*run[1:]), fingerprint=continue_fingerprint(0, value[:8]))
    put(path, (table, key, value), ("id", *found.row()))


def cut_name(path: Path) -> None:
    """The name of one session leads to another."""
    key = name_key("", "call-1")
    put(path, ("name", key, protect(key, U64.pack(2))))


def swap_order(path: Path) -> None:
    """Two places of an order block changed with each other."""
    table, key, value = rows_of(path, "order")[0]
    block = decode_block(key, value)
    sessions, sequences = block.sessions, block.sequences
    for column in (sessions, sequences):
        column[0], column[-1] = column[-1], column[0]
    put(path, (table, *encode_block(0, block.link, sessions, sequences)))


def flip_hot(path: Path, position: int) -> None:
    table, key, value = hot_row(path, position)
    put(path, (table, key, flipped(value)))


def drop_hot(path: Path, position: int) -> None:
    put(path, (*hot_row(path, position)[:2], None))


def last_position(path: Path) -> int:
    with Store.open(path, create=False, read_only=True) as store:
        return store.last_position


FIRST = ("", "call-1")
ACME = ("acme", "call-1")
NOBODY = (None, None)
SINGLE: list[Any] = [
    # idempotency keys and ids (invariant 8)
    pytest.param(lambda p: change_key(p, content=bytes(16)), FIRST, "says of it", id="content"),
    pytest.param(lambda p: change_key(p, position=1), FIRST, "says of it", id="key-position"),
    pytest.param(lambda p: change_key(p, first=0, last=0), FIRST, "says of it", id="key-place"),
    pytest.param(drop_key_row, FIRST, "has this key, no row", id="key-row-gone"),
    pytest.param(add_key_row, FIRST, "no event with this key", id="key-row-of-nothing"),
    pytest.param(lead_id_elsewhere, None, "leads to", id="id-leads-elsewhere"),
    # session rows (invariant 6)
    pytest.param(lambda p: change_row(p, 1, created_us=5), FIRST, "created_us 5", id="created"),
    pytest.param(lambda p: change_row(p, 4, created_us=5), None, "created_us 5", id="hot-created"),
    pytest.param(
        lambda p: change_row(p, 1, created_position=5), FIRST, "created_position", id="created-at"
    ),
    pytest.param(lambda p: change_row(p, 1, keys=1), FIRST, "row says keys 1, not", id="keys"),
    pytest.param(
        lambda p: change_row(p, 3, last_recorded_us=5), ACME, "last_recorded_us 5", id="recorded"
    ),
    pytest.param(lambda p: change_row(p, 3, opening=None), ACME, "opening facts", id="opening"),
    pytest.param(lambda p: change_row(p, 3, messages=1, head=1), ACME, "messages 1", id="counts"),
    # names (invariant 7) and order (invariant 4)
    pytest.param(cut_name, FIRST, "leads elsewhere", id="name-leads-elsewhere"),
    # damage that much else depends on
    pytest.param(
        lambda p: put(p, (*segments_of(p, 1)[3][:2], flipped(segments_of(p, 1)[3][2], 9))),
        FIRST,
        "segment",
        id="segment-damaged",
    ),
    pytest.param(
        lambda p: put(p, (*segments_of(p, 1)[0][:2], None)), FIRST, "missing", id="segment-gone"
    ),
    pytest.param(
        lambda p: put(p, (*segments_of(p, 3)[-1][:2], None)), ACME, "missing", id="last-gone"
    ),
    pytest.param(
        lambda p: put(p, (*rows_of(p, "session")[0][:2], None)), NOBODY, "no row", id="row-gone"
    ),
    pytest.param(
        lambda p: put(p, ("session", U64.pack(1), b"x" * 90)), NOBODY, "checksum", id="row-damaged"
    ),
    pytest.param(lambda p: put(p, ("tenant", U64.pack(2), None)), ACME, "no row", id="tenant-gone"),
    pytest.param(
        lambda p: put(p, ("tenant", U64.pack(1), b"x" * 50)), NOBODY, "checksum", id="tenant"
    ),
    pytest.param(lambda p: put(p, ("order", U64.pack(0), b"x" * 50)), NOBODY, "", id="order-block"),
    pytest.param(
        lambda p: put(p, (*entries(p)[:2], flipped(entries(p)[2]))), NOBODY, "", id="id-entries"
    ),
    pytest.param(lambda p: flip_hot(p, last_position(p)), NOBODY, "checksum", id="last-record"),
    pytest.param(lambda p: flip_hot(p, last_position(p) - 1), NOBODY, "checksum", id="a-record"),
    pytest.param(lambda p: drop_hot(p, last_position(p) - 1), NOBODY, "missing", id="record-gone"),
    pytest.param(
        lambda p: flip_hot(p, HOT_TABLE_POSITIONS + 2), NOBODY, "checksum", id="sealed-hot-record"
    ),
]


@pytest.mark.parametrize(("damage", "session", "message"), SINGLE)
def test_one_fault_is_one_finding(
    path: Path, damage: Damage, session: tuple[str, str] | None, message: str
) -> None:
    """Some were not seen at all, some hid all later ones, some brought hundreds along."""
    damage(path)
    report = check(path)
    (finding,) = report.findings
    assert message in f"{finding.where}: {finding.message}"
    if session is not None:
        assert (finding.tenant, finding.session) == session


def test_ids_that_are_in_no_run(path: Path) -> None:
    drop_id_run(path)
    report = check(path)
    assert len(report.findings) == 36
    assert {finding.message.split()[-1] for finding in report.findings} == {"run"}
    assert {finding.session for finding in report.findings} == {"call-1", "call-2"}


def test_an_order_block_that_is_wrong_in_two_places(path: Path) -> None:
    swap_order(path)
    assert [finding.where for finding in check(path).findings] == ["order block 0"] * 2


def test_faults_that_have_nothing_to_do_with_each_other_are_all_reported(path: Path) -> None:
    """Whatever came after the first finding was not compared any more."""
    damages: list[Damage] = [
        lambda p: put(p, (*segments_of(p, 1)[3][:2], flipped(segments_of(p, 1)[3][2], 9))),
        lambda p: change_row(p, 3, keys=1),
        lambda p: flip_hot(p, last_position(p) - 1),
        drop_key_row,
        cut_name,
        lambda p: put(p, ("activity", PAIR.pack(1, U64_MAX - 5), b"x" * 16)),
        lambda p: put(p, ("name", bytes(16), protect(bytes(16), U64.pack(99)))),
        lambda p: damaged_store.put_commit_record(p, lambda r: replace(r, sessions=9)),
        lambda p: damaged_store.put_commit_record(p, lambda r: replace(r, tenants_made=9)),
    ]
    for number, damage in enumerate(damages, 1):
        damage(path)
        assert len(check(path).findings) == number
    assert check(path).consequences


@pytest.mark.parametrize("share", [1, 2])
def test_damaged_segments_bring_no_others_along(path: Path, share: int) -> None:
    segments = rows_of(path, "segment")[::share]
    put(path, *[(table, key, flipped(value, 9)) for table, key, value in segments])
    report = check(path)
    assert len(report.findings) == len(segments)
    assert {finding.session for finding in report.findings} == {"call-1", "call-2"}
    assert report.consequences >= BLOCK_POSITIONS


@pytest.mark.parametrize("block", [0, 1])
def test_a_link_that_is_wrong_is_one_finding(path: Path, block: int) -> None:
    """The next block's link was compared with the wrong one too."""
    table, key, value = rows_of(path, "order")[block]
    change_words(path, (table, key, value), 8, bytes(16))
    assert [finding.where for finding in check(path).findings] == [f"order block {block}"]


def test_what_a_segment_hides_is_not_compared(path: Path) -> None:
    """Keys, ids and order of events that cannot be read are consequences."""
    keyed = next(row for row in segments_of(path, 1) if holds_a_key(row))
    put(path, (*keyed[:2], flipped(keyed[2], 9)))
    (finding,) = check(path).findings
    assert finding.where.startswith("segment 1/")


def holds_a_key(row: Row) -> bool:
    segment = decode_segment(row[1], row[2])
    events = [segment.make(at, Origin(1, "", "call-1"), Record) for at in range(segment.count)]
    return any([event.flags & Flag.KEYED for event in events])


def test_findings_are_bounded_and_the_rest_is_counted() -> None:
    report = CheckReport()
    for number in range(FINDINGS_MAX + 3):
        report.add(f"here {number}", "is wrong")
    assert len(report.findings) == FINDINGS_MAX
    assert (report.omitted, report.ok) == (3, False)
    assert report.findings[0] == Finding("here 0", "is wrong", None, None)


def test_a_whole_store_has_neither_findings_nor_consequences(path: Path) -> None:
    report = check(path)
    assert (report.findings, report.consequences, report.omitted) == ([], 0, 0)
    assert report.counts["keys"] == 24
    assert report.counts["ids"] == 36


def test_a_name_that_leads_to_somebody_else_is_damage(path: Path) -> None:
    """It gave the other's session, of another tenant as well."""
    put(path, *[("name", key, protect(key, U64.pack(2))) for _, key, _ in rows_of(path, "name")])
    with (
        Store.open(path, create=False, read_only=True) as store,
        store._log.views.transaction() as tables,
    ):
        for tenant in ("", "acme"):
            with pytest.raises(CorruptionError, match="another name"):
                tables.find_session((tenant, "call-1"))
        with pytest.raises(CorruptionError, match="another name"):
            tables.find_tenant("")
        found = tables.find_session(("", "call-2"))
        assert found is not None
        assert (found[0], found[1].name) == (2, "call-2")
        assert tables.find_tenant("acme") == 2
        assert tables.find_session(("", "nobody")) is None
