"""Trained dictionaries: what a tenant's segments have in common, known before a frame begins.

Pure but for ``LoadedDictionaries``, which keeps what one process has loaded. A dictionary holds
verbatim sentences: it is used for the tenant that it was trained on, and its row tells from which
sessions it comes.

Invariants:
    1. A dictionary never changes under its number. Its bytes are checked against their BLAKE2b-256
       once a process, before they are used.
    2. It was trained: its zstd id is not 0, and a frame made with it names that id.
    3. Contexts belong to one thread and one dictionary; zstd's are not safe to share.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from typing import Final

from zstandard import (
    DICT_TYPE_FULLDICT,
    ZstdCompressionDict,
    ZstdCompressor,
    ZstdDecompressor,
    ZstdError,
    get_frame_parameters,
    train_dictionary,
)

from eventlog.errors import CorruptionError
from eventlog.limits import (
    DICTIONARIES_LOADED_MAX,
    DICTIONARIES_MAX,
    DICTIONARY_BYTES_MAX,
    DICTIONARY_BYTES_MIN,
    DICTIONARY_SESSIONS_MAX,
)
from eventlog.rows import expose, protect

LEVEL: Final = 3
REWRITE_LEVEL: Final = 12  # measured: 8 % less than level 3, at 7 µs an event instead of 1
DIGEST_BYTES: Final = 32
SAMPLES_PER_DICTIONARY: Final = 32  # bytes of samples for each byte; with fewer it learns by heart
_HEAD: Final = Struct("<Q32sQQII")
_NUMBER: Final = Struct("<Q")


class Contexts(threading.local):
    """One compressor and one decompressor per thread."""

    def __init__(
        self, dictionary: ZstdCompressionDict | None = None, *, level: int = LEVEL
    ) -> None:
        self.compressor = ZstdCompressor(
            level=level, dict_data=dictionary, write_content_size=True, write_dict_id=True
        )
        self.decompress = ZstdDecompressor(dict_data=dictionary).decompress


@dataclass(frozen=True)
class DictionaryRow:
    """What a store keeps of a dictionary.

    Attributes:
        tenant_number: The tenant that it was trained on and is used for.
        content_bytes: Bytes of segments that it was measured on and not trained on.
        payload_bytes: What they were compressed to with it.
        sessions: Numbers of the sessions that it was trained on, rising.
        data: The dictionary, in zstd's format.
        firsts: First sequence that each of them had then; nothing when none of them was purged yet.
    """

    tenant_number: int
    content_bytes: int
    payload_bytes: int
    sessions: tuple[int, ...]
    data: bytes
    firsts: tuple[int, ...] = ()

    @property
    def ratio(self) -> float:
        """How many times smaller segments became when it was new."""
        return self.content_bytes / self.payload_bytes

    def encode(self, key: bytes) -> bytes:
        """The row's value; ``key`` is the dictionary's key."""
        head = _HEAD.pack(
            self.tenant_number,
            digest_of(self.data),
            self.content_bytes,
            self.payload_bytes,
            len(self.sessions),
            len(self.data),
        )
        numbers = b"".join([_NUMBER.pack(number) for number in self.sessions + self.firsts])
        return protect(key, head + numbers + self.data)

    @classmethod
    def decode(cls, key: bytes, value: bytes) -> DictionaryRow:
        """Check and decode.

        Raises:
            CorruptionError: The bytes are not this dictionary's row.
        """
        where = f"dictionary {int.from_bytes(key, 'big')}"
        rest = expose(key, value, where)
        if len(rest) < _HEAD.size:
            raise CorruptionError("row is too short", where=where)
        tenant_number, digest, content, payload, count, size = _HEAD.unpack_from(rest)
        start = len(rest) - size
        has_firsts = start == _HEAD.size + 2 * count * _NUMBER.size
        if (
            not (has_firsts or start == _HEAD.size + count * _NUMBER.size)
            or not 1 <= count <= DICTIONARY_SESSIONS_MAX
            or not 1 <= size <= DICTIONARY_BYTES_MAX
            or not 1 <= payload <= content
        ):
            raise CorruptionError("row has numbers that cannot be", where=where)
        numbers = tuple([number for (number,) in _NUMBER.iter_unpack(rest[_HEAD.size : start])])
        sessions, firsts = numbers[:count], numbers[count:]
        if any([before >= after for before, after in zip(sessions, sessions[1:], strict=False)]):
            raise CorruptionError("row has sessions in another order", where=where)
        data = rest[start:]
        if digest_of(data) != digest:
            raise CorruptionError("digest does not match", where=where)
        return cls(tenant_number, content, payload, sessions, data, firsts)


def dictionary_key(number: int) -> bytes:
    """The key of a dictionary's row."""
    assert 1 <= number <= DICTIONARIES_MAX
    return bytes((number,))


