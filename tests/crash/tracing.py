"""strace, attached to a process that waits: faults in its system calls, counted from there on."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.crash.forkserver import Child

WAIT_S = 20.0


@dataclass
class Traced:
    """A process under strace."""

    child: Child
    trace: Path
    tracer: subprocess.Popen[bytes]

    def finish(self) -> int:
        """Wait until both have ended; the process's exit status."""
        status = self.child.wait()
        self.tracer.wait(WAIT_S)
        return status

    def lines(self) -> list[str]:
        """The calls that were traced, in order, each with the thread's number in front."""
        return self.trace.read_text("utf-8", "replace").splitlines()

    @property
    def injected(self) -> int:
        """How many calls were tampered with."""
        return sum(["(INJECTED" in line for line in self.lines()])

    def counts(self) -> Counter[tuple[str, str]]:
        """Calls by thread and name."""
        found: Counter[tuple[str, str]] = Counter()
        for line in self.lines():
            call = re.match(r"(\d*) *(\w+)\(", line)
            if call:
                found[(call[1], call[2])] += 1
        return found


@contextmanager
def attach(
    strace: str,
    folder: Path,
    child: Child,
    *,
    calls: Sequence[str],
    inject: str | None = None,
    only: Sequence[Path] = (),
    threads: bool = True,
) -> Iterator[Traced]:
    """Put strace on a process that runs, for the body of the ``with``.

    strace counts the calls of each thread by itself, from here on.

    Args:
        strace: The command.
        folder: For the trace.
        child: The process.
        calls: Names of system calls to trace.
        inject: What ``-e inject=`` takes.
        only: Leave calls on other files alone.
        threads: Also tamper with its other threads.

    Raises:
        PermissionError: This process may not trace others.
    """
    output = folder / "trace"
    command = [strace, "-o", str(output), "-e", f"trace={','.join(calls)}"]
    command += ["-f"] * threads
    for path in only:
        command += ["-P", str(path)]
    if inject is not None:
        command += ["-e", f"inject={inject}"]
    tracer = subprocess.Popen(
        [*command, "-p", str(child.pid)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        assert tracer.stderr is not None
        said = tracer.stderr.readline()
        if b" attached" not in said:
            raise PermissionError(said.decode("utf-8", "replace").strip())
        yield Traced(child, output, tracer)
    finally:
        tracer.terminate()
        assert tracer.stderr is not None
        tracer.stderr.close()
        tracer.wait(WAIT_S)


@contextmanager
def trace(
    strace: str, folder: Path, start: Callable[[Path], Child], **options: Any
) -> Iterator[Traced]:
    """Start a process under strace; both have ended when the ``with`` has.

    Args:
        strace: The command.
        folder: For the trace; one process each.
        start: Starts the process, which waits at the given gate.
        options: As for ``attach``.
    """
    gate = folder / "gate"
    os.mkfifo(gate)
    child = start(gate)
    opened = _open_gate(gate, child)
    try:
        with attach(strace, folder, child, **options) as traced:
            os.write(opened, b".")
            try:
                yield traced
            finally:
                child.kill()
                child.wait()
    finally:
        os.close(opened)


def _open_gate(gate: Path, child: Child) -> int:
    """The gate, once its process has it open too: that call is over before any is counted."""
    while True:
        try:
            return os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        assert child.poll() is None, child.said()
        time.sleep(0.0005)
