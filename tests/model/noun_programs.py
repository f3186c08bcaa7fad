"""Operations on what is said of sessions and belongs to them, drawn from a seed.

Times, processes and what the store writes for itself are in none of their answers.
"""

from __future__ import annotations

from random import Random
from typing import Any

from tests.model.contents import AppendBlobs
from tests.model.copies import Clone
from tests.model.documents import Documents, Owner, WriteDocument
from tests.model.facts import Alias, ByAlias, Link, NameBranch, Say, TipOf, Told
from tests.model.following import Project, ReadUpTo
from tests.model.listing import Listed
from tests.model.model import ModelStore
from tests.model.operations import Append, Delete, Fork, New, Op, Opening, Purge, RollUp
from tests.model.programs import IDS, KEYS, NAMES, TENANTS
from tests.model.redaction import Redact, may_call, may_redact
from tests.model.retention import Forget, Retain
from tests.model.usage import RecordUsage, SessionUsage
from tests.model.windows import Compact, Overflow, Window
from tests.model.works import Artifacts, Calls, Runs, StepCall, StepRun, WriteArtifact

TURNS = ("user", "user", "assistant", "call", "calls", "result 1", "result 2", "other")


PLAIN_TURNS = ("user", "user", "assistant", "other")  # without tools


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


def draw_noun(random: Random, model: ModelStore, number: int, theme: str | None = None) -> Op:
    """An operation on one of few sessions, of all or of one theme."""
    tenant, name = random.choice(TENANTS[:2]), random.choice(NAMES[:2])
    if theme is not None:  # of one session, mostly
        tenant, name = TENANTS[0], NAMES[random.choice([0, 0, 0, 1])]
    session = model.sessions.get((tenant, name))
    if session is None:
        begun = tuple([New({"n": [number, each]}) for each in range(3)])
        opening = Opening(user_id=random.choice(["u", "w", None]), metadata={"k": 0, "j": 1})
        return Append(tenant, name, begun, opening=opening)
    count = len(session.events)
    at = random.randrange(max(0, count - 9), count + 1)
    write, read = LIVES[theme or random.choice(list(THEMES))]
    draw = random.choice([write, write, write, read, read, _talk, _talk, _whole])
    return draw(random, model, tenant, name, at, number)


def _say(random: Random, model: ModelStore, tenant: str, name: str, at: int, number: int) -> Op:
    on = random.choice([(), (), (("on", at),), (("on", number % 5),)])
    label = random.choice(["l", "k", "l.1"])
    status = (random.choice(["open", "done", None]),)
    owner = ((random.choice(["user_id", "agent_id"]), random.choice(["u", None])),)
    kept = random.choice([(), (("delete", ("k",)),)])  # which it may have begun with
    return random.choice(
        [
            Say(tenant, name, random.choice(["set_status", "set_summary"]), status),
            Say(tenant, name, "set_status", status, (("detail", number),)),
            Say(tenant, name, "set_owner", (), owner),
            Say(tenant, name, "label", (label,), on),
            Say(tenant, name, random.choice(["label", "unlabel"]), (label,), on),
            Say(tenant, name, "update_metadata", ({"j": number},), kept),
            Say(tenant, name, "update_metadata", ({"k": number},)),
            Say(tenant, name, random.choice(["hold", "release_hold"]), ("case",)),
            NameBranch(tenant, name, "b", at),
            NameBranch(tenant, name, "b", None, is_set=False),
            Link(tenant, name, max(0, at - 1), (0,)),
        ]
    )


def _told(random: Random, model: ModelStore, tenant: str, name: str, at: int, number: int) -> Op:
    return random.choice(
        [
            Told(tenant, name),
            Told(tenant, name, at),
            TipOf(tenant, name, "b"),
            Listed(None, 2, (("user_id", "u"),)),
            Listed(tenant, 50, (("status", "open"),)),
            Listed(tenant, 1, (("label", "l"),)),
            Listed(tenant, 1, (), (("k", random.choice([number, number - 1, number - 2])),)),
        ]
    )


