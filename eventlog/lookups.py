"""What admission looks up in the open write transaction, and makes in it; tenants' secrets.

Invariants:
    1. ``TransactionLookups`` lives as long as its transaction; what it made is taken over by the
       writer after the commit only.
    2. A tenant's number and secret never change, so ``TenantSecrets`` outlives transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from eventlog.absent import require_absent
from eventlog.ack import Version
from eventlog.blobtable import References
from eventlog.branching import Opening
from eventlog.branchrows import sealed_opening, sealed_tip
from eventlog.digests import id_digest
from eventlog.errors import CorruptionError
from eventlog.index import LooseIndex, Name, SessionState
from eventlog.inline import InlineProjection, state_key
from eventlog.keys import U64
from eventlog.limits import NAMES_MAX
from eventlog.record import KIND_BYTE, Record, decode_record, verify_record
from eventlog.removal import require_readable
from eventlog.rows import (
    SECRET_BYTES,
    CommitRecord,
    KeyedResult,
    SessionRow,
    TenantRow,
    expose,
    protect,
)
from eventlog.seams import random_bytes
from eventlog.segmentcache import SegmentCache
from eventlog.tables import ReadTables, WriteTables


class TenantSecrets:
    """Numbers and secrets of tenants met lately; both never change."""

    def __init__(self, *, names_max: int = NAMES_MAX) -> None:
        self.names_max = names_max
        self.by_name: dict[str, tuple[int, bytes]] = {}
        self.by_number: dict[int, bytes] = {}

    def load(self, tables: ReadTables, name: str) -> tuple[int, bytes] | None:
        """Number and secret of a tenant, None when there is none."""
        known = self.by_name.get(name)
        if known is None:
            number = tables.find_tenant(name)
            if number is None:
                return None
            known = (number, self.secret(tables, number))
            if len(self.by_name) >= self.names_max:
                self.by_name.clear()
            self.by_name[name] = known
        return known

    def secret(self, tables: ReadTables, number: int) -> bytes:
        """Secret of a tenant by number."""
        secret = self.by_number.get(number)
        if secret is None:
            secret = tables.load_tenant(number).secret
            if len(self.by_number) >= self.names_max:
                self.by_number.clear()
            self.by_number[number] = secret
        return secret

    def id_hash(self, tables: ReadTables) -> Callable[[int, str], bytes]:
        """The function that ``LooseIndex.catch_up`` hashes callers' ids with."""
        return lambda number, caller_id: id_digest(self.secret(tables, number), caller_id)


_Versions = dict[tuple[int, bytes], int]  # sequence by projection and subkey, -1 for none


@dataclass(slots=True)
class _Newest:
    """Versions that loose events of a session make, each event looked at once in a batch.

    Attributes:
        placed: Of those in the plan.
        loose: Of those committed, as far back as was asked for.
        back: The others, newest first.
    """

    placed: _Versions
    loose: _Versions
    back: Iterator[tuple[int, bytes]]


