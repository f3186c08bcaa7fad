"""The worked example of FORMAT.md: a store of three events, byte by byte.

``python -m tests.format.example`` writes it between the document's two markers; a test fails when
what stands there is not what this tree writes. Secret and times are fixed, so it never changes by
itself. What zstd makes of a segment is shown before compression, since it depends on its version.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from engine.drafting import draft_event, draft_message
from engine.events import Event
from engine.export import event_to_line
from eventlog.digests import id_digest
from eventlog.idrows import IdDirectory, IdRun, encode_blocks, encode_filter, table_of, words_for
from eventlog.keys import PAIR, U64, U64_MAX, name_key
from eventlog.order import next_link
from eventlog.place import encode_marker
from eventlog.record import decode_record, redacted_record
from eventlog.rows import (
    COMMIT_KEY,
    NO_LINK,
    CommitRecord,
    KeyedResult,
    SessionRow,
    TenantRow,
    protect,
)
from eventlog.segment import PREFIX_BYTES, Run, SegmentPrefix, encode_segment
from tests.format.independent import inflate
from tests.format.memory import SECRET, START_US, STEP_US, Ledger, append

DOCUMENT = Path(__file__).resolve().parents[2] / "eventlog" / "FORMAT.md"
BEGIN = "<!-- example: begin -->"
END = "<!-- example: end -->"
Fields = Sequence[tuple[int, str]]
WIDTH = 66

RECORD: Fields = (
    (8, "checksum"),
    (8, "session"),
    (8, "sequence"),
    (8, "parent"),
    (8, "recorded_us"),
    (8, "given_us"),
    (8, "owner"),
    (8, "offset"),
    (4, "branch"),
    (4, "tokens"),
    (1, "kind"),
    (1, "role"),
    (2, "flags"),
    (4, "extension length"),
)
COMMIT: Fields = (
    (8, "checksum"),
    (8, "last_position"),
    (8, "floor"),
    (8, "transaction"),
    (8, "file_bytes"),
    (8, "sessions_made"),
    (8, "tenants_made"),
    (8, "sessions"),
    (8, "recorded_us"),
    (8, "generation"),
    (8, "roll_ups"),
    (8, "cuts"),
    (8, "fences"),
    (16, "link"),
    (8, "previous"),
    (8, "dictionaries_made"),
    (8, "blobs_made"),
    (8, "removals"),
    (8, "roles"),
)
SESSION: Fields = (
    (8, "checksum"),
    (8, "tenant_number"),
    (8, "created_position"),
    (8, "created_us"),
    (8, "sealed"),
    (8, "messages"),
    (8, "head"),
    (8, "last_position"),
    (8, "last_recorded_us"),
    (8, "keys"),
    (8, "segments"),
    (4, "since_roll_up"),
    (4, "flags"),
)
SEGMENT: Fields = (
    (8, "checksum"),
    (1, "version"),
    (1, "codec"),
    (1, "dictionary"),
    (1, "reserved"),
    (4, "count"),
    (8, "content bytes"),
    (8, "first position"),
    (8, "last position"),
    (8, "first recorded_us"),
    (8, "last recorded_us"),
    (8, "messages before"),
    (4, "messages"),
    (4, "voids"),
    (8, "kinds"),
)


def lines(content: bytes, text: str, *, label: str = "", big: bool = False) -> list[str]:
    """Bytes in hex, up to 32 a line, with what they are behind them."""
    found = []
    for start in range(0, max(1, len(content)), 32):
        piece = content[start : start + 32].hex() or "(nothing)"
        note = text if start == 0 else ""
        found.append(f"{label if start == 0 else '':6} {piece:{WIDTH}}{note}".rstrip())
    return found


def part(content: bytes, fields: Fields, rest: Sequence[tuple[int, str]] = ()) -> list[str]:
    """A value cut into fields; ``rest`` names what follows them."""
    found: list[str] = []
    start = 0
    for size, text in (*fields, *rest):
        piece = content[start : start + size]
        found += lines(piece, text, label="" if found else "value")
        start += size
    assert start == len(content), (start, len(content))
    return found


def row(
    table: str, key: bytes, key_text: str, value: bytes, fields: Fields, rest: Fields = ()
) -> list[str]:
    """A row as a code block."""
    body = [f"table {table}", *lines(key, key_text, label="key"), *part(value, fields, rest)]
    return ["```text", *body, "```", ""]


def generate() -> str:
    """The example's text."""
    ledger = Ledger()
    name = ("acme", "call-42")
    hello = {"role": "user", "content": "Hi!"}
    answer = {"role": "assistant", "content": "Hello. How can I help?"}
    first = append(*name[1:], hello, user_id="u7", idempotency_key="req-1")
    second = append(
        *name[1:], drafts=[draft_event("message", answer, id="m-2", tokens=6, time_us=START_US + 9)]
    )
    plan_1 = ledger.commit(first, second)
    record_1 = CommitRecord(
        last_position=2,
        transaction=2,
        file_bytes=106_496,
        sessions_made=1,
        tenants_made=1,
        sessions=1,
        recorded_us=START_US,
        link=plan_1.link,
        previous=CommitRecord(transaction=1, file_bytes=0).encode()[:8],
    )
    plan_2 = ledger.commit(
        append(*name[1:], drafts=[draft_message({"role": "user", "content": "Bye"})])
    )
    values = ledger.values
    state = ledger.index.states[1]
    digest, keyed = next(iter(plan_1.keys.items()))
    return "\n".join(
        [
            *_story(),
            *_names(name),
            *_records(values),
            *_chain(values, plan_1.link, plan_2.link),
            *_commit_record(record_1, plan_2.link),
            *_sealed(ledger, state.row.copy(), digest[1], keyed),
            *_ids(),
            *_export(ledger),
            *_redacted(ledger),
        ]
    )


