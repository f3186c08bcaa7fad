"""The log as a closed store sees it, while other stores of the process go on with it."""

from __future__ import annotations

from eventlog.errors import StoreClosedError
from eventlog.log import Log
from eventlog.views import Views


class ClosedLog(Log):
    """The same log, of which nothing can be read; so an open store need not ask at each read."""

    def __init__(self, log: Log) -> None:
        self.__dict__ = log.__dict__

    @property
    def views(self) -> Views:  # type: ignore[override]
        """Refused.

        Raises:
            StoreClosedError, ForkedStoreError: Always one of them.
        """
        self.environment.refuse_forked()
        raise StoreClosedError("the store is closed")
