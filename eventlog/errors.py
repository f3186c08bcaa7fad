"""Every exception that leaves turnlog.

The classes answer one question: what should the caller do? Each carries its values as fields and a
``hint``, one sentence that says what to do next. No error of lmdb, cbor2 or zstandard leaves
``eventlog``; the original stays as ``__cause__``.
"""

from __future__ import annotations


class TurnlogError(Exception):
    """Base of all errors of turnlog.

    Attributes:
        hint: One sentence: what to do next. Also a note of the exception, which a traceback shows.
    """

    default_hint = "See the message."

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self._hint = ""
        self.hint = self.default_hint if hint is None else hint

    def __reduce__(self) -> tuple[object, ...]:
        """So that errors with fields can be pickled, and go from process to process."""
        return _made, (type(self), self.args), self.__dict__

    @property
    def hint(self) -> str:
        """See the class."""
        return self._hint

    @hint.setter
    def hint(self, hint: str) -> None:
        note = f"Hint: {self._hint}"
        notes: list[str] = getattr(self, "__notes__", [])
        if note in notes:
            notes.remove(note)
        self._hint = hint
        if hint != TurnlogError.default_hint:
            self.add_note(f"Hint: {hint}")


def _made(kind: type[TurnlogError], args: tuple[object, ...]) -> TurnlogError:
    """An error without its fields, which the pickle sets."""
    return kind.__new__(kind, *args)


class UsageError(TurnlogError, ValueError):
    """The call itself is wrong; retrying it never helps."""

    default_hint = "Fix the call; retrying it will not help."


class InvalidMessageError(UsageError):
    """A body or metadata holds something that cannot be stored.

    Attributes:
        path: Where the offending value is, like ``$.content[2].when``.
    """

    default_hint = "Store plain data: str, bytes, int, float, bool, None, list, dict with str keys."

    def __init__(self, message: str, *, path: str, hint: str | None = None) -> None:
        super().__init__(f"{path}: {message}", hint=hint)
        self.path = path


class InvalidNameError(UsageError):
    """A tenant, session, id or kind has a name that is not allowed."""

    default_hint = "Use a name of the length that the message gives, without lone surrogates."