def _story() -> list[str]:
    return [
        "The tenant `acme` has the secret `000102…1f` (32 bytes, random in a real store). Its",
        "session `call-42` is created for the user `u7` by the first of two appends at",
        f"{START_US} µs, which go into one commit; a third follows {STEP_US:,} µs later.",
        "The first carries the idempotency key `req-1`; the second the id `m-2`, a given time and",
        "a token count.",
        "",
        "`turnlog.json`, with a store id of zeros:",
        "",
        "```json",
        encode_marker({"store_id": "00" * 16}).decode().rstrip(),
        "```",
        "",
    ]


def _names(name: tuple[str, str]) -> list[str]:
    tenant = TenantRow(SECRET, name[0])
    found = ["The tenant, and the two names:", ""]
    found += row(
        "tenant",
        U64.pack(1),
        "tenant number",
        tenant.encode(U64.pack(1)),
        [(8, "checksum"), (32, "secret"), (4, "name")],
    )
    for what, key in (
        ("the tenant's number", name_key("acme", "")),
        ("session number", name_key(*name)),
    ):
        found += row(
            "name",
            key,
            "name digest",
            protect(key, U64.pack(1)),
            [(8, "checksum"), (8, what)],
        )
    return found


def _records(values: Sequence[bytes]) -> list[str]:
    found = [
        "The three records. The extension of the first holds the opening facts (key 10) and the"
    ]
    found += ["key's digests (2, 3, 4), that of the second the id (1):", ""]
    for position, value in enumerate(values, 1):
        length = int.from_bytes(value[76:80], "little")
        rest = [(length, "extension")] if length else []
        rest.append((len(value) - 80 - length, "body"))
        found += row("log.00", U64.pack(position), "position", value, RECORD, rest)
    return found


def _chain(values: Sequence[bytes], first: bytes, second: bytes) -> list[str]:
    assert first == next_link(NO_LINK, 1, values[0][:8] + values[1][:8])
    assert second == next_link(first, 3, values[2][:8])
    return [
        "The chain: one run per commit here, as both lie in block 0.",
        "",
        "```text",
        *lines(NO_LINK, "link before position 1"),
        *lines(U64.pack(1) + values[0][:8] + values[1][:8], "first position, two checksums"),
        *lines(first, "BLAKE2b-128 of both lines: link after position 2"),
        *lines(U64.pack(3) + values[2][:8], "first position, one checksum"),
        *lines(second, "BLAKE2b-128 of both lines: link after position 3"),
        "```",
        "",
    ]


def _commit_record(before: CommitRecord, link: bytes) -> list[str]:
    record = CommitRecord(
        last_position=3,
        transaction=3,
        file_bytes=before.file_bytes,
        sessions_made=1,
        tenants_made=1,
        sessions=1,
        recorded_us=START_US + STEP_US,
        link=link,
        previous=before.encode()[:8],
    )
    found = [
        "The commit record of the second commit, LMDB's transaction 3, on a file of "
        f"{before.file_bytes:,} bytes:"
    ]
    return [*found, "", *row("commit", COMMIT_KEY, '"record"', record.encode(), COMMIT)]


