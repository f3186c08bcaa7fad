"""One image that a session is shown again and again: what the copies add to the store."""

from __future__ import annotations

import random
from typing import Final

from bench.harness import Report, Settings, fresh_directory, progress, significant
from bench.targets import Result
from bench.workloads import SEED
from engine import Store

FIGURES: Final = ("image_20",)
_IMAGE_BYTES: Final = 1_000_000
_APPENDS: Final = 20


def run(settings: Settings, report: Report) -> None:
    """Put and name the same image with each append, and ask for the pages in use between."""
    if not settings.wants("image_20"):
        return
    progress(f"image_20: {_APPENDS} appends of one image")
    image = random.Random(SEED).randbytes(_IMAGE_BYTES)
    used: list[int] = []
    with fresh_directory(settings) as directory, Store.open(directory / "store") as store:
        call = store.session("call")
        call.append({"role": "user", "content": "Here it comes."}).result()
        used.append(store.stats()["used_bytes"])
        for number in range(_APPENDS):
            blob = store.blobs.put(image, media_type="image/jpeg")
            call.append({"role": "user", "content": f"Look, {number}."}, blobs=[blob]).result()
            used.append(store.stats()["used_bytes"])
    first, others = used[1] - used[0], used[-1] - used[1]
    ratio = others / first
    report.figures["image_20"] = {
        "unit": "bytes",
        "image": _IMAGE_BYTES,
        "first": first,
        "others": others,
        "ratio": significant(ratio),
    }
    report.results.append(Result("image_20", ratio))