class LimitExceededError(UsageError):
    """Something is larger than a bound of ``limits``.

    Attributes:
        name: The bound's name in ``eventlog.limits``.
        actual: The size that was asked for, in the bound's unit.
        limit: The bound.
        path: Where in a body the offending value is, or None.
    """

    default_hint = "Send less at once; limits.py gives the unit and reason of each bound."

    def __init__(
        self,
        message: str,
        *,
        name: str,
        actual: int,
        limit: int,
        path: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.path = path
        self.name = name
        self.actual = actual
        self.limit = limit


class StoreClosedError(UsageError):
    """The store was closed."""

    default_hint = "Open the store again."


class ReadOnlyError(UsageError):
    """A write on a store that was opened read-only."""

    default_hint = "Open the store without read_only=True on a writable file system."


class ForkedStoreError(UsageError):
    """A store that was opened before a fork is used in the child."""

    default_hint = "Open the store again in the child process."


class ConflictError(TurnlogError):
    """The session is not what the caller believed; nothing was written.

    Attributes:
        expected: What the caller expected.
        current: What the store holds.
    """

    default_hint = "Read the session again, then decide again."

    def __init__(
        self,
        message: str,
        *,
        expected: object = None,
        current: object = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.expected = expected
        self.current = current


class AppendConflictError(ConflictError):
    """A condition of an append does not hold: nothing of the append was written.

    The head is another one, or a version is: of a variable, document, run, tool call, alias or
    hold; or there is no event that the append names, or none that it may follow.
    """


class IdempotencyConflictError(ConflictError):
    """An idempotency key was used before with other content."""

    default_hint = (
        "A retry sends exactly the same: body, kind, time, tokens, ids and metadata. "
        "Use a new idempotency key only for new content."
    )


class DuplicateIdError(ConflictError):
    """An id of a caller is taken by another event of the tenant."""

    default_hint = (
        "Give the event another id, or send exactly the same event again: "
        "body, kind, time, tokens, ids, metadata and parent."
    )


class SessionGoneError(ConflictError):
    """The session was deleted; what is asked for belongs to its earlier incarnation."""

    default_hint = "Start a new session; ids of the deleted one stay invalid."

    @classmethod
    def while_read(cls, session: str, number: int | None, current: int | None) -> SessionGoneError:
        """What ends a read of several steps.

        Args:
            session: The session's name.
            number: Number of the incarnation that was read.
            current: Number of the one that has the name now; None when there is none.
        """
        return cls(
            f"session {session!r} was deleted while it was read", expected=number, current=current
        )


class SessionNotFoundError(ConflictError):
    """No session of that name exists."""

    default_hint = "Check the name and the tenant, or create the session."


class StoreUnavailableError(TurnlogError):
    """The environment refuses; the hint says what to change."""

    default_hint = "Change what the message names, then try again."


class BusyError(StoreUnavailableError):
    """Another process holds a lock for longer than the deadline.

    Attributes:
        owner: Who holds it (pid, host, start time and command, as far as known).
    """

    default_hint = "Wait for the owner named here, or end it."

    def __init__(self, message: str, *, owner: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.owner = owner


class StorageFullError(StoreUnavailableError):
    """The file system is full or a file size limit was hit; the append was not written."""

    default_hint = "Make room on the file system; the store goes on by itself."


class QuotaExceededError(StoreUnavailableError):
    """The store has reached its byte quota; the append was not written."""

    default_hint = "Delete or purge sessions, or raise the quota: turnlog configure --quota-bytes."


class OverloadedError(StoreUnavailableError):
    """The queue is full; the append was not accepted."""

    default_hint = "Wait with store.room() or append(wait=seconds), then append again."


class NotUpToBoundError(StoreUnavailableError):
    """The store has not reached the asked position yet.

    Attributes:
        position: The last position that the store has.
    """

    default_hint = "Read again later, or with a longer timeout."

    def __init__(self, message: str, *, position: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.position = position


class NotAStoreError(TurnlogError):
    """The path is not a turnlog store."""

    default_hint = "Check the path; a new store needs a path that does not exist yet."


class FormatVersionError(TurnlogError):
    """The store was written in a format that this release does not know.

    Attributes:
        found: The version in the store.
        supported: The newest version that this release reads.
    """

    default_hint = "Install a release of turnlog that reads this format."

    def __init__(
        self, message: str, *, found: object, supported: object, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.found = found
        self.supported = supported


class TrimmedError(TurnlogError):
    """What is asked for lies below the retention floor.

    Attributes:
        first: The first sequence that can still be read.
    """

    default_hint = "Read from the first sequence named here."

    def __init__(self, message: str, *, first: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.first = first


class DamagedInputError(TurnlogError):
    """An import cannot be trusted.

    Attributes:
        file: The file.
        line: The line, from 1, or None where the format has no lines.
    """

    default_hint = "Mend or remove the part named here and import the file again."

    def __init__(
        self, message: str, *, file: str, line: int | None = None, hint: str | None = None
    ) -> None:
        where = file if line is None else f"{file}:{line}"
        super().__init__(f"{where}: {message}", hint=hint)
        self.file = file
        self.line = line
        self.reason = message


class SuspectStoreError(TurnlogError):
    """A commit failed in I/O and its outcome is not settled yet."""

    default_hint = "Ask again with the same idempotency key, or read the session after reopening."


class CorruptionError(TurnlogError):
    """Bytes on disk break FORMAT.md.

    Attributes:
        where: The table and key, or the file and offset.
    """

    default_hint = (
        "Stop writing, run `turnlog check`, and save what is whole: "
        "`turnlog export --skip-damaged`, then `turnlog import` into a new store."
    )

    def __init__(self, message: str, *, where: str, hint: str | None = None) -> None:
        super().__init__(f"{where}: {message}", hint=hint)
        self.where = where
