"""Segments: immutable runs of one session's records as compressed columns, pure.

A segment's key is (session number, last sequence). Its value, little-endian (FORMAT.md,
"Segment")::

    checksum 8 | version 1 | codec 1 | dictionary 1 | reserved 1 | count 4 | content bytes 8
    | first position 8 | last position 8 | first recorded 8 | last recorded 8 | messages before 8
    | messages 4 | voids 4 | kinds 8 | payload

Invariants:
    1. The checksum is xxh3_64 over key, prefix and *uncompressed* content, so a flipped bit that
       still decompresses is seen.
    2. Sequences are consecutive and end with the key's; positions rise.
    3. Each hot record can be rebuilt from its segment byte for byte (``Record.stored``).
    4. Nothing is decompressed before its stated size was checked.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from struct import Struct
from typing import Any, Final, cast

import numpy as np
from xxhash import xxh3_64
from zstandard import ZstdCompressor, ZstdError, frame_content_size

from eventlog import columns
from eventlog.columns import Words
from eventlog.decoded import HEAD_BYTES, Segment
from eventlog.dictionary import Contexts, Dictionary, Find
from eventlog.errors import CorruptionError
from eventlog.keys import PAIR
from eventlog.limits import SEGMENT_BYTES_MAX, SEGMENT_EVENTS_MAX
from eventlog.record import (
    CONTROL,
    HEADER_BYTES,
    MESSAGE,
    Flag,
)

PREFIX: Final = Struct("<BBBBIQQQQQQIIQ")
CHECKSUM_BYTES: Final = 8
PREFIX_BYTES: Final = CHECKSUM_BYTES + PREFIX.size
VERSION: Final = 1
RAW: Final = 0
ZSTD: Final = 1
_ROLLS_UP_BIT: Final = np.uint64(Flag.ROLLS_UP << 16)  # in the word of kind, role and flags
GAIN_SHARE: Final = 20  # compression that gains less than 1/20 is not kept


_contexts: Final = Contexts()


@dataclass(slots=True)
class SegmentPrefix:
    """What a segment says about itself without being decompressed; times in µs."""

    version: int
    codec: int
    dictionary: int
    reserved: int
    count: int
    content_bytes: int
    first_position: int
    last_position: int
    first_recorded_us: int
    last_recorded_us: int
    messages_before: int
    messages: int
    voids: int
    kinds: int

    def pack(self) -> bytes:
        """Its bytes."""
        return PREFIX.pack(
            self.version,
            self.codec,
            self.dictionary,
            self.reserved,
            self.count,
            self.content_bytes,
            self.first_position,
            self.last_position,
            self.first_recorded_us,
            self.last_recorded_us,
            self.messages_before,
            self.messages,
            self.voids,
            self.kinds,
        )

    @classmethod
    def unpack(cls, key: bytes, value: bytes) -> SegmentPrefix:
        """Read the prefix; ``decode_segment`` is what checks it."""
        if len(value) < PREFIX_BYTES:
            raise CorruptionError("segment is shorter than its prefix", where=_where(key))
        return cls(*PREFIX.unpack_from(value, CHECKSUM_BYTES))


@dataclass(slots=True)
class Run:
    """Consecutive stored records of one session that are to be sealed together.

    Attributes:
        session: The session number.
        last_sequence: Sequence of the last record.
        records: Stored hot records, in sequence order.
        positions: Their positions, rising.
        messages_before: Messages of the session before the first record.
        messages: Messages among the records; set by ``describe_runs``.
        last_public: Place of the last public event among the records, -1 for none; likewise.
        dictionary: What to compress with, None for nothing.
        content_bytes: Size of the segment's content; set by ``encode_segments``.
        payload_bytes: What that was compressed to; likewise.
        rolled: Place of the last record after which the session rolled up, -1 for none; likewise.
        since: Messages after that one, or all of them; likewise.
    """

    session: int
    last_sequence: int
    records: list[bytes]
    positions: list[int]
    messages_before: int = 0
    messages: int = 0
    last_public: int = -1
    dictionary: Dictionary | None = None
    content_bytes: int = 0
    payload_bytes: int = 0
    rolled: int = -1
    since: int = 0


def describe_runs(runs: Sequence[Run]) -> Words:
    """Header words of all records of all runs, one below the other; fills in what runs count."""
    words = columns.header_words(
        [record for run in runs for record in run.records],
        [position for run in runs for position in run.positions],
    )
    kinds = words[:, columns.KIND_TO_EXTENSION] & np.uint64(0xFF)
    all_messages = bool((kinds == MESSAGE).all())
    rolls = np.flatnonzero(words[:, columns.KIND_TO_EXTENSION] & _ROLLS_UP_BIT).tolist()
    stop = 0
    for run in runs:
        start, stop = stop, stop + len(run.records)
        before = bisect_left(rolls, stop)
        if before and rolls[before - 1] >= start:
            run.rolled = rolls[before - 1] - start
        if all_messages:
            run.messages = stop - start
            run.last_public = run.messages - 1
            run.since = run.last_public - run.rolled
        else:
            mine = kinds[start:stop].tolist()
            run.messages = mine.count(MESSAGE)
            run.last_public = next(
                (place for place in range(len(mine) - 1, -1, -1) if mine[place] < CONTROL), -1
            )
            run.since = mine[run.rolled + 1 :].count(MESSAGE)
    return words


def encode_segments(runs: Sequence[Run], words: Words) -> list[tuple[bytes, bytes]]:
    """Seal runs; gives key and value of each.

    All together, because what numpy and zstd cost per call outweighs what they cost per record.

    Args:
        runs: The runs, with ``messages_before`` set.
        words: What ``describe_runs`` gave for them.
    """
    starts = [0]
    for run in runs:
        assert 1 <= len(run.records) <= SEGMENT_EVENTS_MAX, len(run.records)
        starts.append(starts[-1] + len(run.records))
    changed = columns.differences(words, starts[:-1])
    bits = np.left_shift(
        np.uint64(1), np.minimum(words[:, columns.KIND_TO_EXTENSION] & np.uint64(0xFF), 63)
    )
    kinds = np.bitwise_or.reduceat(bits, starts[:-1]).tolist()
    recorded = words[:, columns.RECORDED].tolist()
    contents = [
        b"".join(
            [
                columns.shuffle(changed[start:stop]),
                *[record[HEADER_BYTES:] for record in run.records],
            ]
        )
        for run, start, stop in zip(runs, starts[:-1], starts[1:], strict=True)
    ]
    segments: list[tuple[bytes, bytes]] = []
    for number, (run, content, payload) in enumerate(
        zip(runs, contents, _compress_all(runs, contents), strict=True)
    ):
        prefix = SegmentPrefix(
            VERSION,
            ZSTD,
            0,
            0,
            len(run.records),
            len(content),
            run.positions[0],
            run.positions[-1],
            recorded[starts[number]],
            recorded[starts[number + 1] - 1],
            run.messages_before,
            run.messages,
            0,
            kinds[number],
        )
        key = PAIR.pack(run.session, run.last_sequence)
        value = _sealed(key, prefix, content, payload, run.dictionary)
        run.content_bytes, run.payload_bytes = len(content), len(value) - PREFIX_BYTES
        segments.append((key, value))
    return segments


def encode_segment(run: Run) -> tuple[bytes, bytes]:
    """Seal one run; gives key and value."""
    return encode_segments([run], describe_runs([run]))[0]


def join_segments(
    session: int,
    segments: Sequence[Segment],
    dictionary: Dictionary | None = None,
    *,
    compressor: ZstdCompressor | None = None,
) -> tuple[bytes, bytes]:
    """One segment of neighbouring ones, or of one alone; gives key and value.

    Args:
        session: Their session number.
        segments: Whole segments, oldest first.
        dictionary: What to compress it with.
        compressor: Another one, with this dictionary or without one.

    Raises:
        CorruptionError: They are no neighbours.
    """
    first, last = segments[0], segments[-1]
    stop = first.first_sequence
    position = 0
    for segment in segments:
        if segment.first_sequence != stop or segment.prefix.first_position <= position:
            where = f"segment {session}/{segment.first_sequence + segment.count - 1}"
            raise CorruptionError("does not follow the one before", where=where)
        stop += segment.count
        position = segment.prefix.last_position
    count = stop - first.first_sequence
    assert count <= SEGMENT_EVENTS_MAX, count
    heads = b"".join([segment.heads for segment in segments])
    words = np.frombuffer(heads, "<u8").reshape(count, columns.WORDS)
    content = b"".join(
        [
            columns.shuffle(columns.differences(words, [0])),
            *[segment.tails for segment in segments],
        ]
    )
    kinds = 0
    for segment in segments:
        kinds |= segment.prefix.kinds
    prefix = replace(
        last.prefix,
        count=count,
        content_bytes=len(content),
        first_position=first.prefix.first_position,
        first_recorded_us=first.prefix.first_recorded_us,
        messages_before=first.prefix.messages_before,
        messages=sum([segment.prefix.messages for segment in segments]),
        voids=sum([segment.prefix.voids for segment in segments]),
        kinds=kinds,
    )
    key = PAIR.pack(session, stop - 1)
    if compressor is None:
        frame = _compressed([content], dictionary)[0]
    else:
        frame = compressor.compress(content)
    return key, _sealed(key, prefix, content, frame, dictionary)


def _sealed(
    key: bytes,
    prefix: SegmentPrefix,
    content: bytes,
    frame: bytes,
    dictionary: Dictionary | None,
) -> bytes:
    """The value of a segment; compressed where that gains enough. Sets the prefix's codec."""
    prefix.codec, prefix.dictionary = ZSTD, 0 if dictionary is None else dictionary.number
    if len(frame) * GAIN_SHARE > len(content) * (GAIN_SHARE - 1):
        frame, prefix.codec, prefix.dictionary = content, RAW, 0
    stored = prefix.pack()
    return b"".join((_checksum(key, stored, content), stored, frame))


