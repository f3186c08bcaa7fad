"""What tools make and do: artifacts with versions, runs, tool calls."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal

from tests.model.answers import Placed, Refused, exact
from tests.model.operations import Noun
from tests.model.sessions import ModelSession
from tests.model.staging import HANG_S, placed
from tests.model.usage import belongs

if TYPE_CHECKING:
    from engine import Store
    from tests.model.model import ModelStore

INLINE_BYTES = 4_096  # a larger content is a blob
PENDING = ("open", "waiting")
ENDED = ("succeeded", "failed", "aborted", "cancelled", "denied")


@dataclass(frozen=True, slots=True)
class WriteArtifact(Noun):
    """``artifacts.write``."""

    tenant: str
    session: str
    id: str
    content: str | bytes
    media_type: str | None = None
    event: int | None = None
    key: str | None = None

    def perform(self, store: Store) -> Any:
        artifacts = store.tenant(self.tenant).session(self.session).artifacts
        ack = artifacts.write(
            self.id, self.content, self.media_type, event=self.event, idempotency_key=self.key
        )
        return placed(ack.result(HANG_S))

    def expect(self, model: ModelStore) -> Placed | Refused:
        is_text = type(self.content) is str
        data = self.content.encode() if isinstance(self.content, str) else self.content
        value: dict[str, Any] = {"id": self.id, "size": len(data), "is_text": is_text}
        if self.media_type is not None:
            value["media_type"] = self.media_type
        blobs: tuple[bytes, ...] = ()
        if len(data) <= INLINE_BYTES:
            value["inline"] = self.content
        else:
            model.know_tenant(self.tenant)
            blobs = (data,)
            value["content"] = blake2b(data, digest_size=32).hexdigest()
        prefix = blake2b(self.id.encode(), digest_size=16, person=b"turnlog-artifact").hexdigest()
        body = {"append": {f"{prefix}.": value}}
        name = (self.tenant, self.session)
        return model.change(name, "artifacts", body, parent=self.event, blobs=blobs, key=self.key)


@dataclass(frozen=True, slots=True)
class Artifacts(Noun):
    """All artifacts of a session in all versions, now or after an event, on all paths or one."""

    tenant: str
    session: str
    sequence: int | None = None
    is_on_path: bool = False
    leaf: int | None = None

    def perform(self, store: Store) -> Any:
        session = store.tenant(self.tenant).session(self.session)
        found = session.artifacts
        if self.sequence is not None:
            found = session.at(self.sequence).artifacts  # type: ignore[assignment]
        if self.is_on_path:
            found = found.on(self.leaf)  # type: ignore[assignment]
        answer = []
        for each in found.list():
            versions = found.versions(each)
            assert found.read(each) == found.read(each, versions[-1].version)
            answer += [
                (
                    *(each, one.version, one.size, one.media_type, one.is_text),
                    *(one.event, one.branch, found.read(each, one.version)),
                )
                for one in versions
            ]
        return answer

    def expect(self, model: ModelStore) -> Any:
        session = model.sessions.get((self.tenant, self.session))
        if session is None:
            return [] if self.sequence is None else Refused("SessionNotFoundError")
        path: list[int] | None = None
        if self.sequence is not None:
            refused = session.past_refusal(self.sequence)
            if refused is not None:
                return refused
        if self.is_on_path and self.leaf is not None:
            refused = session.path_refusal(self.leaf)
            if refused is not None:
                return refused
            path = session.path(self.leaf)
        elif self.is_on_path:
            now = len(session.events) - 1
            head = session.head_at(now if self.sequence is None else self.sequence)
            if 0 <= head < session.first and session.has_branched:
                return Refused("TrimmedError")  # of a tree nobody knows what was on its path
            path = session.path(head)
        stop = None if self.sequence is None else self.sequence + 1
        found = []
        for kept in session.events[:stop]:
            if kept.new.kind != "artifacts":
                continue
            [value] = kept.new.body["append"].values()
            branch = 0 if kept.parent is None else kept.branch
            if path is not None and not belongs(session, path, kept.parent, branch):
                continue
            content: Any = kept.new.blobs[0] if kept.new.blobs else value["inline"]
            if kept.new.blobs and value["is_text"]:
                content = content.decode()
            found.append(
                (
                    *(value["id"], kept.sequence, value["size"], value.get("media_type")),
                    *(value["is_text"], kept.parent, branch, content),
                )
            )
        return sorted(found, key=lambda each: each[:2])


@dataclass(frozen=True, slots=True)
class StepRun(Noun):
    """``begin``, ``mark`` or ``end`` of a run."""

    tenant: str
    session: str
    run_id: str
    call: Literal["begin", "mark", "end"]
    status: str
    said: Any = None  # metadata of a beginning, the error of an end

    def perform(self, store: Store) -> Any:
        runs = store.tenant(self.tenant).session(self.session).runs
        match self.call:
            case "begin":
                ack = runs.begin(self.run_id, status=self.status, metadata=self.said)
            case "mark":
                ack = runs.mark(self.run_id, self.status)
            case "end":
                ack = runs.end(self.run_id, self.status, error=self.said)
        return placed(ack.result(HANG_S))

    def expect(self, model: ModelStore) -> Placed | Refused:
        name = (self.tenant, self.session)
        session = model.sessions.get(name)
        there = {} if session is None else session.space("runs")
        before, version = there.get(self.run_id, (None, -1))
        if self.call == "begin":
            value: dict[str, Any] = {"status": self.status, "owner": model.actor}
            if self.said is not None:
                value["metadata"] = self.said
            if before is not None:
                return Refused("AppendConflictError")
        else:
            if before is None:
                return Refused("UsageError")
            if before["status"] in ENDED:
                return Refused("AppendConflictError")
            value = {"began": before.get("began", version)}
            if "metadata" in before:
                value["metadata"] = before["metadata"]
            value["status"] = self.status
            if self.call == "mark":
                value["owner"] = model.actor
            elif self.said is not None:
                value["error"] = self.said
        return model.change(name, "runs", {"set": {self.run_id: value}})


@dataclass(frozen=True, slots=True)
class Runs(Noun):
    """All runs of a session, now or after an event."""

    tenant: str
    session: str
    sequence: int | None = None

    def perform(self, store: Store) -> Any:
        session = store.tenant(self.tenant).session(self.session)
        runs = session.runs if self.sequence is None else session.at(self.sequence).runs
        found = runs.list()
        assert [runs.get(each.run_id) for each in found] == found
        return [
            (
                *(each.run_id, each.status, each.version, exact(each.error), exact(each.metadata)),
                each.ended_us is not None,
            )
            for each in found
        ]

    def expect(self, model: ModelStore) -> Any:
        session = model.sessions.get((self.tenant, self.session))
        if session is None:
            return [] if self.sequence is None else Refused("SessionNotFoundError")
        refused = None if self.sequence is None else session.past_refusal(self.sequence)
        if refused is not None:
            return refused
        found = []
        for run_id, (value, version) in session.space("runs", self.sequence).items():
            status = value["status"]
            is_gone = value.get("owner") in model.gone
            if self.sequence is None and is_gone and status not in ENDED:
                status = "interrupted"
            facts = (exact(value.get("error")), exact(value.get("metadata")))
            ended = status in ENDED
            found.append((value.get("began", version), (run_id, status, version, *facts, ended)))
        return [each for _, each in sorted(found, key=lambda each: each[0])]


@dataclass(frozen=True, slots=True)
class StepCall(Noun):
    """A step of a tool call."""

    tenant: str
    session: str
    id: str
    call: Literal["open", "waiting", "resume", "done", "failed", "abandon"]
    said: Any = None  # where its arguments are, a reason, or an error
    event: int | None = None  # of the call, or of its result

    def perform(self, store: Store) -> Any:
        calls = store.tenant(self.tenant).session(self.session).tool_calls
        match self.call:
            case "open":
                ack = calls.open(self.id, "tool", self.said, event=self.event)
            case "done":
                ack = calls.done(self.id, event=self.event)
            case "resume":
                ack = calls.resume(self.id)
            case _:
                ack = getattr(calls, self.call)(self.id, self.said)
        return placed(ack.result(HANG_S))

    def expect(self, model: ModelStore) -> Placed | Refused:
        name = (self.tenant, self.session)
        session = model.sessions.get(name)
        there = {} if session is None else session.space("tool_calls")
        before, version = there.get(self.id, (None, -1))
        value: dict[str, Any] = {"state": "open", "name": "tool"}
        if self.call == "open":
            if before is not None:
                return Refused("AppendConflictError")
            if self.said is not None:
                value["arguments_ref"] = self.said
            if self.event is not None:
                value["event"] = self.event
            return model.change(name, "tool_calls", {"set": {self.id: value}})
        if before is None:
            return Refused("UsageError")
        if before["state"] not in (("waiting",) if self.call == "resume" else PENDING):
            return Refused("AppendConflictError")
        states = {"resume": "open", "abandon": "abandoned"}
        value["state"] = states.get(self.call, self.call)
        value |= {key: before[key] for key in ("arguments_ref", "event") if key in before}
        value["opened"] = before.get("opened", version)
        told = {"waiting": "reason", "abandon": "reason", "failed": "error"}
        if self.call == "done" and self.event is not None:
            value["result_event"] = self.event
        elif self.call in told and self.said is not None:
            value[told[self.call]] = self.said
        return model.change(name, "tool_calls", {"set": {self.id: value}})


@dataclass(frozen=True, slots=True)
class Calls(Noun):
    """All tool calls of a session, now or after an event."""

    tenant: str
    session: str
    sequence: int | None = None
    states: tuple[str, ...] | None = None

    def perform(self, store: Store) -> Any:
        session = store.tenant(self.tenant).session(self.session)
        calls = (
            session.tool_calls if self.sequence is None else session.at(self.sequence).tool_calls
        )
        return [
            (
                *(each.id, each.name, each.state, each.event, each.result_event, each.version),
                *(exact(each.arguments_ref), exact(each.reason), exact(each.error)),
            )
            for each in calls.list(self.states)
        ]

    def expect(self, model: ModelStore) -> Any:
        session = model.sessions.get((self.tenant, self.session))
        if session is None:
            return [] if self.sequence is None else Refused("SessionNotFoundError")
        refused = None if self.sequence is None else session.past_refusal(self.sequence)
        if refused is not None:
            return refused
        found = [
            (
                value.get("opened", version),
                (
                    *(id, value["name"], value["state"], value.get("event")),
                    *(value.get("result_event"), version),
                    *[exact(value.get(key)) for key in ("arguments_ref", "reason", "error")],
                ),
            )
            for id, (value, version) in session.space("tool_calls", self.sequence).items()
            if self.states is None or value["state"] in self.states
        ]
        return [each for _, each in sorted(found, key=lambda each: each[0])]


def pending_calls(session: ModelSession) -> set[str]:
    """Ids of tool calls that are open or wait."""
    return {
        id for id, (value, _) in session.space("tool_calls").items() if value["state"] in PENDING
    }
