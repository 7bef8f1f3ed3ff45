"""What the parameter server's work costs in CPU time, measured with nodes of its own on this machine.

Run as a program it is one of those nodes.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import adaps
from adabench.backends.policies._resources import Costs
from adaps.policy import Home, Policy, Rule
from adaps.simulation import MESSAGE_BYTES

__all__ = ["ask_nodes", "measured_costs"]

LENGTHS = (8, 128)
"""Floats of a row of the two tables."""
KEYS = 1024
_CASES = ((1, LENGTHS[0]), (KEYS, LENGTHS[0]), (KEYS, LENGTHS[1]))
CALLS, ROUNDS = {1: 100, KEYS: 20}, 7
"""Calls of a round, by their keys: as many as its barriers are little beside."""
_HEADERS = MESSAGE_BYTES["request"] + MESSAGE_BYTES["answer"]
"""Bytes of a question and its answer, without values."""


def measured_costs(speed: float) -> Costs:
    """CPU time of calls on a node alone, and of pulls between two nodes; takes some seconds.

    Parameters
    ----------
    speed : float
        Of this machine, in the unit of `Resources`'s nodes.

    Raises
    ------
    RuntimeError
        If a node could not do its work.
    """
    ((pulls, pushes),) = ask_nodes(__name__, 1)
    (first, _), (other, _) = ask_nodes(__name__, 2)
    return costs_of(pulls, pushes, [one + two for one, two in zip(first, other, strict=True)], speed)


def costs_of(pulls: list[float], pushes: list[float], remote: list[float], speed: float) -> Costs:
    """Costs from microseconds of CPU time per call, for each of the cases: 1 key and 8 floats a row, 1,024
    keys and 8 floats, 1,024 keys and 128 floats.

    Parameters
    ----------
    pulls, pushes : list of float
        Of calls that a node alone serves itself.
    remote : list of float
        Of a pull of another node's rows, of both nodes together: as much as a pull that a node serves itself,
        and three turns of channels, two messages a key and two frames, each of them at both ends.
    speed : float
        Of the machine.
    """
    visits = [(1.0, float(keys), 4.0 * keys * length) for keys, length in _CASES]
    means = [(pull + push) / 2 for pull, push in zip(pulls, pushes, strict=True)]
    call, key, value = _solved(visits, means)
    sent = [(4.0 * keys, 4.0, 2.0 * keys * (_HEADERS + 4 * length)) for keys, length in _CASES]
    left = [micros - pull - 3 * call for micros, pull in zip(remote, pulls, strict=True)]
    message, frame, byte = _solved(sent, left)
    return Costs(call=call, key=key, value=value, message=message, frame=frame, byte=byte, speed=speed)


def _solved(factors: list[tuple[float, float, float]], micros: list[float]) -> list[float]:
    """What each costs; nothing costs less than nothing."""
    return [max(float(cost), 0.0) for cost in np.linalg.solve(np.array(factors), np.array(micros))]


def ask_nodes(module: str, count: int, *arguments: str) -> list[Any]:
    """Run a module as so many nodes of one cluster on this machine; what each prints, as JSON.

    Parameters
    ----------
    module : str
        Its name.
    count : int
        At least 1.
    *arguments : str
        That each is given.

    Raises
    ------
    RuntimeError
        If a node could not do its work.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("TORCHELASTIC", "ADAPS"))
    }
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    nodes = [
        subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env={**clean, **place, "LOCAL_WORLD_SIZE": str(count), "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    found = []
    for node in nodes:
        out, err = node.communicate()
        if node.returncode != 0:
            raise RuntimeError(f"a node that measures ended with {node.returncode}: {err.strip()}")
        found.append(json.loads(out))
    return found


def _measure() -> tuple[list[float], list[float]]:
    """Microseconds of this process's CPU time per pull and per push of gradients, for each of the cases."""
    tables = [adaps.Table(f"rows of {length}", KEYS, length, adaps.Adagrad(lr=0.1)) for length in LENGTHS]
    last = int(os.environ["WORLD_SIZE"]) - 1
    policy = Policy("there", [Rule("*", technique="static", home=Home("node", node=last))])
    pulls, pushes = [], []
    with adaps.Node(tables, policy=policy) as node:
        worker = node.worker(0)
        for keys, length in _CASES:
            calls = CALLS[keys]
            chosen = node.table(f"rows of {length}").keys(np.arange(keys))
            values = np.full((keys, length), 1e-3, dtype=np.float32)
            worker.push_gradients(chosen, values)  # what is done for the first time takes longer
            pulls.append(_micros(worker, worker.pull, chosen, values, calls, node.rank))
            pushes.append(_micros(worker, worker.push_gradients, chosen, values, calls, node.rank))
    return pulls, pushes


def _micros(
    worker: adaps.Worker, call: Callable[..., Any], keys: Any, values: Any, calls: int, rank: int
) -> float:
    """Of this process, per call that node 0 makes; the others serve them. The least of some rounds: whatever
    else the machine does only adds to it.
    """
    least = float("inf")
    for _ in range(ROUNDS):
        worker.barrier()
        cpu = time.process_time()
        for _ in range(calls if rank == 0 else 0):
            call(keys, values)
        worker.barrier()
        least = min(least, 1e6 * (time.process_time() - cpu) / calls)
    return least


if __name__ == "__main__":
    print(json.dumps(_measure()))
