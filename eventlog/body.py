"""Bodies: the caller's plain data ⇄ CBOR, type for type, pure.

Invariants:
    1. What is accepted comes back equal and of the same types: str, bytes, int in −2⁶³ … 2⁶⁴−1,
       float (NaN keeps its bits), bool, None, list, dict with str keys. All else is refused.
    2. Depth and size are checked before encoding: cbor2 kills the process far beyond the limit.
    3. No CBOR tags. What CBOR text or cbor2's floats cannot carry (a lone surrogate, a NaN with a
       payload) is stored as a byte string, and its path is one of the body's *fixes*.

A fix is a list ``[what, *path]``: ``"s"`` a str from surrogatepass UTF-8, ``"f"`` a float from
8 big-endian bytes, ``"k"`` a dict key (the last path element) from surrogatepass UTF-8. Path
elements are list indexes and dict keys *as encoded*.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import Any, Final, NoReturn, cast

from cbor2 import CBORDecodeError, CBOREncoder, loads, undefined

from eventlog.arguments import shown
from eventlog.errors import CorruptionError, InvalidMessageError, LimitExceededError
from eventlog.limits import BODY_BYTES_MAX, DEPTH_MAX, INT_MAX, INT_MIN

_DOUBLE: Final = Struct(">d")
_PLAIN_NAN: Final = bytes.fromhex("7ff8000000000000")
_TEXT: Final = 3 << 5  # major types, where they stand in an item's first byte
_ARRAY: Final = 4 << 5
_UNDEFINED: Final = b"\xf7"
_MAP: Final = 5 << 5
_DOUBLE_FOLLOWS: Final = b"\xfb"
_SCALARS: Final = frozenset({str, bytes, int, float, bool, type(None)})

Fixes = list[list[Any]]


class _Encoders(threading.local):
    """One reused encoder of each kind per thread: cbor2's are not safe to share."""

    def __init__(self) -> None:
        self.plain = CBOREncoder(io.BytesIO()).encode_to_bytes
        self.canonical = CBOREncoder(io.BytesIO(), canonical=True).encode_to_bytes


_encoders: Final = _Encoders()


def _refuse_tag(*_: object) -> NoReturn:
    raise ValueError("it holds a CBOR tag")


# Every tag that cbor2 decodes by itself; for any other it asks ``tag_hook``.
_KNOWN_TAGS: Final = (
    *(0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37),
    *(52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799),
)
_NO_TAGS: Final = dict.fromkeys(_KNOWN_TAGS, _refuse_tag)


class _Refused(Exception):
    """A value that cannot be stored; collects its path, innermost first, while unwinding."""

    def __init__(self, reason: str, limit: tuple[str, int, int] | None = None) -> None:
        self.reason = reason
        self.limit = limit
        self.path: list[object] = []


def encode_body(
    value: object,
    *,
    root: str = "$",
    bytes_max: int = BODY_BYTES_MAX,
    limit: str = "BODY_BYTES_MAX",
) -> tuple[bytes, Fixes | None]:
    """Encode plain data.

    Args:
        value: The data; it is read at once and never kept.
        root: How the value is called in error paths.
        bytes_max: Bound on the encoded size.
        limit: The bound's name in ``limits``.

    Returns:
        The CBOR bytes and the fixes, None when there are none.

    Raises:
        InvalidMessageError: A value, key or type that cannot be stored, with its path.
        LimitExceededError: Too deep or too large, with its path.
    """
    size = _plain_size(value, 0, bytes_max)
    if 0 <= size <= bytes_max:
        try:
            data: bytes = _encoders.plain(value)
        except UnicodeEncodeError:
            pass  # a lone surrogate: the careful way below keeps it
        else:
            if len(data) > bytes_max:
                raise _too_large(root, len(data), bytes_max, limit)
            return data, None
    size = _measure(value, root, bytes_max)
    if size > bytes_max:
        raise _too_large(root, size, bytes_max, limit)
    fixes: Fixes = []
    data = _encoders.plain(_fixed(value, [], fixes))
    if len(data) > bytes_max:
        raise _too_large(root, len(data), bytes_max, limit)
    return data, fixes or None


def encode_plain(value: object) -> bytes:
    """Encode data that is known to be storable and without fixes (our own rows and maps)."""
    data: bytes = _encoders.plain(value)
    return data


