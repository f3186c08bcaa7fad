"""Drafting: what a caller gives becomes encoded drafts and an ack, on the caller's thread.

Invariants:
    1. Everything is validated and encoded here, so a bad message fails at the call, and what the
       caller changes afterwards changes nothing.
    2. Of an append over several events all are encoded before any is queued.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from engine.boundary import check_compaction
from engine.kinds import APPLICATION, COMPACTION, ROLES, is_indexable, kind_code
from engine.spaces import SPACES
from engine.variables import check_change
from eventlog.ack import Ack, Beginning, Draft, Removal, Terms, Version, event_of
from eventlog.arguments import shown, whole
from eventlog.body import Fixes, encode_body, encode_plain
from eventlog.content import fingerprint_of
from eventlog.errors import (
    InvalidMessageError,
    InvalidNameError,
    LimitExceededError,
    UsageError,
)
from eventlog.index import Name
from eventlog.keys import name_bytes
from eventlog.limits import (
    BATCH_BYTES_MAX,
    BATCH_EVENTS_MAX,
    BODY_BYTES_MAX,
    EVENT_BLOBS_MAX,
    INT_MAX,
    KEY_BYTES_MAX,
    MAX_MESSAGES_MAX,
    METADATA_BYTES_MAX,
    POSITION_MAX,
    SESSION_BRANCHES_MAX,
    SNAPSHOT_FREQUENCY_MAX,
    TIME_MAX,
)
from eventlog.record import (
    BASE,
    BELONGS,
    BRANCH_NAME,
    CONTROL,
    HEAD_MOVE,
    MESSAGE,
    NO_TIME,
    Extension,
    Flag,
    branch_tail,
    can_be_redacted,
    encode_tail,
)

AckMode = Literal["durable", "queued"]

# As plain ints: an enum's arithmetic and hashing would be half of a keyed append.
_ID: Final = int(Extension.ID)
_METADATA: Final = int(Extension.METADATA)
_RUN_ID: Final = int(Extension.RUN_ID)
_TURN_ID: Final = int(Extension.TURN_ID)
_SPEECH_ID: Final = int(Extension.SPEECH_ID)
_REQUEST_ID: Final = int(Extension.REQUEST_ID)
_KIND_NAME: Final = int(Extension.KIND_NAME)
_BODY_FIXES: Final = int(Extension.BODY_FIXES)
_METADATA_FIXES: Final = int(Extension.METADATA_FIXES)
_BLOBS: Final = int(Extension.BLOBS)
_NAMED: Final = int(Flag.NAMED)
_HAS_BLOBS: Final = int(Flag.HAS_BLOBS)
_INDEXABLE: Final = int(Flag.INDEXABLE)
_REDACTED: Final = int(Flag.REDACTED)

_TOKENS_MAX: Final = 2**32 - 1
_FOLLOWING: Final = frozenset({HEAD_MOVE, BRANCH_NAME, *BELONGS})  # controls with a parent
FORKS: Final = 1  # the branch of a drafted move of the head that forks


@dataclass(frozen=True, slots=True)
class Part:
    """One session's share of ``append_batch``.

    Attributes:
        name: Tenant and session name.
        drafts: Its events; none when the session is only read for its condition.
        opening: Facts given if this creates the session.
        expected_head: Sequence that must be its head, -1 for an empty session, None for any.
        versions: What keys of its spaces must be.
    """

    name: Name
    drafts: tuple[Draft, ...]
    opening: Any
    expected_head: int | None
    versions: tuple[Version, ...] = ()


_PLAIN_TAILS: Final = {
    role: encode_tail(
        MESSAGE, role, int(Flag.INDEXABLE) if is_indexable(MESSAGE, role) else 0, NO_TIME, 0, 0
    )
    for role in (0, *ROLES.values())
}
_PLAIN_BY_NAME: Final = {name: _PLAIN_TAILS[role] for name, role in ROLES.items()}
_NO_ROLE: Final = _PLAIN_TAILS[0]


def plain_tail(message: dict[str, Any]) -> bytes:
    """The header's tail of a message that comes without options."""
    role = message.get("role")
    return _PLAIN_BY_NAME.get(role, _NO_ROLE) if type(role) is str else _NO_ROLE


def draft_message(message: dict[str, Any]) -> Draft:
    """Encode a message that comes without options."""
    if type(message) is not dict:
        raise InvalidMessageError(f"a message must be a dict, not {_type(message)}", path="$")
    body, fixes = encode_body(message)
    if fixes is not None:
        return draft_event("message", message)
    return Draft(plain_tail(message), body)