def _use(random: Random, model: ModelStore, tenant: str, name: str, at: int, number: int) -> Op:
    key = random.choice([None, None, *KEYS])
    given = random.choice([("input_tokens", number), ("seconds", 0.5), ("cost", number)])
    user = random.choice([(), (("user_id", "w"),)])
    owner = (("user_id", random.choice(["u", None])),)
    return random.choice(
        [
            RecordUsage(tenant, name, "turn", (given, *user), random.choice([None, at]), key),
            RecordUsage(tenant, name, "turn", (given, ("model", "m")), random.choice([None, at])),
            RecordUsage(tenant, name, "turn", (("cost", 2), ("currency", "EUR"))),
            Say(tenant, name, "set_owner", (), owner),
            Fork(tenant, name, max(0, at - 1)),
        ]
    )


def _used(random: Random, model: ModelStore, tenant: str, name: str, at: int, number: int) -> Op:
    return random.choice(
        [
            SessionUsage(tenant, name, "turn", None, random.choice([None, at]), has_days=False),
            SessionUsage(tenant, name, "turn", random.randrange(4), has_days=False),
            SessionUsage(tenant, name, "turn", sequence=at, has_days=False),
        ]
    )


def _make(random: Random, model: ModelStore, tenant: str, name: str, at: int, number: int) -> Op:
    owner: Owner = random.choice([("session", name), ("session", name), ("user", "u")])
    key = random.choice([None, None, None, *KEYS])
    version = random.choice([None, None, None, -1, number])
    content = random.choice(["x", b"y" * 5_000, "é" * 2_100, b""])
    media = random.choice([None, "text/plain"])
    return random.choice(
        [
            WriteDocument(tenant, owner, "d", "append", f"line {number}\n", version, key),
            WriteDocument(tenant, owner, "d", "append", f"more {number}", None),
            WriteDocument(tenant, owner, "d", "write", f"new {number}", version),
            WriteDocument(tenant, owner, "d", "write", "again", None, key),
            WriteDocument(tenant, owner, "d", random.choice(["write", "delete"]), ""),
            WriteArtifact(tenant, name, "a", content, media, random.choice([None, at]), key),
            WriteArtifact(tenant, name, "a", content, media),
            Fork(tenant, name, max(0, at - 1)),
        ]
    )


def _made(random: Random, model: ModelStore, tenant: str, name: str, at: int, number: int) -> Op:
    return random.choice(
        [
            Documents(tenant, ("session", name), random.choice([None, at])),
            Documents(tenant, ("user", "u")),
            Artifacts(tenant, name, random.choice([None, at])),
            Artifacts(tenant, name, None, True, random.choice([None, at])),
        ]
    )


def _work(random: Random, model: ModelStore, tenant: str, name: str, at: int, number: int) -> Op:
    steps = ("open", "open", "waiting", "resume", "done", "failed", "abandon")
    call, run = f"c{number % 2 + 1}", f"r{number % 2}"
    return random.choice(
        [
            StepRun(tenant, name, run, random.choice(["begin", "mark"]), "running", None),
            StepRun(tenant, name, run, "begin", "queued", {"n": number}),
            StepRun(tenant, name, run, "end", "failed", number),
            StepCall(tenant, name, call, random.choice(steps), number, at),  # type: ignore[arg-type]
            StepCall(tenant, name, call, random.choice(steps)),  # type: ignore[arg-type]
        ]
    )


def _worked(random: Random, model: ModelStore, tenant: str, name: str, at: int, number: int) -> Op:
    states = random.choice([None, None, ("open", "waiting")])
    return Calls(tenant, name, random.choice([None, at]), states)


def _ran(random: Random, model: ModelStore, tenant: str, name: str, at: int, number: int) -> Op:
    return Runs(tenant, name, random.choice([None, at]))


