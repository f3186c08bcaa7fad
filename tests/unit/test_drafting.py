"""Drafting: everything is checked and encoded at the call, and limits are named."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.drafting import (
    Part,
    draft_event,
    draft_message,
    encode_opening,
    make_ack,
    make_batch_ack,
)
from engine.kinds import APPLICATION, PUBLIC, ROLES
from eventlog.ack import Draft, store_id
from eventlog.body import decode_body, decode_marks, encode_body
from eventlog.content import fingerprint_of
from eventlog.errors import (
    InvalidMessageError,
    InvalidNameError,
    LimitExceededError,
    UsageError,
)
from eventlog.limits import (
    BATCH_BYTES_MAX,
    BATCH_EVENTS_MAX,
    BODY_BYTES_MAX,
    DEPTH_MAX,
    KEY_BYTES_MAX,
    METADATA_BYTES_MAX,
    NAME_BYTES_MAX,
)
from eventlog.record import CONTROL, HEADER_BYTES, NO_TIME, TAIL, Extension, Flag
from tests.format.values import dicts, identical, nested, values

HI: dict[str, Any] = {"role": "user", "content": "Hi"}
NAME = ("t", "s")
MARKS = {
    "run_id": Extension.RUN_ID,
    "turn_id": Extension.TURN_ID,
    "speech_id": Extension.SPEECH_ID,
    "request_id": Extension.REQUEST_ID,
}


def marks(draft: Draft) -> dict[int, Any]:
    found = decode_marks(draft.extension, where="here") if draft.extension else {}
    return found


def fields(draft: Draft) -> dict[str, int]:
    names = ("given_us", "owner", "offset", "branch", "tokens", "kind", "role", "flags", "length")
    return dict(zip(names, TAIL.unpack(draft.tail), strict=True))


# Messages


@given(dicts)
def test_a_message_is_drafted_the_same_both_ways(message: dict[str, Any]) -> None:
    draft = draft_message(message)
    assert draft == draft_event("message", message)
    assert identical(decode_body(draft.body, marks(draft).get(Extension.BODY_FIXES)), message)
    assert draft.size == HEADER_BYTES + len(draft.payload)
    assert (draft.caller_id, draft.recorded_us) == (None, None)


@pytest.mark.parametrize("role", [*ROLES, "nobody", "", None, 7, ["user"], {"a": 1}, True])
def test_the_role_is_the_body_s(role: Any) -> None:
    message = {"role": role, "content": "x"}
    for draft in (draft_message(message), draft_event("message", message)):
        found = fields(draft)
        assert found["role"] == (ROLES.get(role, 0) if type(role) is str else 0)
        tool = role in ("tool", "toolResult")
        assert Flag(found["flags"]) == (Flag(0) if tool else Flag.INDEXABLE)
        assert (found["kind"], found["given_us"], found["tokens"]) == (1, NO_TIME, 0)


@pytest.mark.parametrize("message", [None, [], "text", 1, b"x", [("role", "user")]], ids=repr)
def test_a_message_is_a_dict(message: Any) -> None:
    for draft in (draft_message, lambda given_: draft_event("message", given_)):
        with pytest.raises(InvalidMessageError, match="must be a dict") as caught:
            draft(message)
        assert caught.value.path == "$"


def test_a_subclass_of_dict_is_no_message() -> None:
    class Mine(dict[str, Any]):
        pass

    with pytest.raises(InvalidMessageError, match="Mine"):
        draft_message(Mine(HI))


def test_a_bad_value_fails_at_the_call_with_its_path() -> None:
    with pytest.raises(InvalidMessageError) as caught:
        draft_message({"role": "user", "content": [{"when": {1}}]})
    assert caught.value.path == "$.content[0].when"


def test_what_the_caller_changes_afterwards_changes_nothing() -> None:
    message: dict[str, Any] = {"role": "user", "content": ["a"]}
    metadata = {"k": ["v"]}
    draft = draft_event("message", message, metadata=metadata)
    message["content"].append("b")
    metadata["k"].clear()
    assert decode_body(draft.body) == {"role": "user", "content": ["a"]}
    assert decode_body(marks(draft)[Extension.METADATA]) == {"k": ["v"]}


# Events


@given(st.sampled_from([*PUBLIC, "my.kind"]), values)
def test_an_event_of_any_kind_takes_any_body(kind: str, body: Any) -> None:
    if kind == "message" and type(body) is not dict:
        body = {"body": body}
    draft = draft_event(kind, body)
    assert draft.kind == PUBLIC.get(kind, APPLICATION)
    found = marks(draft)
    assert identical(decode_body(draft.body, found.get(Extension.BODY_FIXES)), body)
    assert found.get(Extension.KIND_NAME) == (None if kind in PUBLIC else kind)
    if kind != "message":
        assert fields(draft)["role"] == 0


def test_everything_that_can_be_said_about_an_event() -> None:
    draft = draft_event(
        "my.kind",
        {"x": "\ud800"},
        id="m-1",
        metadata={"y": "\udfff"},
        time_us=-5,
        tokens=2**32 - 1,
        run_id="r",
        turn_id="t",
        speech_id="s",
        request_id="q",
        recorded_us=9,
    )
    assert marks(draft) == {
        Extension.ID: "m-1",
        Extension.METADATA: encode_body({"y": "\udfff"})[0],
        Extension.RUN_ID: "r",
        Extension.TURN_ID: "t",
        Extension.SPEECH_ID: "s",
        Extension.REQUEST_ID: "q",
        Extension.KIND_NAME: "my.kind",
        Extension.BODY_FIXES: [["s", "x"]],
        Extension.METADATA_FIXES: [["s", "y"]],
    }
    assert list(marks(draft)) == sorted(marks(draft))
    found = fields(draft)
    assert (found["given_us"], found["tokens"], found["kind"]) == (-5, 2**32 - 1, APPLICATION)
    assert found["length"] == draft.extension_bytes == len(draft.extension)
    assert Flag(found["flags"]) == Flag.NAMED
    assert (draft.caller_id, draft.recorded_us) == ("m-1", 9)


def test_an_event_about_which_nothing_is_said_has_no_extension() -> None:
    assert draft_event("event", None).extension == b""
    assert marks(draft_event("message", HI, metadata={})) == {Extension.METADATA: b"\xa0"}


@pytest.mark.parametrize("kind", ["open"])
def test_control_kinds_are_refused_unless_loading(kind: str) -> None:
    with pytest.raises(UsageError):
        draft_event(kind, None)
    draft = draft_event(kind, None, loading=True)
    assert draft.kind >= CONTROL
    assert not fields(draft)["flags"] & Flag.INDEXABLE


# Bounds, at the edge and one past it


@pytest.mark.parametrize(
    ("option", "least", "most"),
    [
        ("time_us", -(2**63) + 1, 2**63 - 1),
        ("tokens", 0, 2**32 - 1),
        ("recorded_us", 0, 2**63 - 1),
    ],
)
def test_numbers_have_bounds(option: str, least: int, most: int) -> None:
    options: dict[str, Any]
    for good in (least, least + 1, most):
        options = {option: good}
        draft_event("message", HI, **options)
    for bad in (least - 1, most + 1):
        with pytest.raises(UsageError, match=f"{option} must be {least} to {most}, not {bad}"):
            options = {option: bad}
            draft_event("message", HI, **options)
    for kind in (1.5, "1", True, b"1"):
        with pytest.raises(UsageError, match=f"{option} must be an int, not {type(kind).__name__}"):
            draft_event("message", HI, **{option: kind})  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["id", *MARKS])
def test_ids_have_bounds(option: str) -> None:
    for good in ("x", "x" * NAME_BYTES_MAX, "é" * 256, "a\x00b", "../%😀"):
        options: dict[str, Any] = {option: good}
        draft = draft_event("message", HI, **options)
        assert marks(draft) == {MARKS.get(option, Extension.ID): good}
    bad: Any
    for bad in ("", "x" * (NAME_BYTES_MAX + 1), "é" * 256 + "x", "\ud800", b"x", 7):
        with pytest.raises(InvalidNameError, match=option):
            draft_event("message", HI, **{option: bad})


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_ids_that_look_like_the_store_s_are_refused(number: int, sequence: int) -> None:
    with pytest.raises(InvalidNameError, match="form of ids made by the store"):
        draft_event("message", HI, id=store_id(number, sequence))


@pytest.mark.parametrize(
    "caller_id",
    [
        pytest.param("2a.000000000", id="nine-digits"),
        pytest.param(".0000000000", id="no-number"),
        pytest.param("2A.0000000000", id="upper-case"),
        pytest.param("2g.0000000000", id="no-hex"),
        pytest.param("2a.000000000x", id="no-digit"),
        pytest.param("2a.٠٠٠٠٠٠٠٠٠٠", id="other-digits"),
        pytest.param("2a.0000000000.1", id="longer"),
        pytest.param("0000000000", id="no-dot"),
        pytest.param(" 2a.0000000000", id="space"),
    ],
)
def test_ids_that_do_not_look_like_the_store_s_are_taken(caller_id: str) -> None:
    assert draft_event("message", HI, id=caller_id).caller_id == caller_id


def test_the_size_of_a_body() -> None:
    largest = {"c": "x" * (BODY_BYTES_MAX - 8)}
    assert len(draft_message(largest).body) == BODY_BYTES_MAX
    too_large = {"c": "x" * (BODY_BYTES_MAX - 7)}
    for draft in (draft_message, lambda body: draft_event("event", body)):
        with pytest.raises(LimitExceededError) as caught:
            draft(too_large)
        error = caught.value
        assert (error.name, error.actual, error.limit, error.path) == (
            "BODY_BYTES_MAX",
            BODY_BYTES_MAX + 1,
            BODY_BYTES_MAX,
            "$",
        )


def test_the_depth_of_a_body() -> None:
    draft_message({"a": nested(DEPTH_MAX - 1)})
    with pytest.raises(LimitExceededError) as caught:
        draft_message({"a": nested(DEPTH_MAX)})
    error = caught.value
    assert (error.name, error.actual, error.limit) == ("DEPTH_MAX", DEPTH_MAX + 1, DEPTH_MAX)


@pytest.mark.parametrize("what", ["metadata", "opening"])
def test_the_size_of_metadata(what: str) -> None:
    def give(metadata: dict[str, Any]) -> None:
        if what == "metadata":
            draft_event("message", HI, metadata=metadata)
        else:
            encode_opening(None, None, metadata)

    head = 8 if what == "metadata" else 8 + len(b"\xa1\x68metadata")
    give({"c": "x" * (METADATA_BYTES_MAX - head)})
    with pytest.raises(LimitExceededError) as caught:
        give({"c": "x" * (METADATA_BYTES_MAX - head + 1)})
    error = caught.value
    assert (error.actual, error.limit) == (METADATA_BYTES_MAX + 1, METADATA_BYTES_MAX)
    assert error.path == f"${what}"


@pytest.mark.parametrize("metadata", [[], "x", 1, b"", ()], ids=repr)
def test_metadata_is_a_dict(metadata: Any) -> None:
    with pytest.raises(InvalidMessageError, match=r"\$metadata") as caught:
        draft_event("message", HI, metadata=metadata)
    assert caught.value.path == "$metadata"
    with pytest.raises(InvalidMessageError):
        encode_opening(None, None, metadata)


def test_a_bad_value_in_metadata_has_its_path() -> None:
    with pytest.raises(InvalidMessageError) as caught:
        draft_event("message", HI, metadata={"a": [object()]})
    assert caught.value.path == "$metadata.a[0]"
    with pytest.raises(InvalidMessageError) as caught:
        encode_opening("u", None, {"a": [object()]})
    assert caught.value.path == "$opening.metadata.a[0]"


# Opening facts


def test_no_facts_are_no_opening() -> None:
    assert encode_opening(None, None, None) is None


@given(
    st.none() | st.just("u7"),
    st.none() | st.text(st.characters(), max_size=8),
    st.none() | dicts,
)
def test_opening_facts_come_back(
    user_id: str | None, title: str | None, metadata: dict[str, Any] | None
) -> None:
    stored = encode_opening(user_id, title, metadata)
    facts = {
        name: value
        for name, value in (("user_id", user_id), ("title", title), ("metadata", metadata))
        if value is not None
    }
    if not facts:
        assert stored is None
    else:
        assert stored is not None
        assert identical(decode_body(*stored), facts)


@pytest.mark.parametrize("user_id", ["", "x" * 513, 7, b"u", "\ud800"], ids=repr)
def test_a_user_has_a_name(user_id: Any) -> None:
    with pytest.raises(InvalidNameError, match="user_id"):
        encode_opening(user_id, None, None)


def test_a_title_is_text() -> None:
    with pytest.raises(InvalidNameError, match="title must be a str, not bytes"):
        encode_opening(None, b"title", None)  # type: ignore[arg-type]


# Acks


def ack_of(*drafts: Draft, **options: Any) -> Any:
    return make_ack(NAME, drafts or (draft_message(HI),), opening=None, **options)


def test_an_ack_knows_what_it_carries() -> None:
    drafts = [draft_message(HI), draft_event("message", HI, id="m")]
    ack = make_ack(NAME, drafts, opening=["facts"], expected_head=3, idempotency_key="k")
    assert (ack.name, ack.event_count, ack.opening) == (NAME, 2, ["facts"])
    assert ack.byte_count == sum(draft.size for draft in drafts)
    assert list(ack.all_drafts()) == drafts
    assert ack.terms is not None
    assert (ack.terms.expected_head, ack.terms.key, ack.terms.named) == (3, "k", True)
    assert ack.terms.caller_id == "m"
    assert ack.terms.content == fingerprint_of(drafts)
    assert not ack.queued


@pytest.mark.parametrize(("mode", "queued"), [("durable", False), ("queued", True)])
def test_ack_modes(mode: Any, queued: bool) -> None:
    assert ack_of(mode=mode).queued is queued


@pytest.mark.parametrize("mode", ["", "Durable", "none", None, True, 1], ids=repr)
def test_other_ack_modes_are_refused(mode: Any) -> None:
    with pytest.raises(UsageError, match="ack must be 'durable' or 'queued'"):
        ack_of(mode=mode)


@pytest.mark.parametrize("head", [-1, 0, 2**64 - 1])
def test_heads_that_can_be_expected(head: int) -> None:
    assert ack_of(expected_head=head).terms.expected_head == head


@pytest.mark.parametrize("head", [-2, 2**64, 1.0, "0", True], ids=repr)
def test_heads_that_make_no_sense(head: Any) -> None:
    with pytest.raises(UsageError, match="expected_head"):
        ack_of(expected_head=head)


def test_the_size_of_an_idempotency_key() -> None:
    for good in ("k", "k" * KEY_BYTES_MAX, "é" * (KEY_BYTES_MAX // 2), "\x00"):
        assert ack_of(idempotency_key=good).terms.key == good
    bad: Any
    for bad in ("", "k" * (KEY_BYTES_MAX + 1), "\ud800", b"k", 1):
        with pytest.raises(InvalidNameError, match="idempotency_key"):
            ack_of(idempotency_key=bad)


def test_the_events_of_a_batch() -> None:
    draft = draft_message({})
    assert ack_of(*[draft] * BATCH_EVENTS_MAX).event_count == BATCH_EVENTS_MAX
    with pytest.raises(LimitExceededError) as caught:
        ack_of(*[draft] * (BATCH_EVENTS_MAX + 1))
    error = caught.value
    assert (error.name, error.actual, error.limit) == (
        "BATCH_EVENTS_MAX",
        BATCH_EVENTS_MAX + 1,
        BATCH_EVENTS_MAX,
    )
    assert "load" in error.hint


@pytest.mark.parametrize("parts", [1, 2])
def test_the_bytes_of_a_batch(parts: int) -> None:
    half = BATCH_BYTES_MAX // 2 - HEADER_BYTES
    tail = draft_message(HI).tail

    def give(more: int) -> None:
        drafts = [Draft(tail, b"x" * half), Draft(tail, b"x" * (half + more))]
        if parts == 1:
            ack_of(*drafts)
        else:
            make_batch_ack(
                [
                    Part(("t", name), (draft,), None, None)
                    for name, draft in zip("ab", drafts, strict=True)
                ]
            )

    give(0)
    with pytest.raises(LimitExceededError) as caught:
        give(1)
    error = caught.value
    assert (error.name, error.actual, error.limit) == (
        "BATCH_BYTES_MAX",
        BATCH_BYTES_MAX + 1,
        BATCH_BYTES_MAX,
    )


# Batches over sessions


def part_of(session: str, *messages: dict[str, Any], tenant: str = "t", head: Any = None) -> Part:
    return Part((tenant, session), tuple(map(draft_message, messages)), None, head)


def test_a_batch_carries_its_parts() -> None:
    ack = make_batch_ack([part_of("a", HI, HI), part_of("b", head=4), part_of("c", HI)])
    assert (ack.name, ack.event_count) == (("t", "a"), 3)
    assert [part.name for part in ack.more] == [("t", "b"), ("t", "c")]
    assert [part.event_count for part in ack.more] == [0, 1]
    assert ack.more[0].terms is not None
    assert ack.more[0].terms.expected_head == 4
    assert ack.byte_count == 3 * draft_message(HI).size


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        pytest.param([], "at least one part", id="no-parts"),
        pytest.param([part_of("a"), part_of("b", head=0)], "at least one event", id="no-events"),
        pytest.param([part_of("a", HI), part_of("b", HI, tenant="u")], "one tenant", id="tenants"),
        pytest.param([part_of("a", HI), part_of("b", HI, head=-2)], "expected_head", id="head"),
    ],
)
def test_batches_that_make_no_sense(parts: list[Part], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        make_batch_ack(parts)


def test_a_batch_can_be_queued() -> None:
    assert make_batch_ack([part_of("a", HI)], mode="queued").queued
    assert not make_batch_ack([part_of("a", HI)]).queued
