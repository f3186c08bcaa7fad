"""Operations on what is said of sessions and belongs to them, drawn from a seed.

Times, processes and what the store writes for itself are in none of their answers.
"""

from __future__ import annotations

from random import Random
from typing import Any

from tests.model.contents import AppendBlobs
from tests.model.copies import Clone
from tests.model.documents import Documents, Owner, WriteDocument
from tests.model.facts import Link, NameBranch, Say, TipOf, Told
from tests.model.listing import Listed
from tests.model.model import ModelStore
from tests.model.operations import Append, New, Op, Purge
from tests.model.programs import KEYS, NAMES, TENANTS
from tests.model.retention import Forget, Retain
from tests.model.usage import RecordUsage, SessionUsage
from tests.model.windows import Compact, Overflow, Window
from tests.model.works import Artifacts, Calls, StepCall, StepRun, WriteArtifact

TURNS = ("user", "user", "assistant", "call", "calls", "result 1", "result 2", "other")


def said(what: str, number: int, tokens: int | None) -> New:
    """One event of a dialogue with tool calls."""
    body: dict[str, Any] = {"role": what, "content": f"{what} {number}"}
    if what in ("call", "calls"):
        ids = ["c1"] if what == "call" else ["c1", "c2"]
        body = {"role": "assistant", "content": None, "tool_calls": [{"id": id} for id in ids]}
    elif what.startswith("result"):
        body = {"role": "tool", "tool_call_id": f"c{what[-1]}", "content": str(number)}
    elif what == "other":
        return New({"n": number}, kind="event")
    return New(body, tokens=tokens)


def draw_noun(random: Random, model: ModelStore, number: int) -> Op:
    """An operation on one of few sessions."""
    tenant, name = random.choice(TENANTS[:2]), random.choice(NAMES[:2])
    session = model.sessions.get((tenant, name))
    count = 0 if session is None else len(session.events)
    if session is None:
        return Append(tenant, name, tuple([New({"n": [number, each]}) for each in range(3)]))
    at = random.randrange(max(0, count - 9), count + 1)
    kind = random.choice([_write, _write, _talk, _read, _read, _whole])
    return kind(random, model, tenant, name, at, number)


def _write(random: Random, model: ModelStore, tenant: str, name: str, at: int, number: int) -> Op:
    owner: Owner = random.choice([("session", name), ("user", "u"), ("tenant", "")])
    key = random.choice([None, None, *KEYS])
    calls = ("open", "open", "waiting", "resume", "done", "failed", "abandon")
    return random.choice(
        [
            Say(tenant, name, "set_status", (random.choice(["open", "done"]),), ()),
            Say(tenant, name, "set_owner", (), (("user_id", random.choice(["u", None])),)),
            Say(tenant, name, "label", ("l",), (("on", at),)),
            Say(tenant, name, "update_metadata", ({"k": number},), ()),
            Say(tenant, name, random.choice(["hold", "release_hold"]), ("case",), ()),
            RecordUsage(tenant, name, "turn", (("input_tokens", number), ("cost", 0.5)), at, key),
            RecordUsage(tenant, name, "turn", (("output_tokens", 1), ("model", "m"))),
            WriteDocument(tenant, owner, "d", "append", f"line {number}\n", None, key),
            WriteDocument(tenant, owner, "d", random.choice(["write", "delete"]), "new"),
            WriteArtifact(tenant, name, "a", random.choice(["x", b"y" * 5_000]), None, at, key),
            StepRun(tenant, name, f"r{number % 3}", random.choice(["begin", "mark"]), "running"),
            StepRun(tenant, name, f"r{number % 3}", "end", "failed", number),
            StepCall(tenant, name, "c1", random.choice(calls), number, at),  # type: ignore[arg-type]
            NameBranch(tenant, name, "b", at),
            Link(tenant, name, max(0, at - 1), (0,)),
        ]
    )


def _talk(random: Random, model: ModelStore, tenant: str, name: str, at: int, number: int) -> Op:
    new = said(random.choice(TURNS), number, random.choice([None, 5]))
    parent = random.choice([None, None, None, at])
    body = {"role": "user", "content": "blob"}
    return random.choice(
        [
            Append(tenant, name, (new,), as_event=True, parent=parent),
            Append(tenant, name, (new,), as_event=True),
            AppendBlobs(tenant, name, body, (b"z" * 9_000, str(number).encode()), parent),
        ]
    )


def _read(random: Random, model: ModelStore, tenant: str, name: str, at: int, number: int) -> Op:
    last, tokens = random.choice([None, 1, 4]), random.choice([None, 20])
    return random.choice(
        [
            Told(tenant, name, random.choice([None, at])),
            SessionUsage(tenant, name, "turn", None, random.choice([None, at]), has_days=False),
            SessionUsage(tenant, name, "turn", sequence=at, has_days=False),
            Documents(tenant, ("session", name), random.choice([None, at])),
            Documents(tenant, ("user", "u")),
            Artifacts(tenant, name, random.choice([None, at]), number % 2 == 0),
            Calls(tenant, name, random.choice([None, at])),
            Window(tenant, name, last, random.choice([None, 2]), tokens, random.choice([None, at])),
            TipOf(tenant, name, "b"),
            Overflow(tenant, name),
            Listed(None, 2, (("user_id", "u"),)),
            Listed(tenant, 50, (("status", "open"),)),
            Listed(tenant, 1, (("label", "l"),), (("k", number - 1),)),
        ]
    )


def _whole(random: Random, model: ModelStore, tenant: str, name: str, at: int, number: int) -> Op:
    session = model.sessions[(tenant, name)]
    found: list[Op] = [
        Compact(tenant, name, random.choice([0, 2, 8])),
        Retain(tenant, None, random.choice([5, 40]), is_dry=number % 2 == 0, is_archived=True),
        Forget(tenant, "u", number % 2 == 0),
        Purge(tenant, name, max(1, at)),
    ]
    if not session.first:
        leaf = random.choice([None, at])
        found += [Clone(tenant, name, random.choice(NAMES), leaf)] * 3
    return random.choice(found)
