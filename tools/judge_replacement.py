"""Judges the orders in which rows of ids are retired by a trace; writes the table of docs/guides/raw-ids.md.

Usage: ``python tools/judge_replacement.py TRACE``, with a file of int64 ids in big-endian order that xz has
compressed, such as the trace ``scarab-recs`` of Caffeine's simulator. W-TinyLFU is measured with the library
theine: ``pip install theine``. This takes a few minutes. With ``--print``, the page is not changed.
"""

from __future__ import annotations

import argparse
import importlib
import lzma
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

import adaps
from adabench.analysis.pages import write_section
from adabench.analysis.tables import markdown

__all__ = ["PERCENTS", "hit_ratios", "main", "window_tinylfu"]

PAGE = Path(__file__).resolve().parents[1] / "docs" / "guides" / "raw-ids.md"
PERCENTS = (1, 5, 10, 25)
"""Rows of the table, in percent of the distinct ids."""
AHEAD = 20
"""Number of announced batches, of 1,024 requests each."""

Ids = npt.NDArray[np.int64]


def window_tinylfu(ids: Ids, capacity: int) -> float:
    """Return the hit ratio of W-TinyLFU, as the library theine implements it."""
    cache = importlib.import_module("theine").Cache(capacity)
    hits = 0
    for each in ids.tolist():
        _, found = cache.get(each)
        if found:
            hits += 1
        else:
            cache.set(each, True)
    return hits / len(ids)


def hit_ratios(ids: Ids, percents: Sequence[float] = PERCENTS) -> dict[str, list[float]]:
    """Return the hit ratios of each order, for tables with some percents of the distinct ids as rows."""
    distinct = len(np.unique(ids))
    sizes = [max(1, int(distinct * percent / 100)) for percent in percents]

    def ratios(order: str, lookahead: int = 0, batch: int = 1024) -> list[float]:
        replays = (
            adaps.replay_rows(ids, size, evict=order, lookahead=lookahead, batch=batch) for size in sizes
        )
        return [replay.hit_ratio for replay in replays]

    lru = ratios("lru")
    optimum = ratios("intent", lookahead=len(ids), batch=1)
    return {
        '`"lru"`': lru,
        '`"lfu"`': ratios("lfu"),
        "W-TinyLFU": [window_tinylfu(ids, size) for size in sizes],
        '`"intent"`, nothing announced': ratios("intent"),
        f'`"intent"`, {AHEAD} batches announced': ratios("intent", lookahead=AHEAD),
        'half of the way from `"lru"` to the optimum': [
            (least + most) / 2 for least, most in zip(lru, optimum, strict=True)
        ],
        "optimum: all requests announced": optimum,
        "unlimited rows": [1 - distinct / len(ids)] * len(sizes),
    }


def main(arguments: Sequence[str]) -> int:
    """Print the table, and write it to the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--print", action="store_true", dest="only_print")
    given = parser.parse_args(arguments)
    with lzma.open(given.trace) as file:
        ids = np.frombuffer(file.read(), dtype=">i8").astype(np.int64)
    rows = [(name, *(f"{one:.3f}" for one in ratios)) for name, ratios in hit_ratios(ids).items()]
    table = markdown(["order", *(f"{percent} %" for percent in PERCENTS)], rows)
    print(table)
    if not given.only_print:
        write_section(PAGE, "orders", "tools/judge_replacement.py", table)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
