"""Files of conversation trees as they are, read by code that shares nothing with the importers."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Raw = dict[str, Any]


@dataclass
class RawTree:
    """What one session should hold: records by id, and their parents."""

    file: Path
    session: str
    parents: dict[Any, Any] = field(default_factory=dict)
    texts: dict[Any, Any] = field(default_factory=dict)

    def add(self, own: Any, parent: Any, text: Any) -> None:
        if own not in self.parents:
            self.parents[own], self.texts[own] = parent, text

    def paths(self) -> dict[Any, list[Any]]:
        """The path from the root to each leaf, by the leaf."""
        known = {
            own: above if above in self.parents else None for own, above in self.parents.items()
        }
        followed = set(known.values())
        found = {}
        for leaf in known:
            if leaf not in followed:
                path, at = [], leaf
                while at is not None:
                    path.append(at)
                    at = known[at]
                found[leaf] = path[::-1]
        return found


def lines_in(file: Path) -> Iterator[Any]:
    for line in file.read_text(encoding="utf-8").split("\n"):
        if line.strip():
            yield json.loads(line)


def claude_code(file: Path) -> Iterator[RawTree]:
    records = [each for each in lines_in(file) if isinstance(each, dict)]
    of = next((each["sessionId"] for each in records if "uuid" in each), None)
    name = file.stem
    if name.startswith("agent-"):
        name = f"{of}/{name}"
    elif name == "journal":
        name = f"{file.parent.name}/{name}"
    tree = RawTree(file, name)
    for each in records:
        if "uuid" in each:
            said = each.get("message")
            text = said.get("content") if isinstance(said, dict) else said
            tree.add(each["uuid"], each["parentUuid"], text)
    yield tree


def chat_exports(file: Path) -> Iterator[RawTree]:
    value = json.loads(file.read_text(encoding="utf-8"))
    if "chatgpt" in file.name:
        for chat in value:
            tree = RawTree(file, chat["conversation_id"])
            for own, node in chat["mapping"].items():
                said = node["message"] or {"content": {"parts": [None]}}
                parts = said["content"].get("parts", [said["content"]])
                tree.add(own, node["parent"], parts[0])
            yield tree
    elif "librechat" in file.name:
        tree = RawTree(file, value["conversationId"])

        def walk(messages: list[Raw], above: Any) -> None:
            for each in messages:
                tree.add(each["messageId"], above or each["parentMessageId"], each["text"])
                walk(each.get("children", []), each["messageId"])

        walk(value["messages"], None)
        yield tree
    else:
        for chat in value["history"]:
            tree = RawTree(file, chat["id"])
            for place, each in enumerate(chat["messages"]):
                tree.add(place, place - 1, each["content"])
            yield tree


def oasst(file: Path) -> Iterator[RawTree]:
    if file.suffix == ".jsonl":
        for record in lines_in(file):
            tree = RawTree(file, record["message_tree_id"])

            def walk(each: Raw, above: Any, tree: RawTree = tree) -> None:
                tree.add(each["message_id"], above, each["text"])
                for reply in each["replies"]:
                    walk(reply, each["message_id"])

            walk(record["prompt"], None)
            yield tree
        return
    trees: dict[str, RawTree] = {}
    for each in json.loads(file.read_text(encoding="utf-8")):  # parents come first there
        own, above = each["user_message_id"], each["parent_message_id"]
        tree = trees[own] = trees[above] if above else RawTree(file, own)
        tree.add(own, above, each["text"])
    yield from {id(tree): tree for tree in trees.values()}.values()


def pi(file: Path) -> Iterator[RawTree]:
    header, *entries = lines_in(file)
    tree = RawTree(file, header["id"])
    for place, each in enumerate(entries):
        said = each.get("message", {}).get("content", each.get("summary"))
        tree.add(place, place - 1, said)
    yield tree


def openhands(file: Path) -> Iterator[RawTree]:
    for run in lines_in(file):
        issue = run.get("issue", {})
        name = f"{issue.get('owner')}/{issue.get('repo')}#{issue.get('number')}"
        tree = RawTree(file, run.get("instance_id", name))
        for place, each in enumerate(run["history"]):
            tree.add(place, place - 1, each.get("args", {}).get("content", each.get("content")))
        yield tree


def swe_agent(file: Path) -> Iterator[RawTree]:
    tree = RawTree(file, f"{file.parent.name}/{file.stem}")
    for place, each in enumerate(json.loads(file.read_text(encoding="utf-8"))["history"]):
        tree.add(place, place - 1, each["content"])
    yield tree


SOURCES = {
    "claude-code-sessions-a": (claude_code, ("uuid",)),
    "chat-export-trees": (chat_exports, ("id", "messageId")),
    "oasst-trees": (oasst, ("message_id", "user_message_id")),
    "pi-session-compaction": (pi, ()),
    "openhands-event-history": (openhands, ()),
    "swe-agent-trajectories": (swe_agent, ()),
}


def unpacked(corpus: Path, source: str, into: Path) -> list[Path]:
    with tarfile.open(corpus / source / "data.tar.xz", "r:xz") as archive:
        archive.extractall(into, filter="data")
    files = sorted(each for each in into.rglob("*") if each.is_file())
    return [each for each in files if each.name != "LICENSE"]