def canonical_bytes(data: bytes, fixes: Fixes | None = None, *, is_ours: bool = False) -> bytes:
    """The canonical form of an encoded body: one for all encodings of one value.

    As RFC 8949, 4.2.3, and what CBOR cannot carry in the place where it belongs: lone surrogates
    in text like other code points, and a NaN that has bits of its own as eight bytes.

    Args:
        data: An encoded body.
        fixes: Its fixes.
        is_ours: Whether ``encode_body`` gave the data; it is then often canonical as it stands.

    Raises:
        CorruptionError: As for ``decode_body``.
    """
    if is_ours and fixes is None:
        value = loads(data)
        if type(value) is dict and _is_canonical(value):
            return data
    else:
        value = decode_body(data, fixes)
        require_plain(value, where="body")
        if fixes is not None or _plain_size(value, 0, BODY_BYTES_MAX) < 0:
            return _canonical(value)
    encoded: bytes = _encoders.canonical(value)
    return encoded


def _canonical(value: Any) -> bytes:
    """The careful way, for what cbor2 would refuse or change."""
    kind = type(value)
    if kind is str:
        text: bytes = value.encode("utf-8", "surrogatepass")
        return _canonical_head(_TEXT, len(text)) + text
    if kind is list:
        return _canonical_head(_ARRAY, len(value)) + b"".join([_canonical(each) for each in value])
    if kind is dict:
        items = [(_canonical(key), _canonical(item)) for key, item in value.items()]
        items.sort(key=lambda item: (len(item[0]), item[0]))
        return _canonical_head(_MAP, len(items)) + b"".join([key + item for key, item in items])
    if kind is float and value != value and (bits := _DOUBLE.pack(value)) != _PLAIN_NAN:
        return _DOUBLE_FOLLOWS + bits
    encoded: bytes = _encoders.canonical(value)
    return encoded


def _canonical_head(major: int, length: int) -> bytes:
    if length < 256:  # the usual ones without an encoder
        return bytes((major | length,)) if length < 24 else bytes((major | 24, length))
    head = encode_plain(length)
    return bytes([head[0] | major]) + head[1:]


def _is_canonical(value: dict[Any, Any]) -> bool:
    """True for a flat dict of str that was encoded canonically as it stands: the usual message."""
    before = ""
    size_before = -1
    for key, item in value.items():
        if type(item) is not str or type(key) is not str or not key.isascii():
            return False
        size = len(key)
        if size <= size_before and (size < size_before or key < before):
            return False
        before = key
        size_before = size
    return True


def decode_body(data: bytes, fixes: Fixes | None = None, *, where: object = "body") -> Any:
    """Decode what ``encode_body`` gave; ``where`` is asked for its text only in an error.

    Raises:
        CorruptionError: The bytes are not CBOR without tags, or a fix leads nowhere.
    """
    try:
        value = loads(data, semantic_decoders=_NO_TAGS, tag_hook=_refuse_tag)
        return value if fixes is None else _unfixed(value, fixes)
    except (CBORDecodeError, TypeError, ValueError) as error:
        raise CorruptionError(f"body does not decode: {error}", where=f"{where}") from error


def decode_side_by_side(count: int, encoded: Sequence[bytes]) -> list[Any] | None:
    """Decode bodies that lie side by side, as one array; None when they are not so many.

    Args:
        count: How many bodies.
        encoded: What ``encode_body`` gave for them, without fixes, joined in any way.
    """
    # After the last one comes what no body holds: a body that is longer or shorter than it
    # should be moves it to another place.
    head = _canonical_head(_ARRAY, count + 1)
    try:
        values: list[Any] = loads(
            b"".join((head, *encoded, _UNDEFINED)),
            semantic_decoders=_NO_TAGS,
            tag_hook=_refuse_tag,
        )
    except (CBORDecodeError, TypeError, ValueError):
        return None
    return values if values.pop() is undefined else None


def require_plain(value: Any, *, where: object) -> None:
    """Check a decoded value: nothing that ``encode_body`` would have refused.

    A record's checksum vouches for what a writer of this format wrote, so readers do without.

    Raises:
        CorruptionError: Something else stands in it.
    """
    try:
        _require_plain(value, 0)
    except (TypeError, ValueError) as error:
        raise CorruptionError(f"body does not decode: {error}", where=f"{where}") from error