def _talk(random: Random, model: ModelStore, tenant: str, name: str, at: int, number: int) -> Op:
    turns = TURNS if may_call(model.sessions.get((tenant, name))) else PLAIN_TURNS
    new = said(random.choice(turns), number, random.choice([None, 5]))
    parent = random.choice([None, None, None, at])
    body = {"role": "user", "content": "blob"}
    return random.choice(
        [
            Append(tenant, name, (new,), as_event=True, parent=parent),
            Append(tenant, name, (new,), as_event=True),
            Append(tenant, name, (new,), as_event=True),
            AppendBlobs(tenant, name, body, (b"z" * 9_000, str(number).encode()), parent),
        ]
    )


def _redact(random: Random, model: ModelStore, tenant: str, name: str, at: int, number: int) -> Op:
    session = model.sessions[(tenant, name)]
    last = min(at + random.choice([0, 0, 1, 5, 40]), len(session.events) - number % 9 // 8)
    given = {"id": random.choice([None, *IDS]), "metadata": random.choice([None, {"n": 1}])}
    new = New({"role": random.choice(["user", "x", "system"]), "content": "said"}, **given)
    found: list[Op] = [
        Append(tenant, name, (new,), key=random.choice([None, *KEYS])),
        Append(tenant, name, (New({"n": 2}, kind="annotation"),)),
        Append(tenant, name, (New(None, kind="event", id=random.choice(IDS)),)),  # retried
    ]
    if may_redact(session):
        found += [Redact(tenant, name, at, max(at, last))] * 4
    return random.choice(found)


def _shown(random: Random, model: ModelStore, tenant: str, name: str, at: int, number: int) -> Op:
    last, tokens = random.choice([None, None, 1, 4]), random.choice([None, None, 8, 20])
    exchanges = random.choice([None, None, 1, 2])
    leaf = random.choice([None, None, at])
    return random.choice(
        [
            Window(tenant, name, last, exchanges, tokens, leaf),
            Window(tenant, name, None, None, tokens),
            Window(tenant, name, last, is_repaired=False),
            Overflow(tenant, name, random.choice([None, at])),
            Compact(tenant, name, random.choice([0, 2, 8]), keep=random.choice([(), (at,)])),
            Compact(tenant, name, 0, through=at),
        ]
    )


def _whole(random: Random, model: ModelStore, tenant: str, name: str, at: int, number: int) -> Op:
    session = model.sessions[(tenant, name)]
    found: list[Op] = [
        Retain(tenant, None, random.choice([5, 12]), is_dry=number % 3 == 0, is_archived=True),
        Purge(tenant, name, max(1, at - random.randrange(9))),
        RollUp(tenant, name),
    ]
    if number % 9 == 0:
        found = [Forget(tenant, "u", number % 2 == 0)]
    elif not session.first:
        leaf = random.choice([None, at])
        found += [Clone(tenant, name, random.choice(NAMES), leaf)] * 3
    return random.choice(found)


def _alias(random: Random, model: ModelStore, tenant: str, name: str, at: int, number: int) -> Op:
    alias = random.choice(["x", "y"])
    last = model.last_position
    followed = Project(
        "p",
        random.choice([None, tenant]),
        limit=random.choice([None, 3]),
        poison=random.choice([0, 3]),
        on_poison=random.choice(["skip", "stop"]),
        reset=random.choice([None, None, None, last // 2]),
    )
    return random.choice(
        [
            Alias(tenant, name, alias),
            Alias(tenant, name, alias),
            Alias(tenant, name, alias, is_taken=False),
            Delete(tenant, name, number % 2 == 0),
            followed,
        ]
    )


def _found(random: Random, model: ModelStore, tenant: str, name: str, at: int, number: int) -> Op:
    alias = random.choice(["x", "y"])
    last = model.last_position
    return random.choice(
        [
            ByAlias(tenant, alias),
            Listed(tenant, alias=alias),
            ReadUpTo(max(0, last - 9), last + random.choice([0, 1])),
        ]
    )


THEMES = {
    "facts": (_say, _told),
    "usage": (_use, _used),
    "contents": (_make, _made),
    "works": (_work, _worked),
    "views": (_talk, _shown),
    "redaction": (_redact, _shown),
}
# Also with what the store writes for itself, and what depends on processes.
LIVES = {**THEMES, "names": (_alias, _found), "runs": (_work, _ran)}
