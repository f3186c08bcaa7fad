"""A store without a disk: admission against dictionaries, for tests and for FORMAT.md's example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.drafting import draft_event, draft_message, encode_opening, make_ack
from eventlog.ack import Ack, Draft, settle
from eventlog.admission import Admission
from eventlog.errors import TurnlogError
from eventlog.index import LooseIndex, Name, SessionState
from eventlog.keys import U64
from eventlog.plan import Plan
from eventlog.record import Record, decode_record
from eventlog.rows import NO_LINK, SECRET_BYTES, KeyedResult, SessionRow

SECRET = bytes(range(SECRET_BYTES))
START_US = 1_700_000_000_000_000  # 2023-11-14T22:13:20Z
STEP_US = 1_500_000


class Memory:
    """The lookups of one write transaction (``admission.Lookups``), over dictionaries."""

    def __init__(self, index: LooseIndex) -> None:
        self.index = index
        self.names: dict[Name, int] = {}
        self.rows: dict[int, SessionRow] = {}
        self.tenants: dict[str, tuple[int, bytes]] = {}
        self.keys: dict[tuple[int, bytes], KeyedResult] = {}
        self.ids: dict[bytes, tuple[int, int]] = {}
        self.sealed_events: dict[tuple[int, int], Record] = {}
        self.gone: set[int] = set()
        self.numbers = 0
        self.removals = 0
        self.calls: list[str] = []

    def find_session(self, name: Name) -> tuple[int, SessionRow] | None:
        self.calls.append("find_session")
        number = self.names.get(name)
        return None if number is None else (number, self.load_row(number))

    def load_row(self, number: int) -> SessionRow:
        self.calls.append("load_row")
        return self.rows[number]

    def find_key(self, number: int, digest: bytes) -> KeyedResult | None:
        self.calls.append("find_key")
        return self.keys.get((number, digest))

    def find_ids(self, hashes: list[bytes]) -> dict[bytes, tuple[int, int]]:
        self.calls.append("find_ids")
        return {hashed: self.ids[hashed] for hashed in hashes if hashed in self.ids}

    def read_event(self, number: int, sequence: int) -> Record | None:
        self.calls.append("read_event")
        state = self.index.states.get(number)
        if state is not None and sequence >= state.loose.base:
            place = sequence - state.loose.base
            value = state.loose.records[sequence]
            assert value is not None
            return decode_record(state.origin, state.loose.positions[place], value, Record)
        return self.sealed_events.get((number, sequence))

    def secret(self, name: str) -> bytes:
        return self.tenant_row(name)[1]

    def tenant(self, name: str) -> int:
        return self.tenant_row(name)[0]

    def tenant_row(self, name: str) -> tuple[int, bytes]:
        known = self.tenants.get(name)
        if known is None:
            number = len(self.tenants) + 1
            secret = bytes([byte ^ (number - 1) for byte in SECRET])
            known = self.tenants[name] = (number, secret)
        return known

    def put_state(self, number: int, rows: Sequence[tuple[int, bytes, bytes]]) -> None:
        assert not rows

    def require_readable(self, state: SessionState, floor: int, *, is_gone: bool) -> None:
        pass

    def first(self, state: SessionState) -> int:
        return state.row.first

    def is_void(self, number: int, sequence: int) -> bool:
        return number in self.gone

    def new_number(self) -> int:
        self.numbers += 1
        return self.numbers


class Ledger:
    """Commits batches one after the other, ``STEP_US`` apart, and keeps what they wrote."""

    def __init__(self, **limits: int) -> None:
        self.index = LooseIndex(**limits)
        self.memory = Memory(self.index)
        self.link = NO_LINK
        self.commits = 0
        self.values: list[bytes] = []
        self.block_links: dict[int, bytes] = {}

    @property
    def last_position(self) -> int:
        return len(self.values)

    def plan(self) -> Plan:
        """An empty plan of the next commit."""
        return Plan(
            first=self.last_position + 1,
            recorded_us=START_US + self.commits * STEP_US,
            link=self.link,
        )

    def admit(self, *batch: Ack) -> Plan:
        """Admit a batch and leave it at that."""
        plan = self.plan()
        Admission(self.index, self.memory, plan, nothing).admit(list(batch))
        return plan

    def commit(self, *batch: Ack) -> Plan:
        """Admit a batch, take it into memory and settle its acks."""
        plan = self.admit(*batch)
        for state in plan.created:
            self.memory.names[state.name] = state.number
            self.memory.rows[state.number] = state.row
        plan.merge(self.index, nothing)
        for key, value in plan.records:
            assert U64.unpack(key)[0] == self.last_position + 1
            self.values.append(value)
        self.link = plan.link
        self.block_links.update(plan.block_links)
        self.commits += 1
        settle([*plan.placed, *plan.repeated], refused=plan.refused)
        return plan

    def events(self, session: int) -> list[Record]:
        """All loose events of a session."""
        state = self.index.states[session]
        return [
            decode_record(state.origin, position, value, Record)
            for position, value in zip(
                state.loose.positions, state.loose.records.values(), strict=True
            )
            if value is not None
        ]


def append(
    session: str,
    *messages: dict[str, Any],
    tenant: str = "acme",
    drafts: Sequence[Draft] = (),
    user_id: str | None = None,
    ids: Sequence[str | None] = (),
    **conditions: Any,
) -> Ack:
    """An append of messages, or of drafts, to one session."""
    if not drafts:
        drafts = [draft_message(message) for message in messages]
        if ids:
            drafts = [
                draft_event("message", message, id=each)
                for message, each in zip(messages, ids, strict=True)
            ]
    opening = encode_opening(user_id, None, None) if user_id is not None else None
    return make_ack((tenant, session), drafts, opening=opening, **conditions)


def error_of(ack: Ack) -> TurnlogError:
    """Why a settled append was refused."""
    try:
        ack.result(0)
    except TurnlogError as error:
        return error
    raise AssertionError(f"{ack!r} was not refused")


def nothing() -> None:
    """Lets nobody go."""
