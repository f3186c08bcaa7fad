"""What removes events of a session: deletion, erasure, purge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from engine.artifacts import content_addresses, contents_of
from engine.drafting import draft_base, draft_control, make_ack
from engine.erasure import ErasureReceipt, erase, require_removal
from engine.fold import encode_base
from engine.redaction import Redacting
from engine.state import read_fold, read_tree
from eventlog.ack import Ack, Draft, Removal, Version
from eventlog.arguments import seconds, whole
from eventlog.errors import SessionGoneError, SessionNotFoundError, UsageError
from eventlog.limits import POSITION_MAX
from eventlog.record import TOMBSTONE


class Removing(Redacting):
    """The part of ``Session`` that removes."""

    __slots__ = ()

    def delete(self, *, wait: float | None = None) -> Ack:
        """Delete the session: what it held cannot be read any more once this is durable.

        Its name is free again at once, and so are its aliases: the next append begins a new
        session, from sequence 0. In the global order its events are void; their space is given back
        in slices. Appends that were accepted before this are in the deleted session. Backups are
        not touched.

        Args:
            wait: See ``append``.

        The ack raises ``SessionNotFoundError`` when there is no such session. A delete is taken
        also when the quota is reached or the disk is full.
        """
        return self._remove((draft_control(TOMBSTONE),), Removal(), wait=wait)

    def erase(self, timeout: float | None = None) -> ErasureReceipt:
        """Delete the session and overwrite what it held; blocks until that is done.

        Then none of it is in a live record. The data file may still hold old pages of it until
        ``vacuum``; the receipt says what was reached. Where the process ends before, the session is
        gone, and later commits of any process remove the rest; contents, which nobody can name any
        more, go with the next collection of blobs, or with ``vacuum``.

        Args:
            timeout: Seconds; None waits for ever.

        Raises:
            SessionNotFoundError: No session of that name.
            TimeoutError: Not done in time; the session is deleted, and the rest goes on.
        """
        wait_s = seconds(timeout, "timeout")
        ack = self._remove((draft_control(TOMBSTONE),), Removal(is_erased=True))
        return erase(self._store._log, ack, wait_s)

    async def erase_async(self, timeout: float | None = None) -> ErasureReceipt:
        """``erase`` on the store's pool."""
        return await self._store._on_pool(self.erase, timeout)

    def purge(self, first: int, *, wait: float | None = None) -> Ack:
        """Remove the events below a sequence; a ``base`` event keeps what they added up to.

        State and counts stay what they were, sequences and positions stay taken, idempotency keys
        stay known. What asks for a purged event, or for the session as it was then, gets
        ``TrimmedError``. A session that is exported or archived after that, and loaded, counts in
        ``message_count`` only the messages that came along. Contents that only purged events named
        go at once. The space is given back in slices; backups are not touched.

        What the purged events added up to is read and encoded before this returns: the changes of
        variables below ``first``, or those since a state of the session that memory holds or a
        ``base``. Of 1,000 changes that takes about 25 ms, and all variables are written in one
        commit, in an event for every 8 MiB of them. On an event loop use ``purge_async`` for
        sessions with many.

        Args:
            first: The first sequence that stays; 1 to the number of events.
            wait: See ``append``.

        Raises:
            SessionNotFoundError: No session of that name.
            UsageError: The session has no such events.
            TrimmedError: They were purged before.

        The ack raises ``SessionGoneError`` when the session was deleted meanwhile.
        """
        return self._purge(first, wait=wait)

    async def purge_async(self, first: int, *, wait: float | None = None) -> Ack:
        """``purge`` on the store's pool, but for waiting until it is durable: await the ack."""
        return await self._store._on_pool(self.purge, first, wait=wait)

    def _purge(
        self,
        first: int,
        number: int | None = None,
        versions: Sequence[Version] = (),
        wait: float | None = None,
    ) -> Ack:
        require_removal(self._store._log)
        whole(first, "first", 1, POSITION_MAX)
        facts = self._store._log.views.facts(self._name)
        if facts is None:
            raise SessionNotFoundError(f"no session {self._name[1]!r}")
        if number not in (None, facts.origin.number):
            raise SessionGoneError(
                f"session {self._name[1]!r} was deleted and made anew",
                expected=number,
                current=facts.origin.number,
            )
        if first > facts.event_count:
            raise UsageError(f"session {self._name[1]!r} has no event {first - 1}")
        number = facts.origin.number
        fold = read_fold(self._store, self._name, first - 1, number=number)
        assert fold is not None  # or it would have raised, as the number is given
        tree = read_tree(self._store, self._name, first, number)
        contents = contents_of(fold)
        named = content_addresses(self._store, self._name, contents, number) if contents else {}
        drafts = [_draft(body, named) for body in encode_base(fold, tree)]
        return self._remove(drafts, Removal(first, number=number), versions=versions, wait=wait)

    def _remove(
        self,
        drafts: Sequence[Draft],
        removal: Removal,
        *,
        versions: Sequence[Version] = (),
        expected_next: int | None = None,
        wait: float | None = None,
    ) -> Ack:
        require_removal(self._store._log)
        ack = make_ack(
            self._name,
            drafts,
            opening=None,
            removal=removal,
            versions=versions,
            expected_next=expected_next,
        )
        self._store._submit(ack, wait)
        return ack


def _draft(body: dict[str, Any], named: Mapping[str | None, bytes]) -> Draft:
    """A ``base`` event that names what its artifacts hold, as far as that is there."""
    contents = [each for each in body.pop("contents", ()) if each in named]
    if contents:
        body["contents"] = contents
    return draft_base(body, [named[each] for each in contents])
