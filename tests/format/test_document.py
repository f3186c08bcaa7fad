"""FORMAT.md says what the code does: layouts, constants, names, and the example."""

from __future__ import annotations

import importlib
import re
from dataclasses import asdict
from struct import Struct

import pytest

from engine.export import LINE_KEYS, encode_line
from engine.kinds import APPLICATION, CONTROLS, PUBLIC, ROLES
from eventlog import (
    blob,
    chunk,
    dictionary,
    idrows,
    limits,
    locks,
    order,
    place,
    record,
    removal,
    rows,
    segment,
)
from eventlog.backup import BACKUP_KEYS
from eventlog.hotlog import HOT_NAMES
from eventlog.limits import HOT_TABLE_POSITIONS, HOT_TABLES
from eventlog.locks import LOCK_FILES
from eventlog.log import Options
from eventlog.place import LOCK_FILE, MARKER_FILE
from eventlog.raw import DATA_FILE
from eventlog.record import CONTROL, HEADER, Extension, Flag
from eventlog.restore import RESTORE_KEYS
from eventlog.tables import TABLES
from tests.format import independent, independent_rows
from tests.format.example import BEGIN, DOCUMENT, END, insert

TEXT = DOCUMENT.read_text("utf-8")
CODES = {
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
    "i64": "q",
    "8B": "8s",
    "16B": "16s",
    "32B": "32s",
}

LISTS = (
    "details",
    "firsts",
    "extension",
    "body",
    "columns",
    "payload",
    "inputs",
    "content",
    "sessions",
    "dictionary",
    "media_type",
)


def section(heading: str) -> str:
    """The text below a heading, up to the next one."""
    found = re.search(rf"^#+ [\d.]+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", TEXT, re.M | re.S)
    assert found is not None, heading
    return found[1]


def table(heading: str) -> list[list[str]]:
    """The cells of a section's first table, without its head."""
    lines = re.search(r"(?:^\|.*\n)+", section(heading), re.M)
    assert lines is not None, heading
    rows_ = [[cell.strip() for cell in line.split(" | ")] for line in lines[0].splitlines()]
    return [[cell.strip("| `") for cell in cells] for cells in rows_[2:]]


def names(heading: str, column: int = 1) -> dict[str, int]:
    return {cells[column]: int(cells[0]) for cells in table(heading)}


