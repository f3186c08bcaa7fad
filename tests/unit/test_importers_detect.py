"""Formats are told apart by what a file holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventlog.errors import DamagedInputError
from turnlog import importers

LONG = '"' + "[{x" * 40_000 + '"'  # pushes what comes behind it out of the first pieces read


@pytest.mark.parametrize(
    ("text", "form"),
    [
        pytest.param('{"session": "a", "sequence": 0, "kind": "x"}', "jsonl", id="jsonl"),
        pytest.param('{"kind": "x", "sequence": 0, "session": "a"}', "jsonl", id="jsonl-order"),
        pytest.param(
            '{"tenant":"t","session":"a","sequence":0,"kind":"x","body":{"role":"user"}}\n{',
            "jsonl",
            id="jsonl-body-with-role",
        ),
        pytest.param('oops\n{"session":"a","sequence":0,"kind":"x"}', "jsonl", id="jsonl-damaged"),
        pytest.param('{"messages": []}', "openai", id="openai-chat"),
        pytest.param('[\n {"messages": []}', "openai", id="openai-chats"),
        pytest.param('[{"role": "user"', "openai", id="openai-messages"),
        pytest.param('{"role": "user", "content": "messages"}', "openai", id="openai-message"),
        pytest.param('\ufeff{"role": "user"}', "openai", id="openai-byte-order-mark"),
        pytest.param('{"nope"\n{"messages": []}', "openai", id="openai-damaged"),
        pytest.param(f'{{"id": {LONG}, "messages": []}}', "openai", id="openai-late-key"),
        pytest.param('[{"dialogue_id": "1", "turns": [', "sgd", id="sgd"),
        pytest.param(f'[{{"turns": [{LONG}], "dialogue_id": "1"}}]', "sgd", id="sgd-late-key"),
        pytest.param('[{"conversation_id": "1", "utterances": [', "taskmaster", id="taskmaster"),
        pytest.param('{"7": {"goal": [], "messages": [', "crosswoz", id="crosswoz"),
        pytest.param(
            '{"dialogue_id": 1, "interlocutors": [], "utterances": []}',
            "realpersonachat",
            id="realpersonachat",
        ),
        pytest.param('[{"task_id": 0, "traj": [{"role": "user"}]}]', "tau-bench", id="tau-bench"),
        pytest.param('{"messages_display": "user: x"}', "tau-bench", id="tau-bench-few-shot"),
        pytest.param("# x\ncategories:\n- a\nconversations:\n- - b", "chatterbot", id="chatterbot"),
        pytest.param("conversations:", "chatterbot", id="chatterbot-no-categories"),
        pytest.param('{"parentUuid":null,"uuid":"a","type":"user"}', "claude-code", id="claude"),
        pytest.param(
            '{"type":"summary","summary":"x","leafUuid":"a"}', "claude-code", id="claude-summary"
        ),
        pytest.param(
            '{"type":"started","key":"k","agentId":"a"}', "claude-code", id="claude-journal"
        ),
        pytest.param('[{"title":"x","mapping":{"a":{"message":', "chatgpt", id="chatgpt"),
        pytest.param('{"conversationId":"x","messages":[]}', "librechat", id="librechat"),
        pytest.param('{"version":4,"history":[', "chatbot-ui", id="chatbot-ui"),
        pytest.param('{"message_tree_id":"x","prompt":{"role":"prompter"', "oasst", id="oasst"),
        pytest.param(
            '[{"user_message_id":"x","parent_message_id":null,"text":"","role":"prompter"}',
            "oasst",
            id="oasst-flat",
        ),
        pytest.param('{"type":"session","id":"x","timestamp":"t","cwd":"/"}', "pi", id="pi"),
        pytest.param(
            '{"instance_id":"x","instruction":"y","history":[]}', "openhands", id="openhands"
        ),
        pytest.param('{"environment":"main","trajectory":[', "swe-agent", id="swe-agent"),
        pytest.param('{"history":[{"role":"system"}]}', "swe-agent", id="swe-agent-history"),
    ],
)
def test_detect(tmp_path: Path, text: str, form: str) -> None:
    # The name says something else each time.
    path = tmp_path / ("f.yml" if form != "chatterbot" else "f.json")
    path.write_text(text, encoding="utf-8")
    assert importers.detect(path) == form


@pytest.mark.parametrize(
    ("data", "words"),
    [
        pytest.param(b"", "empty", id="empty"),
        pytest.param(b"\n \n", "empty", id="blank"),
        pytest.param(b"[]", "not known", id="empty-list"),
        pytest.param(b"{}", "not known", id="empty-object"),
        pytest.param(b"[1]", "not known", id="numbers"),
        pytest.param(b'{"a": 1}\n{"a": 2}', "not known", id="other-lines"),
        pytest.param(b'[{"service_name": "x", "slots": []}]', "not known", id="other-list"),
        pytest.param(b"name: x\nlist:\n- a", "not known", id="other-yaml"),
        pytest.param(b"once upon a time", "not known", id="text"),
        pytest.param(b"\x00\x01", "binary", id="binary"),
        pytest.param('{"role": "user"}'.encode("utf-16"), "binary", id="utf-16"),
        pytest.param(b"[" * 100_000, "not known", id="lists-without-end"),
        pytest.param(b'{"a":' * 100_000, "not known", id="objects-without-end"),
        pytest.param(b'{"' + b'\\"' * 1_000_000, "not known", id="text-without-end"),
    ],
)
def test_unknown(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "f.json"
    path.write_bytes(data)
    with pytest.raises(DamagedInputError, match=words) as caught:
        importers.detect(path)
    assert caught.value.file == str(path)
    with pytest.raises(DamagedInputError):
        importers.read_file(path)