def draft_event(
    kind: str,
    body: object,
    *,
    id: str | None = None,
    metadata: dict[str, Any] | None = None,
    time_us: int | None = None,
    tokens: int | None = None,
    run_id: str | None = None,
    turn_id: str | None = None,
    speech_id: str | None = None,
    request_id: str | None = None,
    blobs: Sequence[bytes] = (),
    parent: int | str | None = None,
    parent_branch: int | None = None,
    recorded_us: int | None = None,
    past: int | str | None = None,
    loading: bool = False,
    redacted: bool = False,
    role: str | None = None,
) -> Draft:
    """Encode one event of any kind with all that can be said about it.

    A compaction that is not loaded from an export must come after the last event that it covers. An
    event that was redacted elsewhere has no content, and the role that it had there.

    Raises:
        InvalidMessageError: Body or metadata cannot be stored; names the path.
        InvalidNameError: An id or the kind is no legal name.
        LimitExceededError: Too large or too deep.
        UsageError: A time or token count out of range, or a control kind.
    """
    if len(blobs) > EVENT_BLOBS_MAX:
        raise LimitExceededError(
            f"{len(blobs)} blobs of one event; at most {EVENT_BLOBS_MAX} are allowed",
            name="EVENT_BLOBS_MAX",
            actual=len(blobs),
            limit=EVENT_BLOBS_MAX,
        )
    code = kind_code(kind, loading=loading)
    if redacted and not can_be_redacted(code):
        raise UsageError(f"an event of kind {kind!r} cannot be redacted")
    if code == MESSAGE and type(body) is not dict and not redacted:
        raise InvalidMessageError(f"a message must be a dict, not {_type(body)}", path="$")
    marks: dict[int, Any] = {}  # filled in the order of its keys
    flags = 0
    if id is not None:
        _check_caller_id(id)
        marks[_ID] = id
        flags |= _NAMED
    if code in SPACES:
        check_change(body)
    elif code == COMPACTION and not loading:
        past = check_compaction(body) if past is None else past
    if parent is not None:
        check_parent(parent)
    bytes_max = BATCH_BYTES_MAX if code == BASE else BODY_BYTES_MAX
    encoded, fixes = encode_body(body, bytes_max=bytes_max)
    metadata_fixes: Fixes | None = None
    if metadata is not None:
        if type(metadata) is not dict:
            raise InvalidMessageError("metadata must be a dict", path="$metadata")
        data, metadata_fixes = encode_body(
            metadata,
            root="$metadata",
            bytes_max=METADATA_BYTES_MAX,
            limit="METADATA_BYTES_MAX",
        )
        marks[_METADATA] = data
    if run_id is not None:
        marks[_RUN_ID] = _checked_text(run_id, "run_id")
    if turn_id is not None:
        marks[_TURN_ID] = _checked_text(turn_id, "turn_id")
    if speech_id is not None:
        marks[_SPEECH_ID] = _checked_text(speech_id, "speech_id")
    if request_id is not None:
        marks[_REQUEST_ID] = _checked_text(request_id, "request_id")
    if code == APPLICATION:
        marks[_KIND_NAME] = kind
    if fixes is not None:
        marks[_BODY_FIXES] = fixes
    if metadata_fixes is not None:
        marks[_METADATA_FIXES] = metadata_fixes
    if blobs:
        marks[_BLOBS] = list(blobs)
        flags |= _HAS_BLOBS
    given = body.get("role") if type(body) is dict else role
    role_code = ROLES.get(given, 0) if type(given) is str and code == MESSAGE else 0
    if redacted:
        flags |= _REDACTED
    elif is_indexable(code, role_code):
        flags |= _INDEXABLE
    extension = encode_plain(marks) if marks else b""
    tail = encode_tail(
        code,
        role_code,
        flags,
        NO_TIME if time_us is None else whole(time_us, "time_us", -TIME_MAX, TIME_MAX),
        0 if tokens is None else whole(tokens, "tokens", 0, _TOKENS_MAX),
        len(extension),
    )
    if code == HEAD_MOVE:
        tail = branch_tail(tail, FORKS if check_move(body, parent) else 0, None)
    elif code == BRANCH_NAME:
        check_naming(body)
    if parent is not None and (
        (code >= CONTROL and code not in _FOLLOWING)
        or (code in _FOLLOWING and code != HEAD_MOVE and parent == -1)
    ):
        raise UsageError(f"an event of kind {kind!r} follows no other")
    return Draft(
        tail,
        extension + encoded,
        len(extension),
        id,
        None if recorded_us is None else whole(recorded_us, "recorded_us", 0, TIME_MAX),
        tuple(blobs),
        parent,
        None
        if parent_branch is None
        else whole(parent_branch, "followed", 0, SESSION_BRANCHES_MAX - 1),
        past,
    )


