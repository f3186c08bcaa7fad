"""A session with some of everything that belongs to one, and what is compared of it."""

from __future__ import annotations

import json
from typing import Any

from engine import Store
from engine.session import Session

HANG_S = 60.0
LARGE = bytes(range(256)) * 40
USER = {"role": "user", "content": "and then?"}


def fill(session: Session, *, branching: bool = True) -> Session:
    """Messages on one branch or two, and usage, documents, artifacts, runs and calls beside them.

    Gives 18 events.
    """

    def done(ack: Any) -> int:
        first: int = ack.result(HANG_S).first
        return first

    question = done(session.append(USER))
    done(session.record_usage(model="m", input_tokens=3, cost=0.1, currency="USD"))
    done(session.documents.append("NOTES.md", "one\n"))
    done(session.runs.begin("run", metadata={"n": 1}))
    answer = done(session.append({"role": "assistant", "content": "call"}))
    done(session.tool_calls.open("call", "search", event=answer))
    done(session.artifacts.write("out", "short"))
    done(session.append({"role": "tool", "content": "found"}))
    done(session.artifacts.write("out", LARGE, "image/png"))
    done(session.tool_calls.waiting("call", "approval"))
    parent = question if branching else None
    done(session.append({"role": "assistant", "content": "other"}, parent=parent))
    done(session.artifacts.write("out", "of the other branch"))
    done(session.record_usage(model="n", output_tokens=5, event=answer, user_id="u2"))
    done(session.record_usage("run_total", input_tokens=3, output_tokens=5))
    done(session.documents.append("NOTES.md", "two\ud83d"))
    done(session.documents.write("TODO.md", ""))
    done(session.tool_calls.done("call", event=answer))
    done(session.runs.end("run", "failed", error="too slow"))
    return session


def told(moment: Any) -> dict[str, Any]:
    """All that a session, or one as it was, tells of what belongs to it."""
    artifacts = moment.artifacts
    return {
        "usage": [moment.usage(scope) for scope in ("turn", "provider_turn", "run_total")],
        "documents": [(each, moment.documents.read(each.name)) for each in moment.documents.list()],
        "artifacts": [
            (each, artifacts.read(id, each.version))
            for id in artifacts.list()
            for each in artifacts.versions(id)
        ],
        "calls": moment.tool_calls.list(),
        "runs": moment.runs.list(),
    }


def copy(store: Store, session: Session, into: Store) -> list[str]:
    """Load a session's export into another store; gives the lines."""
    tenant = store.tenant(session.tenant)
    lines = list(tenant.export_lines(session.events()))
    into.load(map(json.loads, lines))
    return lines