def _compress_all(runs: Sequence[Run], contents: list[bytes]) -> list[bytes]:
    """Compress the content of each run, those with one dictionary together."""
    first = runs[0].dictionary
    if all([run.dictionary is first for run in runs]):
        return _compressed(contents, first)
    groups: dict[Dictionary | None, list[int]] = {}
    for place, run in enumerate(runs):
        groups.setdefault(run.dictionary, []).append(place)
    frames = [b""] * len(contents)
    for dictionary, places in groups.items():
        group = _compressed([contents[place] for place in places], dictionary)
        for place, frame in zip(places, group, strict=True):
            frames[place] = frame
    return frames


def _compressed(contents: list[bytes], dictionary: Dictionary | None) -> list[bytes]:
    """Compress each; in one call where the library can, so that the GIL is given up once."""
    compressor = _contexts.compressor if dictionary is None else dictionary.compressor
    if len(contents) > 1 and hasattr(compressor, "multi_compress_to_buffer"):
        frames = compressor.multi_compress_to_buffer(cast("list[Any]", contents))
        return [frames[number].tobytes() for number in range(len(frames))]
    return [compressor.compress(content) for content in contents]


def decode_segment(key: bytes, value: bytes, find: Find | None = None) -> Segment:
    """Check and decode a segment.

    Args:
        key: Its key.
        value: Its value.
        find: Gives a dictionary by its number; None where there are none.

    Raises:
        CorruptionError: The bytes are not what was written under this key.
    """
    if len(key) != PAIR.size:
        raise CorruptionError("key has another size", where=_where(key))
    prefix = SegmentPrefix.unpack(key, value)
    content = _content(prefix, key, value, find)
    if _checksum(key, value[CHECKSUM_BYTES:PREFIX_BYTES], content) != value[:CHECKSUM_BYTES]:
        raise CorruptionError("segment checksum does not match", where=_where(key))
    if prefix.version != VERSION:
        raise CorruptionError(f"segment version {prefix.version} is unknown", where=_where(key))
    last_sequence = PAIR.unpack(key)[1]
    if last_sequence < prefix.count - 1:
        raise CorruptionError("segment begins before sequence 0", where=_where(key))
    tails = columns.tail_bytes(content, prefix.count, 0)
    if prefix.count * HEAD_BYTES + tails != len(content):
        raise CorruptionError("segment lengths do not add up", where=_where(key))
    return Segment.packed(last_sequence - prefix.count + 1, prefix, content)