def check_parent(parent: int | str) -> None:
    """Raise for what can be no parent: a sequence, -1 for none, or an event's id.

    Raises:
        UsageError: It is none.
    """
    if type(parent) is str:
        name_bytes(parent, "parent")
    else:
        whole(parent, "parent", -1, POSITION_MAX)


def check_move(body: Any, parent: int | str | None) -> bool:
    """Raise for what is no move of the head; whether it forks.

    Raises:
        UsageError: It is none; says why.
    """
    if parent is None:
        raise UsageError("a head_move needs the parent that becomes the head, or -1")
    if body is None:
        return False
    if type(body) is not dict or body != {"fork": True}:
        raise UsageError("the body of a head_move is None or {'fork': True}")
    return True


def check_naming(body: Any) -> None:
    """Raise for what is no body of a ``branch_name`` event.

    Raises:
        UsageError: It is none; says why.
    """
    if type(body) is not dict or not body or not body.keys() <= {"set", "delete"}:
        raise UsageError("a branch is named by a dict with 'set' or 'delete', a name")
    for name in body.values():
        name_bytes(name, "branch name")


def draft_control(code: int, body: object = None) -> Draft:
    """Encode an event of a control kind, as the store's own calls write them.

    Raises:
        LimitExceededError: The body is too large.
    """
    encoded, fixes = encode_body(body)
    extension = b"" if fixes is None else encode_plain({_BODY_FIXES: fixes})
    tail = encode_tail(code, 0, 0, NO_TIME, 0, len(extension))
    return Draft(tail, extension + encoded, len(extension))


def draft_base(body: object, blobs: Sequence[bytes] = ()) -> Draft:
    """Encode a ``base`` event; whatever variables a session has, it can be purged.

    Args:
        body: Its body.
        blobs: Addresses of the contents that stay named.
    """
    extension = encode_plain({_BLOBS: list(blobs)}) if blobs else b""
    tail = encode_tail(BASE, 0, _HAS_BLOBS if blobs else 0, NO_TIME, 0, len(extension))
    return Draft(tail, extension + encode_plain(body), len(extension), blobs=tuple(blobs))


def encode_opening(
    user_id: str | None,
    title: str | None,
    metadata: dict[str, Any] | None,
    snapshot_frequency: int | None = None,
    max_messages: int | None = None,
    account_id: str | None = None,
    agent_id: str | None = None,
    workspace: str | None = None,
) -> list[Any] | None:
    """Facts given at creation, as they are stored; None when there are none."""
    facts: dict[str, Any] = {}
    if user_id is not None:
        name_bytes(user_id, "user_id")
        facts["user_id"] = user_id
    if title is not None:
        if type(title) is not str:
            raise InvalidNameError(f"title must be a str, not {_type(title)}")
        facts["title"] = title
    if metadata is not None:
        if type(metadata) is not dict:
            raise InvalidMessageError("metadata must be a dict", path="$metadata")
        facts["metadata"] = metadata
    if snapshot_frequency is not None:
        facts["snapshot_frequency"] = whole(
            snapshot_frequency, "snapshot_frequency", 1, SNAPSHOT_FREQUENCY_MAX
        )
    if max_messages is not None:
        facts["max_messages"] = whole(max_messages, "max_messages", 1, MAX_MESSAGES_MAX)
    owners = (("account_id", account_id), ("agent_id", agent_id), ("workspace", workspace))
    for name, value in owners:
        if value is not None:
            name_bytes(value, name)
            facts[name] = value
    if not facts:
        return None
    data, fixes = encode_body(
        facts, root="$opening", bytes_max=METADATA_BYTES_MAX, limit="METADATA_BYTES_MAX"
    )
    return [data, fixes]


def make_ack(
    name: Name,
    drafts: Sequence[Draft],
    *,
    opening: Any,
    expected_head: int | None = None,
    expected_next: int | None = None,
    number: int | None = None,
    begin: Beginning | None = None,
    idempotency_key: str | None = None,
    said: Sequence[Draft] | None = None,
    mode: AckMode = "durable",
    create: bool = False,
    removal: Removal | None = None,
    only_existing: bool = False,
    versions: Sequence[Version] = (),
    removals: int | None = None,
) -> Ack:
    """Bind drafts of one session to the conditions of their append; without any it writes nothing.

    A key stands for ``said``, where that is less than what the drafts say.

    Raises:
        LimitExceededError: More events or bytes than one batch may hold.
        UsageError: A condition that makes no sense.
    """
    # A purge is not refused for what its session has.
    byte_count = sum([draft.size for draft in drafts]) if removal else _check_size(drafts)
    last_id = drafts[-1].caller_id if drafts else None
    terms = Terms(
        expected_head=_checked_head(expected_head),
        expected_next=expected_next,
        number=number,
        begin=begin,
        key=_checked_key(idempotency_key),
        content=b"" if idempotency_key is None else fingerprint_of(said or drafts),
        create=create,
        only_existing=only_existing,
        named=last_id is not None or any([draft.caller_id is not None for draft in drafts]),
        linked=_is_linked(drafts),
        refers=any([draft.blobs for draft in drafts]),
        caller_id=last_id,
        queued=_is_queued(mode),
        removal=removal,
        versions=versions,
        removals=removals,
    )
    return Ack(
        name,
        byte_count,
        opening=opening,
        drafts=drafts,
        terms=terms,
        event_count=max(1, len(drafts)),  # one that writes nothing takes a place in the queue too
    )