def decode_marks(data: bytes, *, where: object) -> dict[int, Any]:
    """Decode a map of ours whose keys are numbers.

    Raises:
        CorruptionError: The bytes are not CBOR of such a map.
    """
    try:
        value = loads(data, semantic_decoders=_NO_TAGS, tag_hook=_refuse_tag)
        if type(value) is not dict:
            raise TypeError("it is no map")
        for key, item in value.items():
            if type(key) is not int:
                raise TypeError(f"it has a key of type {type(key).__name__}")
            if type(item) not in _SCALARS:
                _require_plain(item, 1)
    except (CBORDecodeError, TypeError, ValueError) as error:
        raise CorruptionError(f"extension does not decode: {error}", where=f"{where}") from error
    return value


def _require_plain(value: Any, depth: int) -> None:
    """Raise for anything that ``encode_body`` would have refused."""
    kind = type(value)
    if kind is not dict and kind is not list:
        if kind not in _SCALARS:
            raise TypeError(f"it holds a {kind.__name__}")
        if kind is int and value < INT_MIN:
            raise ValueError("it holds an int below -2**63")
        return
    if depth == DEPTH_MAX:
        raise ValueError(f"it is nested deeper than {DEPTH_MAX} levels")
    if kind is dict:
        for key in value:
            if type(key) is not str:
                raise TypeError(f"it has a key of type {type(key).__name__}")
        value = value.values()
    for item in value:
        kind = type(item)
        if kind not in _SCALARS or (kind is int and item < INT_MIN):
            _require_plain(item, depth + 1)


def _plain_size(value: object, depth: int, bytes_max: int) -> int:
    """A lower bound of the encoded size; -1 for anything that needs a closer look.

    Stops once the bound is passed: a list that holds one child many times over, level by level,
    would otherwise be walked for ever.

    The quick way for what is nearly always given: one call per container, none per value.
    """
    if depth == DEPTH_MAX:
        return -1
    size = 0
    items: Iterable[object]
    if type(value) is dict:
        items = value.values()
        for key in value:
            if type(key) is not str:
                return -1
            size += len(key)
    elif type(value) is list:
        items = value
    else:
        return -1
    size += len(value) + 1
    for item in items:
        kind = type(item)
        if kind is str:
            size += len(item)
        elif kind is dict or kind is list:
            inner = _plain_size(item, depth + 1, bytes_max - size)
            if inner < 0:
                return -1
            size += inner
            if size > bytes_max:
                return size
        elif kind is int:
            if not INT_MIN <= item <= INT_MAX:
                return -1
        elif kind is bytes:
            size += len(item)
        elif kind is float:
            if item != item:
                return -1
        elif item is not None and kind is not bool:
            return -1
    return size


def _too_large(path: str, actual: int, limit: int, name: str) -> LimitExceededError:
    return LimitExceededError(
        f"{path}: {actual:,} bytes encoded; at most {limit:,} are allowed",
        name=name,
        actual=actual,
        limit=limit,
        path=path,
    )


def _measure(value: object, root: str, bytes_max: int) -> int:
    """Check every value; the result is a lower bound of the encoded size in bytes."""
    try:
        return _walk(value, 0, bytes_max)
    except _Refused as refused:
        path = root + "".join(
            f"[{shown(step)}]" if isinstance(step, int) else f".{_printable(step)}"
            for step in reversed(refused.path)
        )
        if refused.limit is None:
            raise InvalidMessageError(refused.reason, path=path) from None
        name, actual, limit = refused.limit
        raise LimitExceededError(
            f"{path}: {refused.reason}", name=name, actual=actual, limit=limit, path=path
        ) from None


def _printable(step: object) -> str:
    text = str(step)
    return text if text.isidentifier() else ascii(text)


