"""What the store keeps of a projection: its owner, its checkpoint and its dead letters.

They are facts of a session of the store's own, like the index of ``aliases``: in no listing, no
read and no export, since positions are those of one store.

Invariants:
    1. A change names the version of the owner that its writer believes in, and is compared with it
       in the commit. So of several owners only the last one changes anything.
    2. An owner whose process is gone, or who is gone in a process that lives, counts for nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from engine.drafting import draft_event, make_ack
from engine.runs import may_live, owning_process
from engine.session import Session
from engine.spaces import Space
from engine.stepping import Call, Send, Settle, Work
from engine.variables import StoredVariable, decode_row, subkey_of, versions_of
from eventlog.ack import Ack
from eventlog.errors import AppendConflictError, BusyError, ConflictError, TurnlogError
from eventlog.keys import derived_name
from eventlog.seams import random_bytes

if TYPE_CHECKING:
    from engine.store import Store

CHANGES_KEPT: Final = 4_096  # events of that session, before those that are out of date are purged

_OWNER: Final = "owner"
_CHECKPOINT: Final = "checkpoint"
_LETTER: Final = "letter."


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that could not be applied.

    Attributes:
        position: Its position.
        tenant: Its tenant.
        session: Its session's name.
        sequence: Its sequence there.
        kind: Its kind.
        error: What was raised: the class and its text, up to 2,000 characters.
        count: How often it was tried.
        is_skipped: Whether the projection went on; otherwise it stands before this event.
    """

    position: int
    tenant: str
    session: str
    sequence: int
    kind: str
    error: str
    count: int
    is_skipped: bool


