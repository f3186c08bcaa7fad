"""Large contents: put once for each tenant, named by events, read by ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.model.answers import Placed, Refused
from tests.model.operations import New, Noun
from tests.model.staging import HANG_S, placed

if TYPE_CHECKING:
    from engine import Store
    from tests.model.model import ModelStore


@dataclass(frozen=True, slots=True)
class PutBlob(Noun):
    """``blobs.put``, and all that can be asked of the blob."""

    tenant: str
    data: bytes
    start: int = 0
    stop: int | None = None

    def perform(self, store: Store) -> Any:
        blobs = store.tenant(self.tenant).blobs
        blob = blobs.put(self.data)
        again = blobs.put(iter([self.data[:10], self.data[10:]]))
        assert again.address == blob.address and blobs.get(blob.address) == blob
        with blobs.open(blob) as reader:
            reader.seek(self.start)
            rest = reader.read()
        return blob.size, blobs.read(blob, self.start, self.stop), rest

    def expect(self, model: ModelStore) -> Any:
        model.know_tenant(self.tenant)
        ranged = self.data[self.start : self.stop]
        return len(self.data), ranged, self.data[self.start :]


@dataclass(frozen=True, slots=True)
class AppendBlobs(Noun):
    """A message that names contents, which are put before."""

    tenant: str
    session: str
    body: dict[str, Any]
    blobs: tuple[bytes, ...]
    parent: int | None = None

    def perform(self, store: Store) -> Any:
        tenant = store.tenant(self.tenant)
        named = [tenant.blobs.put(each) for each in self.blobs]
        ack = tenant.session(self.session).append(self.body, blobs=named, parent=self.parent)
        return placed(ack.result(HANG_S))

    def expect(self, model: ModelStore) -> Placed | Refused:
        model.know_tenant(self.tenant)
        name = (self.tenant, self.session)
        session = model.sessions.get(name)
        if self.parent not in (None, -1):
            if session is None:
                return Refused("AppendConflictError")
            refused = session.refusal(self.parent)
            if refused is not None:
                return refused
        return model.place(model.open(name), New(self.body, blobs=self.blobs), self.parent)
