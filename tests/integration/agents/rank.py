"""A rank under torchrun's agents: adds to rows on all nodes and compares the sums, after a single fault.

``python -m tests.integration.agents.rank FOLDER '{"victim": 1, "moment": "working", "lingers": 0}'``: rank
`victim` is killed at `moment`; the others need `lingers` seconds to end. With ``"nodes": 2``, a smaller world
waits until its agent restarts it as a larger one. Each rank of the last life writes its results to the
folder.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import adaps

KEYS = 50


def main() -> None:
    folder, told = Path(sys.argv[1]), json.loads(sys.argv[2])
    if told["lingers"]:
        signal.signal(signal.SIGTERM, lambda *_: end_slowly(told["lingers"]))
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    die_if(told, "starting", rank, world, folder)
    (folder / f"{rank}-of-{world}-came-{os.getpid()}").touch()
    try:
        if world < told["nodes"]:
            await_membership()
        sums = add(told, rank, world, folder)
    except adaps.AdapsError as error:
        (folder / f"error-{rank}-{os.getpid()}").write_text(f"{type(error).__name__}: {error}")
        time.sleep(told["lingers"])
        raise
    (folder / f"result-{rank}.json").write_text(json.dumps({"world": world, "sums": sums}))


def add(told: dict[str, Any], rank: int, world: int, folder: Path) -> list[float]:
    """Each node adds the power of two of its rank to every key, some steps long."""
    keys = np.arange(KEYS)
    with adaps.Node([adaps.Table("sums", KEYS, 1)], connect_timeout=30.0) as node:
        kv = node.worker(0)
        die_if(told, "connected", rank, world, folder)
        for step in range(20):
            kv.intent(keys, kv.current_clock, kv.current_clock + 1)
            kv.push(keys, np.full((KEYS, 1), 2.0**rank, np.float32))
            kv.advance_clock()
            if step == 10:
                die_if(told, "working", rank, world, folder)
        kv.waitall()
        kv.wait_sync()
        kv.barrier()
        kv.wait_sync()
        kv.barrier()
        out = np.empty((KEYS, 1), np.float32)
        kv.pull(keys, out)
        kv.barrier()
    return sorted({float(value) for value in out[:, 0]})


def die_if(told: dict[str, Any], moment: str, rank: int, world: int, folder: Path) -> None:
    """Kill this process if it is the chosen victim and no process was killed before."""
    if (rank, moment, world) != (told["victim"], told["moment"], told["nodes"]):
        return
    try:
        (folder / "died").touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def await_membership() -> None:
    """The agent ends this process when another agent has joined."""
    while True:
        signal.pause()


def end_slowly(seconds: float) -> None:
    """End after some seconds; the agent has to wait for this before it starts the next life."""
    time.sleep(seconds)
    os._exit(1)


if __name__ == "__main__":
    main()