def _content(prefix: SegmentPrefix, key: bytes, value: bytes, find: Find | None) -> bytes:
    size = prefix.content_bytes
    if not (
        1 <= prefix.count <= SEGMENT_EVENTS_MAX
        and prefix.count * columns.WORDS * 8 <= size <= SEGMENT_BYTES_MAX
    ):
        raise CorruptionError("segment states impossible sizes", where=_where(key))
    payload = memoryview(value)[PREFIX_BYTES:]  # what is long is not copied
    if prefix.codec == RAW and not prefix.dictionary:
        content = payload.tobytes()
    elif prefix.codec == ZSTD:
        try:
            if frame_content_size(payload) != size:
                raise CorruptionError("segment frame states another size", where=_where(key))
            if prefix.dictionary:
                dictionary = _found(prefix.dictionary, key, find)
                content = dictionary.decompress(payload, _where(key))
            else:
                content = _contexts.decompress(payload, allow_extra_data=False)
        except (ZstdError, MemoryError) as error:
            raise CorruptionError(
                f"segment does not decompress: {error}", where=_where(key)
            ) from error
    else:
        raise CorruptionError("segment codec is unknown", where=_where(key))
    if len(content) != size:
        raise CorruptionError("segment has another size than stated", where=_where(key))
    return content


def _found(number: int, key: bytes, find: Find | None) -> Dictionary:
    try:
        if find is None:
            raise CorruptionError("is missing", where=f"dictionary {number}")
        return find(number)
    except CorruptionError as error:
        raise CorruptionError(f"needs what is damaged: {error}", where=_where(key)) from error


def _checksum(key: bytes, prefix: bytes, content: bytes) -> bytes:
    digest = xxh3_64(key + prefix)
    digest.update(content)
    return digest.digest()


def _where(key: bytes) -> str:
    if len(key) != PAIR.size:
        return f"segment {key.hex()}"
    session, last = PAIR.unpack(key)
    return f"segment {session}/{last}"
