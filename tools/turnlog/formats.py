"""The formats that ``turnlog import`` reads: their names and what each is.

Apart from the importers, so that a help text loads none of them.
"""

from __future__ import annotations

from typing import Final

FORMATS: Final = {
    "jsonl": "turnlog's own export, one event a line",
    "openai": "chats in the shape of the OpenAI API: role and content, JSON or JSON Lines",
    "claude-code": "Claude Code, transcripts of sessions and subagents, a tree of records",
    "chatgpt": "ChatGPT, the conversations.json of an export, trees of messages",
    "librechat": "LibreChat, an exported conversation with its branches",
    "chatbot-ui": "Chatbot UI, an export of its history",
    "oasst": "Open Assistant, message trees, nested or flat",
    "pi": "pi, a session with its compactions, one entry a line",
    "openhands": "OpenHands, evaluation outputs with the history of each run",
    "swe-agent": "SWE-agent, a trajectory with its history",
    "sgd": "Schema-Guided Dialogue, a JSON list of dialogues with turns",
    "taskmaster": "Taskmaster, a JSON list of conversations with utterances",
    "crosswoz": "CrossWOZ, a JSON object of dialogues by their ids",
    "realpersonachat": "RealPersonaChat, one dialogue a JSON file",
    "chatterbot": "ChatterBot corpus, a YAML file of conversations",
    "tau-bench": "tau-bench, trajectories and few-shot transcripts",
}


def format_table() -> str:
    """The table that ``turnlog import --help`` shows."""
    width = max(map(len, FORMATS))
    return "\n".join(f"  {name:<{width}}  {what}" for name, what in FORMATS.items())