def _sealed(ledger: Ledger, session: SessionRow, digest: bytes, keyed: KeyedResult) -> list[str]:
    key = U64.pack(1)
    found = ["The session's row as the first commit wrote it:", ""]
    fresh = session.encode(key)
    found += row(
        "session",
        key,
        "session number",
        fresh,
        SESSION,
        [(len(fresh) - 96, "[tenant, name, opening]")],
    )
    segment_key, segment = encode_segment(Run(1, 2, list(ledger.values), [1, 2, 3]))
    prefix = SegmentPrefix.unpack(segment_key, segment)
    payload = segment[PREFIX_BYTES:]
    content = inflate(payload, prefix.content_bytes) if prefix.codec else payload
    tails = content[3 * 72 :]
    found += [
        "A roll-up makes one segment of the three. Its content is shown before compression:",
        "",
        *row(
            "segment",
            segment_key,
            "session number, last sequence",
            segment[:PREFIX_BYTES] + content,
            SEGMENT,
            [
                *[(24, f"word {word}: eight planes of three bytes") for word in range(9)],
                (len(tails), "extensions and bodies"),
            ],
        ),
        "and writes these rows:",
        "",
    ]
    session.sealed, session.messages, session.head = 3, 3, 2
    session.last_position, session.last_recorded_us = 3, START_US + STEP_US
    session.keys, session.segments = 1, 1
    rolled = session.encode(key)
    found += row(
        "session",
        key,
        "session number",
        rolled,
        SESSION,
        [(len(rolled) - 96, "[tenant, name, opening]")],
    )
    key_key = key + digest
    found += row(
        "key",
        key_key,
        "session number, digest of req-1",
        keyed.encode(key_key),
        [(8, "checksum"), (16, "content digest"), (8, "first"), (8, "last"), (8, "position")],
    )
    activity = PAIR.pack(1, U64_MAX - 3)
    found += row(
        "activity",
        activity,
        "tenant number, inverted position",
        protect(activity, U64.pack(1)),
        [(8, "checksum"), (8, "session number")],
    )
    return found


def _ids() -> list[str]:
    hashed = id_digest(SECRET, "m-2")
    table = table_of([(hashed, 1, 1)])
    blocks, run = encode_blocks(IdRun(1, 0, 1, words_for(1)), table)
    filter_row = encode_filter(run, table, 0, 1)[0]
    _, rows = IdDirectory().changed([run], next_run=2)
    found = [
        "When position 2 is cut from the hot log (4,096 positions at once), its id goes to a run:",
        "",
    ]
    found += row(
        "id",
        rows[0][0],
        "header",
        rows[0][1],
        [
            (8, "checksum"),
            (8, "generation"),
            (8, "next run"),
            (4, "directory rows"),
            (4, "merges"),
            (8, "digest"),
        ],
    )
    found += row(
        "id",
        rows[1][0],
        "directory row, run number",
        rows[1][1],
        [
            (8, "checksum"),
            (1, "level"),
            (1, "state"),
            (8, "entries"),
            (8, "entry blocks"),
            (8, "filter words"),
            (8, "fingerprint"),
            (16, "last hash"),
        ],
    )
    found += row(
        "id",
        filter_row[0],
        "filter block, run number, number",
        filter_row[1],
        [(8, "checksum"), (8, "one word")],
    )
    found += row(
        "id",
        blocks[0][0],
        "entry block, run number, last hash",
        blocks[0][1],
        [
            (8, "checksum"),
            (16, "last hash before"),
            (4, "entries"),
            (4, "number"),
            (16, "hash"),
            (8, "session number"),
            (8, "sequence"),
        ],
    )
    return found


def _export(ledger: Ledger) -> list[str]:
    origin = ledger.index.states[1].origin
    found = ["The three export lines:", "", "```json"]
    for position, value in enumerate(ledger.values, 1):
        found.append(event_to_line(decode_record(origin, position, value, Event)))
    return [*found, "```"]


def _redacted(ledger: Ledger) -> list[str]:
    key = U64.pack(2)
    value = redacted_record(key, ledger.values[1])
    length = int.from_bytes(value[76:80], "little")
    event = decode_record(ledger.index.states[1].origin, 2, value, Event)
    return [
        "",
        "Once the second event is redacted (section 5.11), its record keeps its id (key 1), and",
        "the body is null; the flags are NAMED and REDACTED:",
        "",
        *row("log.00", key, "position", value, RECORD, [(length, "extension"), (1, "body")]),
        "and its export line is this one:",
        "",
        "```json",
        event_to_line(event),
        "```",
    ]


def insert(document: str) -> str:
    """The document with the example put between its markers."""
    before, _, rest = document.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{generate()}\n\n{END}{after}"


def main() -> None:
    """Write the example into the document."""
    document = DOCUMENT.read_text("utf-8")
    assert BEGIN in document
    assert END in document
    DOCUMENT.write_text(insert(document), "utf-8")


if __name__ == "__main__":
    main()
