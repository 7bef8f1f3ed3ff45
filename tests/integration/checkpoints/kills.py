"""Trains in processes that are killed while they write checkpoints; the next ones go on from what is there.

Every life restores the newest checkpoint, proves that its content is that of the step that it claims, and
that this is not before the last step that was acknowledged; then it makes steps, each with a checkpoint,
until it is killed. The processes are forks of this one, so a life costs some hundredths of a second.
"""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import adaps
import adaps.checkpoint
from tests.conftest import free_port
from tests.integration.checkpoints.faulty_disk import FaultyDisk, lose, received

ROWS, LENGTH, RATE = 96, 4, 0.5
INIT = adaps.Uniform(-1.0, 1.0, seed=4)
MOST_CALLS = 60
"""Of about 20 for a checkpoint of one node."""
MOST_STEPS = 6
PATIENCE = 60.0


def table() -> adaps.Table:
    return adaps.Table("emb", ROWS, LENGTH, optimizer=adaps.Adagrad(lr=RATE), init=INIT)


@functools.cache
def start() -> npt.NDArray[np.float32]:
    """The initial values; they come from a process of their own, for this one is to have no node."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        with adaps.Node([table()]) as node:
            out = np.empty((ROWS, LENGTH), np.float32)
            node.worker(0).pull(np.arange(ROWS), out)
        os.write(writer, out.tobytes())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        data = pipe.read()
    os.wait()
    return np.frombuffer(data, np.float32).reshape(ROWS, LENGTH)


def expected(step: int) -> npt.NDArray[np.float32]:
    """Values after so many gradients of 1 in every third row; they tell if a state is of another step."""
    values = start().copy()
    for number in range(1, step + 1):
        values[::3] -= np.float32(RATE) / (np.sqrt(np.float32(number)) + np.float32(1e-10))
    return values


def live(directory: Path, acknowledged: int, report: int, nodes: int, fault: tuple[int, str] | None) -> None:
    """One process's life; ends the process."""

    def say(message: Any) -> None:
        os.write(report, (json.dumps(message) + "\n").encode())

    try:
        with adaps.Node([table()], peer_timeout=30.0) as node:
            kv = node.worker(0)
            step = 0
            if adaps.checkpoint.exists(directory):
                step = int(node.restore(directory).extra["step"])
            if not acknowledged <= step <= acknowledged + 1:
                raise AssertionError(f"step {acknowledged} was acknowledged; step {step} was restored")
            out = np.empty((ROWS, LENGTH), np.float32)
            kv.pull(np.arange(ROWS), out)
            if not np.allclose(out, expected(step), rtol=1e-5, atol=1e-6):
                raise AssertionError(f"the content is not that of step {step}")
            kv.barrier()
            if node.rank == 0:
                say(step)  # what was restored once must not be lost later
            if fault is not None:
                FaultyDisk(*fault, say)
            for number in range(step + 1, step + 1 + MOST_STEPS):
                rows = np.arange(3 * node.rank, ROWS, 3 * node.world_size)
                kv.push_gradients(rows, np.ones((len(rows), LENGTH), np.float32))
                node.checkpoint(directory, extra={"step": number})
                if node.rank == 0:
                    say(number)
    except adaps.PeerLost:
        os._exit(3)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


Life = Callable[[Path, int, int, int, tuple[int, str] | None], None]


def rounds(directory: Path, kills: int, seed: int, most_nodes: int, life: Life = live) -> dict[str, Any]:
    """Kill so many processes; counts how each of them ended."""
    numbers = random.Random(seed)
    acknowledged, killed, lives, longest = 0, 0, 0, 0.0
    while killed < kills:
        nodes = 1 + lives % most_nodes
        victim = numbers.randrange(nodes)
        fault = (numbers.randint(1, MOST_CALLS), numbers.choice(["before", "amid", "after"]))
        lives += 1
        begin = time.monotonic()
        reader, writer = os.pipe()
        port = str(free_port())
        processes = []
        for rank in range(nodes):
            process = os.fork()
            if process == 0:
                os.close(reader)
                place = {"RANK": rank, "WORLD_SIZE": nodes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                os.environ.update({name: str(value) for name, value in place.items()})
                life(directory, acknowledged, writer, nodes, fault if rank == victim else None)
            processes.append(process)
        os.close(writer)
        with open(reader, "rb") as pipe:
            steps, unsynced = received(pipe.read())
        ends = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
        longest = max(longest, time.monotonic() - begin)
        acknowledged = max([acknowledged, *steps])
        died = ends[victim] == -signal.SIGKILL
        others = {end for rank, end in enumerate(ends) if rank != victim}
        if (not died and ends[victim] != 0) or not others <= ({0, 3} if died else {0}):
            raise AssertionError(f"life {lives} of {nodes} nodes, fault {fault}: exit codes {ends}")
        if died:
            killed += 1
            if unsynced is not None:
                lose(unsynced, numbers)
    return {"kills": killed, "lives": lives, "acknowledged": acknowledged, "longest": longest}


def main() -> None:
    given = json.loads(sys.argv[1])
    if given["nodes"] > 1:
        import torch.distributed  # once, not in every child  # noqa: F401
    start()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(dir=given["folder"]) as folder:
        result = rounds(Path(folder) / "saved", given["kills"], given["seed"], given["nodes"])
    print(json.dumps({**result, "seconds": time.monotonic() - begin}))


if __name__ == "__main__":
    main()