def digest_of(data: bytes) -> bytes:
    """The BLAKE2b-256 that a dictionary is known by."""
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


class Dictionary:
    """A dictionary in use, under its number in one store.

    Attributes:
        number: Its number, 1 to 255.
        row: What the store keeps of it.
        zstd_id: The id that frames made with it name.

    Args:
        number: Its number.
        row: What the store keeps of it.
        level: How hard to compress with it.
    """

    def __init__(self, number: int, row: DictionaryRow, *, level: int = LEVEL) -> None:
        self.number = number
        self.row = row
        where = f"dictionary {number}"
        try:
            data = ZstdCompressionDict(row.data, dict_type=DICT_TYPE_FULLDICT)
            self.zstd_id = data.dict_id()
            if not self.zstd_id:
                raise CorruptionError("was not trained", where=where)
            data.precompute_compress(level=level)
        except (ZstdError, MemoryError) as error:
            raise CorruptionError(f"cannot be used: {error}", where=where) from error
        self._contexts = Contexts(data, level=level)

    @property
    def compressor(self) -> ZstdCompressor:
        """This thread's compressor."""
        return self._contexts.compressor

    def decompress(self, frame: bytes | memoryview, where: str) -> bytes:
        """Decompress a frame whose stated size was checked.

        Raises:
            CorruptionError: It was made with another dictionary.
            ZstdError: It does not decompress.
        """
        named = get_frame_parameters(frame).dict_id
        if named != self.zstd_id:
            raise CorruptionError(
                f"frame names dictionary id {named}, dictionary {self.number} is {self.zstd_id}",
                where=where,
            )
        return self._contexts.decompress(frame, allow_extra_data=False)


Find = Callable[[int], Dictionary]


class LoadedDictionaries:
    """The dictionaries that a process has loaded, bounded in number; any thread.

    The dict is replaced and never changed, so that no thread needs a lock.
    """

    def __init__(self, *, loaded_max: int = DICTIONARIES_LOADED_MAX) -> None:
        self.loaded_max = loaded_max
        self._loaded: dict[int, Dictionary] = {}

    @property
    def count(self) -> int:
        """How many are loaded; with its contexts each takes about 1 MiB."""
        return len(self._loaded)

    def find(self, number: int, load: Callable[[int], DictionaryRow]) -> Dictionary:
        """A dictionary by number.

        Args:
            number: As a segment names it.
            load: Reads and checks a row.

        Raises:
            CorruptionError: It is missing or damaged.
        """
        found = self._loaded.get(number)
        if found is None:
            found = Dictionary(number, load(number))
            newest = list(self._loaded.items())[1 - self.loaded_max :]
            self._loaded = {**dict(newest), number: found}
        return found

    def clear(self) -> None:
        """Forget all: numbers may mean others by now."""
        self._loaded = {}


def train(samples: Sequence[bytes]) -> bytes | None:
    """A dictionary from samples, as large as they are worth; lets the GIL go meanwhile.

    Returns:
        None when there is too little to learn from.
    """
    total = sum(map(len, samples))
    size = min(DICTIONARY_BYTES_MAX, total // SAMPLES_PER_DICTIONARY)
    if size < DICTIONARY_BYTES_MIN:
        return None
    try:
        trained = train_dictionary(size, [*samples])
    except (ZstdError, MemoryError):
        return None  # samples that have nothing in common
    return trained.as_bytes() if trained.dict_id() else None


def compressed_bytes(contents: Iterable[bytes], data: bytes | None) -> int:
    """What contents take when compressed, with a dictionary or without."""
    dictionary = ZstdCompressionDict(data, dict_type=DICT_TYPE_FULLDICT) if data else None
    compressor = ZstdCompressor(level=LEVEL, dict_data=dictionary, write_content_size=True)
    return sum([len(compressor.compress(content)) for content in contents])