def make_batch_ack(parts: Sequence[Part], *, mode: AckMode = "durable") -> Ack:
    """Bind the parts of several sessions of one tenant into one atomic append."""
    for part in parts:
        if type(part) is not Part:
            raise UsageError(f"parts must be what session.draft(...) gives, not {shown(part)}")
    if not parts:
        raise UsageError("append_batch needs at least one part")
    if len({part.name[0] for part in parts}) != 1:
        raise UsageError("append_batch spans sessions of one tenant only")
    drafts = [draft for part in parts for draft in part.drafts]
    if not drafts:
        raise UsageError("append_batch needs at least one event")
    byte_count = _check_size(drafts)
    named = any([draft.caller_id is not None for draft in drafts])
    acks = [
        Ack(
            part.name,
            byte_count,
            opening=part.opening,
            drafts=part.drafts,
            terms=Terms(
                expected_head=_checked_head(part.expected_head),
                named=any([draft.caller_id is not None for draft in part.drafts]),
                linked=_is_linked(part.drafts),
                versions=part.versions,
            ),
            event_count=len(part.drafts),
        )
        for part in parts
    ]
    first = acks[0]
    assert first.terms is not None
    first.terms.named = named
    first.terms.refers = any([draft.blobs for draft in drafts])
    first.terms.caller_id = drafts[-1].caller_id
    first.terms.queued = _is_queued(mode)
    first.terms.more = acks[1:]
    first.event_count = len(drafts)
    return first


def _is_linked(drafts: Sequence[Draft]) -> bool:
    return any([draft.parent is not None or draft.past is not None for draft in drafts])


def _check_size(drafts: Sequence[Draft]) -> int:
    if len(drafts) > BATCH_EVENTS_MAX:
        raise LimitExceededError(
            f"{len(drafts):,} events in one batch; at most {BATCH_EVENTS_MAX:,} are allowed",
            name="BATCH_EVENTS_MAX",
            actual=len(drafts),
            limit=BATCH_EVENTS_MAX,
            hint="Use store.load for long imports; it commits in pieces.",
        )
    byte_count = 0
    for draft in drafts:
        byte_count += draft.size
    if byte_count > BATCH_BYTES_MAX:
        raise LimitExceededError(
            f"{byte_count:,} bytes in one batch; at most {BATCH_BYTES_MAX:,} are allowed",
            name="BATCH_BYTES_MAX",
            actual=byte_count,
            limit=BATCH_BYTES_MAX,
        )
    return byte_count


def _is_queued(mode: object) -> bool:
    if type(mode) is str and mode in ("durable", "queued"):
        return mode == "queued"
    raise UsageError(f"ack must be 'durable' or 'queued', not {shown(mode)}")


def _checked_head(expected: int | None) -> int | None:
    if expected is None:
        return None
    return whole(expected, "expected_head", -1, INT_MAX)


def _checked_key(key: str | None) -> str | None:
    if key is None:
        return None
    if type(key) is not str:
        raise InvalidNameError(f"idempotency_key must be a str, not {_type(key)}")
    if len(key) > KEY_BYTES_MAX:
        raise InvalidNameError(
            f"idempotency_key has {len(key):,} characters; allowed are 1 to {KEY_BYTES_MAX} "
            "UTF-8 bytes"
        )
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise InvalidNameError("idempotency_key holds a lone surrogate") from error
    if not 1 <= size <= KEY_BYTES_MAX:
        raise InvalidNameError(
            f"idempotency_key has {size} UTF-8 bytes; allowed are 1 to {KEY_BYTES_MAX}"
        )
    return key


def _checked_text(text: str, what: str) -> str:
    name_bytes(text, what)
    return text


def _check_caller_id(caller_id: str) -> None:
    name_bytes(caller_id, "id")
    if event_of(caller_id) is not None:
        raise InvalidNameError(f"id {caller_id!r} has the form of ids made by the store")


def _type(value: object) -> str:
    return type(value).__name__
