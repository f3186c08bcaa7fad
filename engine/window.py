"""The windows that a session gives; ``modelview`` says what is in them."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from engine.belongings import Belongings
from engine.modelview import Form, Limits, Window, at_least, collect, collect_messages
from engine.pathscan import PathScan
from engine.toolcalls import PENDING
from engine.toolgroups import Count

if TYPE_CHECKING:
    from engine.store import Store


class Viewing(Belongings):
    """The part of ``Session`` that shows what a model should see."""

    __slots__ = ()

    _store: Store
    _name: tuple[str, str]

    def window(
        self,
        last: int | None = None,
        *,
        exchanges: int | None = None,
        tokens: int | None = None,
        leaf: int | str | None = None,
        repair: bool = True,
        running: Collection[str] | None = None,
        media: bool = True,
        count: Count | None = None,
        at_least_one: bool = False,
    ) -> list[Any]:
        """What a model should see: bodies of messages, oldest first; see ``engine.modelview``.

        Redacted messages are left out, and so is what is left of their tool groups. A system
        message counts as any other: limits cut it off, and compactions stand for it, so the system
        prompt is the caller's to put in front. A summary comes as a ``user`` message that begins
        with ``Summary of the conversation so far:``, a synthetic result says ``No result: the tool
        call was not completed.``; ``window_entries`` tells both by ``synthetic``, to say it in
        other words. Of several limits all hold; where the newest tool group is not within them,
        nothing is given, but for ``at_least_one``. Costs what it returns; a summary and synthetic
        results count, as messages and with their tokens.

        Args:
            last: At most so many messages.
            exchanges: At most so many exchanges: a user message and what follows up to the next.
            tokens: At most so many tokens.
            leaf: Sequence of an event, or the name of a branch, for the path to it; None for the
                head.
            repair: Answer tool calls that nobody answered with a synthetic result, put results that
                came late behind their call, and leave out those without a call. Without it messages
                stand as in the log, but for results at the beginning whose call is cut off.
            running: Ids of tool calls that still run or wait for approval; they stay as they are.
                None takes those that ``tool_calls`` has as open or waiting.
            media: False puts a word in place of images and other media.
            count: Called with the body of a message that came without tokens, gives how many it
                has, an int; None estimates.
            at_least_one: Give the newest message, or its whole tool group, however large it is.

        Raises:
            UsageError: A limit that cannot be, no such event, or ``count`` gives no number of
                tokens.
        """
        limits = Limits(last, exchanges, tokens, at_least_one)
        form = Form(
            repair, self._pending if running is None else running, media, count, tokens is not None
        )
        scan = self._scan(leaf, limits)
        return collect_messages(scan, limits, form) or at_least(scan, limits, form).messages

    async def window_async(
        self,
        last: int | None = None,
        *,
        exchanges: int | None = None,
        tokens: int | None = None,
        leaf: int | str | None = None,
        repair: bool = True,
        running: Collection[str] | None = None,
        media: bool = True,
        count: Count | None = None,
        at_least_one: bool = False,
    ) -> list[Any]:
        """``window`` on the store's pool; ``count`` runs there, too."""
        return await self._store._on_pool(
            self.window,
            last,
            exchanges=exchanges,
            tokens=tokens,
            leaf=leaf,
            repair=repair,
            running=running,
            media=media,
            count=count,
            at_least_one=at_least_one,
        )

    def window_entries(
        self,
        last: int | None = None,
        *,
        exchanges: int | None = None,
        tokens: int | None = None,
        leaf: int | str | None = None,
        repair: bool = True,
        running: Collection[str] | None = None,
        media: bool = True,
        count: Count | None = None,
        at_least_one: bool = False,
    ) -> Window:
        """``window`` with all that is known of each message: its sequence, tokens, what was made.

        Args:
            last: See ``window``; so are all others.
            exchanges: See ``window``.
            tokens: See ``window``.
            leaf: See ``window``.
            repair: See ``window``.
            running: See ``window``.
            media: See ``window``.
            count: See ``window``.
            at_least_one: See ``window``.
        """
        limits = Limits(last, exchanges, tokens, at_least_one)
        form = Form(repair, self._pending if running is None else running, media, count, True)
        scan = self._scan(leaf, limits)
        window = collect(scan, limits, form)
        return window if window.entries else at_least(scan, limits, form, window)

    async def window_entries_async(
        self,
        last: int | None = None,
        *,
        exchanges: int | None = None,
        tokens: int | None = None,
        leaf: int | str | None = None,
        repair: bool = True,
        running: Collection[str] | None = None,
        media: bool = True,
        count: Count | None = None,
        at_least_one: bool = False,
    ) -> Window:
        """``window_entries`` on the store's pool; ``count`` runs there, too."""
        return await self._store._on_pool(
            self.window_entries,
            last,
            exchanges=exchanges,
            tokens=tokens,
            leaf=leaf,
            repair=repair,
            running=running,
            media=media,
            count=count,
            at_least_one=at_least_one,
        )

    def _pending(self) -> frozenset[str]:
        """Ids of tool calls that are open or wait."""
        return frozenset(call.id for call in self.tool_calls.list(PENDING))

    def _scan(self, leaf: int | str | None, limits: Limits) -> PathScan:
        at = None if leaf is None else self._event_at(leaf)
        return PathScan(self._store._log, self._name, at, limits.enough())