class Keeping:
    """See the module; one for each ``Projection``.

    Attributes:
        is_owner: Whether this is the owner, as far as it knows.
        checkpoint: What was stored last, as far as the owner knows.
        letters: The dead letters by position, likewise.
    """

    def __init__(self, store: Store, name: str, tenant: str | None) -> None:
        self.name = name
        self.is_owner = False
        self.checkpoint = 0
        self.letters: dict[int, DeadLetter] = {}
        self._store = store
        self._session = Session(store, tenant or "", _session_name(name, tenant))
        self._token = ""
        self._version = -1  # of the owner's row
        self._purged = 0

    def stored_checkpoint(self) -> int:
        """The checkpoint as it is stored; 0 for none."""
        views = self._store._log.views
        content = views.present_row(self._session._name, self._store._facts, subkey_of(_CHECKPOINT))
        return 0 if content is None else _position(decode_row(content, self._where))

    def stored_letters(self) -> list[DeadLetter]:
        """The dead letters as they are stored, by position."""
        return sorted(_letters_in(self._rows()).values(), key=lambda each: each.position)

    def look(self) -> Work[None]:
        """Read the checkpoint without becoming the owner; writes nothing.

        Raises:
            BusyError: There is an owner.
        """
        rows = yield Call(self._rows)
        stored = rows.get(_OWNER)
        if stored is not None and _is_held(stored.value()):
            raise self._busy(stored.value())
        checkpoint = rows.get(_CHECKPOINT)
        self.checkpoint = 0 if checkpoint is None else _position(checkpoint)

    def own(self, *, by_force: bool = False) -> Work[None]:
        """Become the owner, and read what is stored.

        Raises:
            BusyError: There is another owner, and this is not by force.
        """
        rows = yield Call(self._rows)
        stored = rows.get(_OWNER)
        if stored is not None and not by_force and _is_held(stored.value()):
            raise self._busy(stored.value())
        token = random_bytes(16).hex()
        owner = {"token": token, "projection": self.name, **owning_process()}
        ack = self._ack({_OWNER: owner}, (), -1 if stored is None else stored.sequence)
        _LIVING[token] = self  # before anybody can see the row
        try:
            yield Send(ack)
        except BaseException as error:
            _LIVING.pop(token, None)
            if isinstance(error, AppendConflictError):
                raise self._busy(None) from error
            raise
        self.disown()
        self._token, self._version = token, ack.last
        try:
            rows = yield Call(self._rows)  # as the owner before left them
        except BaseException:
            with suppress(TurnlogError):
                yield Send(self._ack({}, (_OWNER,), self._version))
            self.disown()
            raise
        self.letters = _letters_in(rows)
        checkpoint = rows.get(_CHECKPOINT)
        self.checkpoint = 0 if checkpoint is None else _position(checkpoint)
        info = self._session.info()
        self._purged = 0 if info is None else info.first_sequence
        self.is_owner = True

    def store(
        self,
        checkpoint: int,
        letters: Collection[DeadLetter] = (),
        gone: Collection[int] = (),
        *,
        is_last: bool = False,
    ) -> Work[None]:
        """Store a checkpoint, with dead letters that came and positions of those that went.

        Args:
            checkpoint: The position.
            letters: New ones, or such as changed.
            gone: Positions of those that are none any more.
            is_last: Be the owner no more.

        Raises:
            ConflictError: Another one is the owner, or none is.
        """
        changes: dict[str, Any] = {_key(each): _encoded(each) for each in letters}
        deleted = [f"{_LETTER}{position}" for position in gone]
        if is_last:
            deleted.append(_OWNER)
        ack = self._ack({**changes, _CHECKPOINT: checkpoint}, deleted, self._version)
        try:
            yield Send(ack)
        except AppendConflictError as error:
            self.disown()
            if error.current == -1:
                said = f"projection {self.name!r} has no owner any more: its progress was erased, "
                said += "or another one took it over and gave it up"
                hint = "Run it again; it goes on from the checkpoint that is stored now."
            else:
                said = f"another owner took projection {self.name!r} over"
                hint = "Stop here; what was applied since the last checkpoint is applied there."
            raise ConflictError(
                said, expected=error.expected, current=error.current, hint=hint
            ) from error
        self.checkpoint = checkpoint
        if is_last:
            self.disown()
        elif ack.last - self._purged >= CHANGES_KEPT:
            purge = yield Call(lambda: self._session.purge(ack.last))
            yield Settle(purge)
            self._purged = ack.last

    def disown(self) -> None:
        """Be the owner no more, without saying so in the store."""
        _LIVING.pop(self._token, None)
        self._token = ""
        self.is_owner = False

    @property
    def _where(self) -> str:
        return f"projection {self.name!a}"

    def _rows(self) -> dict[str, StoredVariable]:
        found = self._store._log.views.facts(self._session._name, self._store._facts)
        if found is None:
            return {}
        rows = [decode_row(content, self._where) for content in found.rows.values()]
        return {each.key: each for each in rows}

    def _ack(self, changes: Mapping[str, Any], deleted: Collection[str], version: int) -> Ack:
        self._store._require_version(2, "projections")
        body: dict[str, Any] = {"set": dict(changes)} if changes else {}
        if deleted:
            body["delete"] = list(deleted)
        return make_ack(
            self._session._name,
            (draft_event(Space.FACTS.title, body, loading=True),),
            opening=None,
            versions=versions_of(Space.FACTS, {_OWNER: version}),
        )

    def _busy(self, owner: Mapping[str, Any] | None) -> BusyError:
        who = None if owner is None else f"process {owner['pid']} on {owner['host']}"
        return BusyError(
            f"projection {self.name!r} is run by {who or 'somebody else'}",
            owner=who,
            hint="Wait for that owner, or call take_over() when it hangs.",
        )


_LIVING: Final[WeakValueDictionary[str, Keeping]] = WeakValueDictionary()
"""By token, the owners of this process; one that is not here counts for nothing."""


def _is_held(owner: Mapping[str, Any]) -> bool:
    """Whether an owner may still be at work (invariant 2)."""
    if all([owner.get(key) == value for key, value in owning_process().items()]):
        return owner["token"] in _LIVING
    return may_live(owner)


def _session_name(name: str, tenant: str | None) -> str:
    """The session of a projection; those of all tenants and those of one's own never meet."""
    scope = b"of all" if tenant is None else b"of one"
    digest = blake2b(name.encode(), digest_size=16, key=scope, person=b"turnlog-projects")
    return derived_name(f"projection.{digest.hexdigest()}")


def _position(stored: StoredVariable) -> int:
    return int(stored.value())


def _key(letter: DeadLetter) -> str:
    return f"{_LETTER}{letter.position}"


def _encoded(letter: DeadLetter) -> list[Any]:
    return [
        letter.tenant,
        letter.session,
        letter.sequence,
        letter.kind,
        letter.error,
        letter.count,
        letter.is_skipped,
    ]


def _letters_in(rows: Mapping[str, StoredVariable]) -> dict[int, DeadLetter]:
    found = {}
    for key, stored in rows.items():
        if key.startswith(_LETTER):
            position = int(key[len(_LETTER) :])
            found[position] = DeadLetter(position, *stored.value())
    return found
