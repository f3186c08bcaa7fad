"""Rounds, ratios, temporary directories and the report: what every benchmark shares.

Invariants:

1. Both sides of a ratio run in turn, A B A B, in one process tree, in fresh directories of the same
   file system; the first, unmeasured part of a round warms it up.
2. Every side of every round starts after a full garbage collection, with the collector on.
3. A ratio is the median of the ratios of neighbouring rounds, unless README.md says why not; the
   raw values of both sides and of every round are reported beside it.
"""

from __future__ import annotations

import gc
import importlib.metadata
import math
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from bench.targets import Result

Figures = dict[str, object]
T = TypeVar("T")

_PACKAGES: Final = ("turnlog", "lmdb", "cbor2", "zstandard", "xxhash", "numpy")
_MEMORY_FILE_SYSTEMS: Final = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_PROBE_ROUNDS: Final = 20


class RefusedError(Exception):
    """The benchmark cannot give an honest figure here; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What one run was asked for.

    Attributes:
        quick: Fewer and shorter rounds, under 50 s.
        store: Directory whose file system takes all stores.
        only: Names of the figures to take; empty means all.
        corpus: Folder of real conversations, see ``corpus``; None for made ones.
    """

    quick: bool
    store: Path
    only: frozenset[str] = frozenset()
    corpus: Path | None = None

    def wants(self, name: str) -> bool:
        """True when the figure of that name is to be taken."""
        return not self.only or name in self.only


@dataclass(slots=True)
class Report:
    """Figures and results of one benchmark, filled while it runs."""

    figures: Figures = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True when every target is kept."""
        return all(result.ok for result in self.results)


def progress(text: str) -> None:
    """Tell on stderr what runs now, so that stdout stays the report alone."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


@contextmanager
def fresh_directory(settings: Settings) -> Iterator[Path]:
    """A new directory on the run's file system, removed afterwards."""
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=settings.store))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def even_start() -> None:
    """Give each side the same collector state: nothing pending, collecting as by default."""
    gc.enable()
    gc.collect()


def interleave(sides: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Run the sides in turn, ``rounds`` times each.

    Returns:
        Per side its value of each round, in order.
    """
    values: dict[str, list[T]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            even_start()
            values[name].append(run())
    return values


def paired_ratio(ours: Sequence[float], yardstick: Sequence[float]) -> float:
    """Median of the ratios of neighbouring rounds, so that a slow phase hits both sides."""
    return statistics.median(a / b for a, b in zip(ours, yardstick, strict=True))


def comparison(
    ours: Sequence[float], yardstick: Sequence[float], *, unit: str
) -> dict[str, object]:
    """The raw values of both sides beside what is computed from them."""
    return {
        "unit": unit,
        "ours": [significant(value) for value in ours],
        "yardstick": [significant(value) for value in yardstick],
        "ours_median": significant(statistics.median(ours)),
        "yardstick_median": significant(statistics.median(yardstick)),
        "round_ratios": [significant(a / b) for a, b in zip(ours, yardstick, strict=True)],
        "ratio": significant(paired_ratio(ours, yardstick)),
    }


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of all values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def significant(value: float, digits: int = 4) -> float:
    """The value rounded to so many significant digits: more would only look exact."""
    return float(f"{value:.{digits}g}")


def file_system_of(path: Path, mounts: str) -> str | None:
    """Type of the file system that holds ``path``.

    Args:
        path: An absolute path without symbolic links.
        mounts: The text of ``/proc/mounts``.

    Returns:
        Its type as the kernel names it, None when no mount covers the path.
    """
    best: tuple[int, str] | None = None
    for line in mounts.splitlines():
        parts = line.split(" ")
        if len(parts) < 3:
            continue
        # The kernel writes blanks and backslashes of a mount point as octal escapes.
        point = parts[1].encode().decode("unicode_escape")
        inside = point == "/" or path == Path(point) or Path(point) in path.parents
        # The last of two mounts on one point hides the first.
        if inside and (best is None or len(point) >= best[0]):
            best = (len(point), parts[2])
    return None if best is None else best[1]


def checked_store_directory(path: Path, *, allow_memory: bool) -> Path:
    """Make sure that durable costs what it costs in that directory.

    Raises:
        RefusedError: The directory is in memory, where fsync is free, or does not exist.
    """
    if not path.is_dir():
        raise RefusedError(f"{path} is no directory; create it or name another with --store")
    resolved = path.resolve()
    kind = _file_system(resolved)
    if kind in _MEMORY_FILE_SYSTEMS and not allow_memory:
        raise RefusedError(
            f"{path} is on {kind}, where fsync is free and every figure would be wrong; name a "
            "directory on a disk with --store, or say --allow-tmpfs"
        )
    return resolved


def _file_system(path: Path) -> str | None:
    mounts = Path("/proc/mounts")
    return file_system_of(path, mounts.read_text()) if mounts.exists() else None


def fsync_ms(directory: Path) -> float:
    """Median of one small write plus fsync there: the floor of a lone durable append."""
    path = directory / "fsync-probe"
    taken: list[float] = []
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        for _ in range(_PROBE_ROUNDS):
            start = time.perf_counter()
            os.pwrite(handle, b"x" * 4096, 0)
            os.fsync(handle)
            taken.append(time.perf_counter() - start)
    finally:
        os.close(handle)
        path.unlink()
    return statistics.median(taken) * 1000


def machine(settings: Settings) -> dict[str, object]:
    """Where the figures were taken."""
    return {
        "system": platform.system(),
        "release": platform.release(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load_before": [significant(load) for load in os.getloadavg()],
        "file_system": _file_system(settings.store),
        "fsync_ms": significant(fsync_ms(settings.store)),
    }


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line)
    return next(names, platform.machine())


def versions() -> dict[str, str]:
    """Versions of what was measured."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"  # run from a checkout
    return found
