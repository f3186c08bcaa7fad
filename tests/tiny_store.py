"""The smallest store there is: a commit record and one table, for tests below the engine.

Also run by child processes, as ``python -c "from tests.tiny_store import ..."``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lmdb

from eventlog.creation import create
from eventlog.environment import Environment
from eventlog.raw import DATA_FILE, examine
from eventlog.rows import COMMIT_KEY, CommitRecord

REPOSITORY = Path(__file__).resolve().parents[1]
TABLES = ("commit", "log")


def initialise(txn: lmdb.Transaction[bytes], db: Mapping[str, Any]) -> None:
    """Put the first commit record."""
    txn.put(COMMIT_KEY, CommitRecord(transaction=txn.id()).encode(), db=db["commit"])


def make(path: Path, **options: Any) -> None:
    """Create a tiny store."""
    create(path, tables=TABLES, initialise=initialise, marker={"store": "tiny"}, **options)


def open_tiny(path: Path, **options: Any) -> Environment:
    """Open one."""
    return Environment.open(
        path, tables=lambda _: TABLES, decode_commit_record=CommitRecord.decode, **options
    )


def append(environment: Environment, value: bytes, deadline_ms: int | None = None) -> int:
    """Commit one value; its position."""
    txn = environment.begin_write(deadline_ms)
    try:
        found = txn.get(COMMIT_KEY, db=environment.db["commit"])
        assert found is not None
        position = CommitRecord.decode(found).last_position + 1
        key = position.to_bytes(8, "big")
        assert txn.put(key, value, append=True, db=environment.db["log"])
        record = CommitRecord(
            last_position=position,
            transaction=txn.id(),
            file_bytes=environment.file_bytes(),
        )
        txn.put(COMMIT_KEY, record.encode(), db=environment.db["commit"])
    except BaseException:
        environment.abort(txn)
        raise
    environment.commit(txn)
    return position


def values(environment: Environment) -> list[bytes]:
    """All values, in order."""
    with environment.read() as txn:
        return [bytes(value) for _, value in txn.cursor(db=environment.db["log"])]


def check(path: Path) -> list[bytes]:
    """Walk every page of a closed store and give its values; positions must be gap-free."""
    examine(path / DATA_FILE, CommitRecord.decode, verify=True)
    with open_tiny(path, read_only=True) as environment, environment.read() as txn:
        found = txn.get(COMMIT_KEY, db=environment.db["commit"])
        assert found is not None
        rows = list(txn.cursor(db=environment.db["log"]))
        last = CommitRecord.decode(bytes(found)).last_position
        assert [int.from_bytes(key, "big") for key, _ in rows] == list(range(1, last + 1))
        return [bytes(value) for _, value in rows]


def child(script: str, *arguments: str | Path, **options: Any) -> subprocess.Popen[str]:
    """Start a Python process that runs a script; its output and input are pipes."""
    prefix = options.pop("prefix", [])
    command = [*prefix, sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        **options,
    )


def finish(process: subprocess.Popen[str], *, code: int | None = 0, timeout: float = 60) -> str:
    """Wait for a child; its output."""
    output, errors = process.communicate(timeout=timeout)
    if code is not None:
        assert process.returncode == code, errors
    return output
