"""Runs cells of the matrix of faults, some at the same time, and prints what came of them as JSON."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import sys
import time
import traceback
from itertools import product
from typing import Any

import torch.distributed  # once, not in every process  # noqa: F401

from tests.integration.faults import network
from tests.integration.faults.cell import FAULTS, Cell, run
from tests.integration.faults.rank import PHASES

_PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    given = json.loads(sys.argv[1])
    cells = [Cell(*names) for names in product(FAULTS, PHASES, given["nodes"])]
    without = network.reason_without()
    if without is not None:
        cells = [cell for cell in cells if not cell.needs_cable]
    begin = time.monotonic()
    shares = [cells[number :: given["runners"]] for number in range(given["runners"])]
    pipes = [start_runner(share) for share in shares]
    outcomes: list[dict[str, Any]] = []
    for reader in pipes:
        with open(reader, "rb") as pipe:
            outcomes += map(json.loads, pipe.read().splitlines())
    codes = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in pipes]
    if any(codes) or len(outcomes) != len(cells):
        raise SystemExit(f"{len(outcomes)} of {len(cells)} cells ran; exit codes {codes}")
    order = {cell: number for number, cell in enumerate(cells)}
    outcomes.sort(key=lambda one: order[Cell(one["fault"], one["phase"], one["nodes"])])
    print(json.dumps({"outcomes": outcomes, "without": without, "seconds": time.monotonic() - begin}))


def start_runner(cells: list[Cell]) -> int:
    """Run the cells one after the other in a process of its own, which adopts what they leave behind."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(reader)
        code = 1
        try:
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            for cell in cells:
                os.write(writer, (json.dumps(dataclasses.asdict(outcome_of(cell))) + "\n").encode())
            code = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(code)
    os.close(writer)
    return reader


def outcome_of(cell: Cell) -> Any:
    if not cell.needs_cable:
        return run(cell, None)
    with network.Cable() as cable:
        return run(cell, cable)


if __name__ == "__main__":
    main()