@pytest.mark.parametrize(
    ("heading", "struct"),
    [
        ("Commit record", rows._COMMIT),
        ("Session row", rows._SESSION),
        ("Keyed result", rows._KEYED),
        ("Removal", removal._ROW),
        ("Dictionary row", dictionary._HEAD),
        ("Hot record", record.HEADER),
        ("Order blocks", order._PREFIX),
        ("Segments", segment.PREFIX),
        ("Header", idrows._HEADER),
        ("Directory row", idrows._RUN),
        ("Entry block", idrows._BLOCK),
        ("Blobs", blob._BLOB),
        ("Pending rows", blob._PENDING),
        ("Chunks", chunk.PREFIX),
        ("Merge", Struct(f">Q{idrows._RUN.format[1:]}Q")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_layouts_are_those_of_the_code(heading: str, struct: Struct) -> None:
    offset = 0
    big = False
    found = ""
    for number, (start, kind, field, *_) in enumerate(table(heading)):
        if kind == "bytes":
            assert field in LISTS
            assert start in ("", str(offset))
            continue
        assert int(start) == offset, field
        if number == 0:
            assert (kind, field) == ("8B", "checksum")
        else:
            found += CODES[kind.removesuffix("be")]
        big = big or kind.endswith("be")
        offset += Struct("=" + CODES[kind.removesuffix("be")]).size
    assert (">" if big else "<") + found == struct.format
    assert offset == 8 + struct.size


@pytest.mark.parametrize(
    ("heading", "fields"),
    [
        ("Commit record", list(rows.CommitRecord.__dataclass_fields__)[:-1]),
        ("Session row", list(rows.SessionRow.__dataclass_fields__)[:12]),
        ("Keyed result", list(rows.KeyedResult.__dataclass_fields__)),
        ("Removal", list(removal.RemovalRow.__dataclass_fields__)),
        ("Blobs", list(blob.BlobRow.__dataclass_fields__)[:-1]),
        ("Pending rows", list(blob.PendingRow.__dataclass_fields__)),
        ("Segments", list(segment.SegmentPrefix.__dataclass_fields__)),
    ],
)
def test_fields_are_called_as_in_the_code(heading: str, fields: list[str]) -> None:
    assert [cells[2] for cells in table(heading) if cells[1] != "bytes"][1:] == fields


@pytest.mark.parametrize(("name", "value", "_"), table("Constants"))
def test_constants_are_those_of_the_code(name: str, value: str, _: str) -> None:
    owners = [
        module
        for module in (limits, rows, record, place, locks, idrows)
        if module.__name__ == "eventlog.limits" or name not in vars(limits)
        if name in vars(module)
    ]
    assert owners, name
    assert {getattr(owner, name) for owner in owners} == {int(value.replace(",", ""))}


def test_numbers_in_the_text_are_those_of_the_code() -> None:
    room = (HOT_TABLES - 2) * HOT_TABLE_POSITIONS
    assert f"below {room:,} hot positions ({HOT_TABLES - 2} tables)" in TEXT
    assert f"div {HOT_TABLE_POSITIONS:,}) mod {HOT_TABLES}" in TEXT
    assert f"{order.COLUMNS_BYTES:,} bytes" in section("Order blocks")
    assert f"{8 * 9} × count" in section("Segments")
    assert HEADER.size == 72
    for heading in ("Blobs", "Chunks"):
        assert f"1 … {limits.CHUNK_BYTES_MAX:,}" in section(heading)
    assert f"1 … {limits.EVENT_BLOBS_MAX}, each" in section("Extension")
    assert f"Codes below {CONTROL} are public kinds" in section("Kinds")
    assert f"at most {limits.TABLES_MAX} named databases and {limits.READERS_MAX:,}" in TEXT.lower()


def test_every_named_database_is_named() -> None:
    found = {cells[0] for cells in table("Named databases")}  # some have several kinds of rows
    hot = f"{HOT_NAMES[0]}` … `{HOT_NAMES[-1]}"
    assert hot in found
    assert found - {hot} == set(TABLES) - set(HOT_NAMES)


def test_every_file_is_named() -> None:
    files = {cells[0] for cells in table("The folder")}
    assert files == {MARKER_FILE, DATA_FILE, LOCK_FILE, *LOCK_FILES}


def test_every_key_of_the_marker_is_named() -> None:
    keys = ("format", "version", "store_id", *BACKUP_KEYS, *RESTORE_KEYS)
    assert [key for key in keys if f"`{key}`" not in section("The folder")] == []


def test_every_flag_and_extension_is_named() -> None:
    assert names("Flags") == {flag.name: flag.value for flag in Flag}
    assert names("Extension") == {key.name: key.value for key in Extension}


def test_every_kind_and_role_is_named() -> None:
    listed = dict(table("Kinds"))
    for name, code in {**PUBLIC, **CONTROLS}.items():
        assert listed.pop(str(code)).split("`")[0] == name
    assert list(listed) == [str(APPLICATION)]
    assert names("Roles") == ROLES


def test_every_option_is_named() -> None:
    assert set(re.findall(r"`(\w+)`", section("Options"))) == set(asdict(Options()))


def test_the_key_order_of_export_lines_is_the_code_s() -> None:
    listed = re.search(r"^`tenant`, .*?`body`", section("Export lines"), re.M | re.S)
    assert listed is not None
    assert tuple(re.findall(r"`(\w+)`", listed[0])) == LINE_KEYS


def test_the_characters_that_export_lines_escape_are_listed() -> None:
    listed = []
    for characters, _ in table("Export lines"):
        first, _, last = characters.replace("U+", "").partition(" … ")
        listed.append((int(first, 16), int(last or first, 16)))
    assert listed == independent_rows.ESCAPED
    everything = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000)]))
    assert encode_line({"v": everything}) == f'{{"v":{independent_rows.text_line(everything)}}}'


def test_the_second_implementation_says_the_same() -> None:
    kinds = {code: name for name, code in {**PUBLIC, **CONTROLS}.items()}
    assert kinds == independent.KINDS
    assert independent.ROLES == ROLES
    assert (independent.BLOCK, independent.HOT_TABLE, independent.HOT_TABLES) == (
        limits.BLOCK_POSITIONS,
        limits.HOT_TABLE_POSITIONS,
        limits.HOT_TABLES,
    )


@pytest.mark.parametrize("second", ["independent", "independent_rows"])
@pytest.mark.parametrize("module", ["eventlog", "engine", "turnlog", "bench"])
def test_the_second_implementation_shares_no_code(module: str, second: str) -> None:
    source = importlib.import_module(f"tests.format.{second}").__file__
    assert source is not None
    with open(source, encoding="utf-8") as file:
        assert not re.search(rf"^\s*(from|import) {module}\b", file.read(), re.M)


def test_the_example_is_what_this_tree_writes() -> None:
    assert TEXT.count(BEGIN) == TEXT.count(END) == 1
    assert insert(TEXT) == TEXT, "run: python -m tests.format.example"


def test_sections_are_numbered_and_referred_to_as_such() -> None:
    numbers = [int(each) for each in re.findall(r"^## (\d+)\.", TEXT, re.M)]
    assert numbers == list(range(1, len(numbers) + 1))
    for chapter in re.findall(r"section (\d+)(?!\.\d+\.\d)", TEXT):
        assert int(chapter) in numbers