def _walk(value: object, depth: int, bytes_max: int) -> int:
    kind = type(value)
    if kind is str:
        return len(value) + 1  # type: ignore[arg-type]
    if kind is int:
        if not INT_MIN <= value <= INT_MAX:  # type: ignore[operator]
            raise _Refused("int out of the range -2**63 to 2**64-1")
        return 1
    if value is None or kind is bool or kind is float:
        return 1
    if kind is bytes:
        return len(value) + 1  # type: ignore[arg-type]
    if kind is not dict and kind is not list:
        raise _Refused(f"type {kind.__name__} cannot be stored")
    if depth == DEPTH_MAX:
        raise _Refused(
            f"nested deeper than {DEPTH_MAX} levels", ("DEPTH_MAX", depth + 1, DEPTH_MAX)
        )
    size = 1
    step: object = None
    try:
        if kind is dict:
            for step, item in value.items():  # type: ignore[attr-defined]
                if type(step) is not str:
                    raise _Refused(f"key of type {type(step).__name__}; keys must be str")
                size += len(step) + 1 + _walk(item, depth + 1, bytes_max)
                if size > bytes_max:
                    break
        else:
            for step, item in enumerate(cast("list[object]", value)):  # noqa: B007 - for the path
                size += _walk(item, depth + 1, bytes_max)
                if size > bytes_max:
                    break
    except _Refused as refused:
        refused.path.append(step)
        raise
    return size


def _fixed(value: Any, path: list[Any], fixes: Fixes) -> Any:
    """The value as it is encoded; copies only what has to change."""
    kind = type(value)
    if kind is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            fixes.append(["s", *path])
            return value.encode("utf-8", "surrogatepass")
        return value
    if kind is float:
        if value != value and _DOUBLE.pack(value) != _PLAIN_NAN:
            fixes.append(["f", *path])
            return _DOUBLE.pack(value)
        return value
    if kind is list:
        changed = value
        for index, item in enumerate(value):
            path.append(index)
            fixed = _fixed(item, path, fixes)
            path.pop()
            if fixed is not item:
                if changed is value:
                    changed = list(value)
                changed[index] = fixed
        return changed
    if kind is dict:
        return _fixed_dict(value, path, fixes)
    return value


def _fixed_dict(value: dict[str, Any], path: list[Any], fixes: Fixes) -> dict[Any, Any]:
    changed: dict[Any, Any] = {}
    same = True
    for key, item in value.items():
        stored: Any = key
        try:
            key.encode()
        except UnicodeEncodeError:
            stored = key.encode("utf-8", "surrogatepass")
        path.append(stored)
        fixed = _fixed(item, path, fixes)
        if stored is not key:
            fixes.append(["k", *path])
        path.pop()
        same = same and fixed is item and stored is key
        changed[stored] = fixed
    return value if same else changed


def _unfixed(value: Any, fixes: Fixes) -> Any:
    root = [value]
    renamed: list[tuple[list[Any], Any]] = []
    if type(fixes) is not list:
        raise TypeError("its fixes are no list")
    for fix in fixes:
        if type(fix) is not list or not fix:
            raise TypeError("one of its fixes is no list")
        what, *path = fix
        holder: Any = root
        step: Any = 0
        for following in path:
            holder, step = _child(holder, step), following
        if what == "k":
            if holder is root or type(holder) is not dict:
                raise ValueError("a fix renames a key of what is no dict")
            renamed.append((path, holder))
            continue
        stored = _child(holder, step)
        if type(stored) is not bytes:
            raise ValueError("a fix leads to what is no byte string")
        if what == "s":
            holder[step] = stored.decode("utf-8", "surrogatepass")
        elif what == "f" and len(stored) == _DOUBLE.size:
            holder[step] = _DOUBLE.unpack(stored)[0]
        else:
            raise ValueError(f"unknown fix {what!r} of {len(stored)} bytes")
    # Deepest first and last of all, since paths name keys as they were encoded.
    for path, holder in sorted(renamed, key=lambda each: len(each[0]), reverse=True):
        key = path[-1]
        if type(key) is not bytes or key not in holder:
            raise ValueError("a fix renames a key that is not there")
        items = [
            (k.decode("utf-8", "surrogatepass") if k == key else k, v) for k, v in holder.items()
        ]
        holder.clear()
        holder.update(items)
    return root[0]


def _child(holder: Any, step: Any) -> Any:
    """What a step of a fix's path leads to."""
    if type(holder) is list and type(step) is int and 0 <= step < len(holder):
        return holder[step]
    if type(holder) is dict and type(step) in (str, bytes) and step in holder:
        return holder[step]
    raise ValueError("a fix leads nowhere")
