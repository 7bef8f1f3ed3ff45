"""Runs random programs plain and wrapped: ``python -m tests.fuzz_semantics --seed 0 --programs 1000``."""

from __future__ import annotations

import argparse
import os
import sys
import time

from tests.fuzz_semantics.search import Search


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz_semantics", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="seed of the first program (default: 0)")
    parser.add_argument("--programs", type=int, default=1000, help="number of programs (default: 1000)")
    parser.add_argument("--nodes", type=int, choices=(1, 2), default=1, help="number of nodes (default: 1)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (default: one per core)")
    parser.add_argument("--bugs", type=int, default=20, help="kinds of bugs to shrink (default: 20)")
    parser.add_argument("--refusals", action="store_true", help="list all refusals with an example")
    given = parser.parse_args()
    began = time.monotonic()
    search = Search(given.nodes, given.jobs)
    search.run(range(given.seed, given.seed + given.programs))
    search.print_counts(time.monotonic() - began)
    if given.refusals:
        search.print_refusals()
    search.print_bugs(given.bugs)
    return 1 if search.bugs else 0


if __name__ == "__main__":
    sys.exit(main())