class TransactionLookups:
    """The ``admission.Lookups`` of one write transaction."""

    def __init__(
        self,
        tables: WriteTables,
        index: LooseIndex,
        record: CommitRecord,
        secrets: TenantSecrets,
        cache: SegmentCache,
        projections: Sequence[InlineProjection],
    ) -> None:
        self._projections = projections
        self._newest: dict[SessionState, _Newest] = {}
        self._tables = tables
        self._index = index
        self._secrets = secrets
        self._cache = cache
        self._log = tables.hot_log(record)
        self.sessions_made = record.sessions_made
        self.tenants_made = record.tenants_made
        self.removals = record.removals
        self.new_tenants: dict[str, tuple[int, bytes]] = {}
        self._new_secrets: dict[str, bytes] = {}
        self._references: References | None = None  # only once an append has some

    def find_session(self, name: Name) -> tuple[int, SessionRow] | None:
        """See ``admission.Lookups``."""
        return self._tables.find_session(name)

    def find_key(self, number: int, digest: bytes) -> KeyedResult | None:
        """See ``admission.Lookups``."""
        return self._tables.find_key(number, digest)

    def find_ids(self, hashes: list[bytes]) -> dict[bytes, tuple[int, int]]:
        """See ``admission.Lookups``."""
        return self._tables.find_ids(hashes)

    def read_event(self, number: int, sequence: int) -> Record | None:
        """See ``admission.Lookups``."""
        state = self._index.states.get(number)
        if sequence < self._row(number).first:
            return None
        if state is not None and sequence >= state.loose.base:
            place = sequence - state.loose.base
            if place >= len(state.loose.positions):
                raise CorruptionError(
                    "an id leads past the last event", where=f"session {number}/{sequence}"
                )
            position = state.loose.positions[place]
            value = state.loose.records[sequence] or self._log.get(position)
            if value is None:
                raise CorruptionError("record is missing", where=f"log {position}")
            verify_record(U64.pack(position), value)
            return decode_record(state.origin, position, value, Record)
        return self._tables.read_event(number, sequence, self._cache)

    def tip(self, number: int, branch: int) -> int | None:
        """See ``admission.Lookups``."""
        return sealed_tip(self._tables, number, branch)

    def opening(self, number: int, branch: int) -> Opening | None:
        """See ``admission.Lookups``."""
        return sealed_opening(self._tables, number, branch)

    def version(
        self, state: SessionState, version: Version, placed: Sequence[tuple[int, bytes]]
    ) -> int:
        """See ``admission.Lookups``."""
        newest = self._newest.get(state)
        if newest is None:
            back = self._loose_back(state) if state.has_controls else iter(())
            newest = self._newest[state] = _Newest({}, {}, back)
        for sequence, value in placed:
            newest.placed.update(self._versions_in(state, sequence, value))
        wanted = (version.projection, version.subkey)
        found = newest.placed.get(wanted)
        if found is None:
            found = newest.loose.get(wanted)
        while found is None and (event := next(newest.back, None)) is not None:
            for made, sequence in self._versions_in(state, *event).items():
                newest.loose.setdefault(made, sequence)
            found = newest.loose.get(wanted)
        if found is not None:
            return found
        key = state_key(state.number, version.projection, version.subkey)
        row = self._tables.transaction.get(key, db=self._tables.tables["state"])
        if row is None:
            require_absent(self._tables.transaction, self._tables.tables["state"], "state", key)
            return -1
        projection = next(each for each in self._projections if each.number == version.projection)
        return projection.sequence_of(expose(key, row, f"state {key.hex()}"))

    def _versions_in(self, state: SessionState, sequence: int, value: bytes) -> _Versions:
        """The versions that one stored event makes."""
        if len(value) <= KIND_BYTE:
            return {}
        found: _Versions = {}
        for projection in self._projections:
            if value[KIND_BYTE] in projection.kinds:
                event = decode_record(state.origin, 0, value, Record)
                for subkey, content in projection.changes(event).items():
                    found[(projection.number, subkey)] = -1 if content is None else sequence
        return found

    def _loose_back(self, state: SessionState) -> Iterator[tuple[int, bytes]]:
        loose = state.loose
        for place in range(len(loose.positions) - 1, -1, -1):
            sequence = loose.base + place
            value = loose.records[sequence] or self._log.get(loose.positions[place])
            if value is not None:
                yield sequence, value

    def _row(self, number: int) -> SessionRow:
        state = self._index.states.get(number)
        if state is not None and state.row_epoch == self._index.epoch:
            return state.row
        return self._tables.load_row(number)

    def put_state(self, number: int, rows: Sequence[tuple[int, bytes, bytes]]) -> None:
        """See ``admission.Lookups``."""
        items = []
        for projection, subkey, content in rows:
            key = state_key(number, projection, subkey)
            items.append((key, protect(key, content)))
        if items:
            self._tables.put_state(sorted(items))

    def require_readable(self, state: SessionState, floor: int, *, is_gone: bool) -> None:
        """See ``admission.Lookups``."""
        if state.next:  # else this transaction makes it
            require_readable(self._tables, self._log, state, floor, is_gone=is_gone)

    def first(self, state: SessionState) -> int:
        """See ``admission.Lookups``."""
        return self._row(state.number).first

    def is_void(self, number: int, sequence: int) -> bool:
        """See ``admission.Lookups``."""
        return sequence < self._row(number).first

    def secret(self, name: str) -> bytes:
        """See ``admission.Lookups``."""
        known = self.new_tenants.get(name) or self._secrets.load(self._tables, name)
        if known is not None:
            return known[1]
        secret = self._new_secrets.get(name)
        if secret is None:
            secret = self._new_secrets[name] = random_bytes(SECRET_BYTES)
        return secret

    def tenant(self, name: str) -> int:
        """See ``admission.Lookups``."""
        known = self.new_tenants.get(name) or self._secrets.load(self._tables, name)
        if known is None:
            self.tenants_made += 1
            known = (self.tenants_made, self.secret(name))
            self.new_tenants[name] = known
            self._tables.put_tenant(known[0], TenantRow(known[1], name))
        return known[0]

    def require_blobs(self, name: str, addresses: Sequence[bytes]) -> None:
        """See ``admission.Lookups``."""
        known = self._secrets.load(self._tables, name)
        if self._references is None:
            self._references = References(self._tables)
        self._references.require(0 if known is None else known[0], addresses)

    def add_references(self, name: str, addresses: Sequence[bytes]) -> None:
        """See ``admission.Lookups``."""
        assert self._references is not None
        self._references.add(self.tenant(name), addresses)

    def write_references(self) -> None:
        """Write what ``add_references`` counted."""
        if self._references is not None:
            self._references.write()

    def new_number(self) -> int:
        """See ``admission.Lookups``."""
        self.sessions_made += 1
        return self.sessions_made
