"""CPU time of the parameter server's work, measured with nodes on this machine.

Executed as a program, this module is one of these nodes.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np

import adaps
from adaps import Costs
from adaps.policy import Home, Policy, Rule
from adaps.simulation import MESSAGE_BYTES

__all__ = ["ask_nodes", "measured_costs"]

LENGTHS = (8, 128)
"""Numbers of floats of a row in the two tables."""
KEYS = 1024
_CASES = ((1, LENGTHS[0]), (KEYS, LENGTHS[0]), (KEYS, LENGTHS[1]))
CALLS, ROUNDS = {1: 100, KEYS: 20}, 7
"""Number of calls of a round, by their number of keys. It makes the cost of the round's barriers small."""
_RESUME = "resume"
"""Argument of a node that measures a wait, instead of a load."""
_HEADERS = MESSAGE_BYTES["request"] + MESSAGE_BYTES["answer"]
"""Bytes of a request and its answer, without values."""
ROWS, WARM_UP, STEPS, AHEAD = 200_000, 50, 150, 10
"""Number of rows of a table, more than caches hold, of warm-up and of measured steps; and the lookahead."""
_FRAMES = 1000
"""Number of frames that are sent and received to measure the cost of one."""
_SAMPLES, _INPUTS, _HIDDEN = 256, 416, (128, 64)
"""Samples of a batch, inputs and hidden layers of a small model that nodes train."""
_MODEL_STEPS = 200
"""Number of consecutive steps of this model that are measured."""
_TOUCHED, _TIMES = 8 << 20, 4
"""Bytes that a step reads and writes, and how often. They exceed a core's own caches, as models do."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """A load of two nodes: in a step, each signals intent for `KEYS` rows, reads them and pushes gradients.

    Attributes
    ----------
    technique : str
        Technique of the rows.
    length : int
        Number of floats of a row.
    apart : bool
        Whether the nodes use disjoint rows, which move to them once. Intents then mostly begin and end
        without effect.
    """

    technique: Literal["adaptive", "replication", "static"]
    length: int
    apart: bool = False


LOADS = (
    Load(technique="adaptive", length=16, apart=True),
    *(
        Load(technique=technique, length=length)
        for technique in ("adaptive", "replication", "static")
        for length in (16, 128)
    ),
)
_CALLS_THAT_WAIT = 2
"""Number of waiting calls of a step under ``static``, which reads and writes rows of the other node."""


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a node in a step.

    Attributes
    ----------
    worked : float
        CPU time of its worker, in microseconds.
    copies, elsewhere : float
        Number of rows that the worker read or wrote in replicas, and at the other node.
    micros : float
        CPU time of its channels.
    turns, intents, messages, upkeep, frames, bytes : float
        Numbers of operations in a step at this end: see `Costs`.
    """

    worked: float
    copies: float
    elsewhere: float
    micros: float
    turns: float
    intents: float
    messages: float
    upkeep: float
    frames: float
    bytes: float


def measured_costs(speed: float, network: str = "loopback") -> Costs:
    """Measure the CPU time of the server's operations on this machine, which takes half a minute.

    The measurements are calls on a single node, pulls between two nodes, their threads while they announce
    rows, and a model that waits between its steps.

    Parameters
    ----------
    speed : float
        Speed of this machine, relative to the speeds of nodes in `Resources`.
    network : str
        Network that is imitated between nodes. The imitation also takes CPU time.

    Raises
    ------
    RuntimeError
        If a node failed.
    """
    ((pulls, pushes),) = ask_nodes(__name__, 1, network)
    (first, _), (other, _) = ask_nodes(__name__, 2, network)
    loads = [ask_nodes(__name__, 2, network, msgspec.json.encode(load).decode()) for load in LOADS]
    resumed = ask_nodes(__name__, 2, network, _RESUME)
    remote = [one + two for one, two in zip(first, other, strict=True)]
    done = msgspec.convert(loads, list[list[Done]])
    return costs_of(pulls, pushes, remote, _frame_micros(), done, max(float(np.mean(resumed)), 0.0), speed)


def costs_of(
    pulls: list[float],
    pushes: list[float],
    remote: list[float],
    frame: float,
    loads: Sequence[Sequence[Done]],
    resume: float,
    speed: float,
) -> Costs:
    """Compute costs from measured CPU time per call and from the work of nodes under each of `LOADS`.

    Calls are measured in three cases: 1 key and 8 floats per row, 1,024 keys and 8 floats, and 1,024 keys and
    128 floats. All times are in microseconds.

    Calls that a node serves itself use rows in a core's caches. Channels work while models are trained, which
    occupy the caches. Therefore the work of channels is measured together with code that fills the caches.
    The additional cost of replicas and remote rows for workers is measured in the same way.

    Parameters
    ----------
    pulls, pushes : list of float
        CPU times of calls that the node serves itself.
    remote : list of float
        CPU times of a pull of another node's rows, for both nodes together. It includes a local pull, three
        turns of channels with a wake-up each, the worker's wake-up, two messages per key, and two frames, all
        at both ends.
    frame : float
        CPU time of a frame at one end.
    loads : sequence of sequence of Done
        Work of each node, by load.
    resume : float
        Slowdown of the computation after a wait.
    speed : float
        Speed of the machine.
    """
    visits = [(1.0, float(keys), 4.0 * keys * length) for keys, length in _CASES]
    means = [(pull + push) / 2 for pull, push in zip(pulls, pushes, strict=True)]
    call, key, value = _solved(visits, means)
    sent = [(4.0 * keys, 4.0, 2.0 * keys * (_HEADERS + 4 * length)) for keys, length in _CASES]
    left = [micros - pull - 3 * call - 4 * frame for micros, pull in zip(remote, pulls, strict=True)]
    message, wake, byte = _solved(sent, left)
    lengths = sorted({load.length for load in LOADS})
    acted, unexplained, accessed, worked = [], [], [], []
    for load, nodes in zip(LOADS, loads, strict=True):
        for done in nodes:
            any_row = [float(load.length == length) for length in lengths]
            accessed.append((done.copies, done.elsewhere, *any_row))
            waited = _CALLS_THAT_WAIT * wake if load.technique == "static" else 0.0
            worked.append(done.worked - waited)
            if load.technique == "static":
                continue  # requests and answers only
            known = (call + wake) * done.turns + frame * done.frames + message * done.messages
            acted.append((done.intents, done.upkeep, done.bytes))
            unexplained.append(done.micros - known)
    intent, upkeep, cold_byte = _solved(acted, unexplained)
    copy, elsewhere, *_ = _solved(accessed, worked)
    return Costs(
        call=call,
        wake=wake,
        resume=resume,
        key=key,
        value=value,
        copy=copy,
        elsewhere=elsewhere,
        intent=intent,
        message=message,
        upkeep=upkeep,
        frame=frame,
        byte=max(byte, cold_byte),
        speed=speed,
    )


def _solved(factors: Sequence[tuple[float, ...]], micros: Sequence[float]) -> list[float]:
    """Return the cost of each factor, at least 0, by least squares of relative errors."""
    scale = 1.0 / np.maximum(np.abs(np.array(micros)), 1e-9)
    found = np.linalg.lstsq(np.array(factors) * scale[:, None], np.array(micros) * scale)[0]
    return [max(float(cost), 0.0) for cost in found]


def ask_nodes(module: str, count: int, *arguments: str) -> list[Any]:
    """Run a module as the nodes of a cluster on this machine. Returns the JSON that each node prints.

    Parameters
    ----------
    module : str
        Name of the module.
    count : int
        Number of nodes, at least 1.
    *arguments : str
        Arguments of each node.

    Raises
    ------
    RuntimeError
        If a node failed.
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


def _measure(network: str) -> tuple[list[float], list[float]]:
    """Return microseconds of this process's CPU time per pull and per push of gradients, for each case."""
    tables = [adaps.Table(f"rows of {length}", KEYS, length, adaps.Adagrad(lr=0.1)) for length in LENGTHS]
    last = int(os.environ["WORLD_SIZE"]) - 1
    policy = Policy("there", [Rule("*", technique="static", home=Home("node", node=last))])
    beside = _Caches() if last else None
    pulls: list[float] = []
    pushes: list[float] = []
    with adaps.Node(tables, policy=policy, network=network) as node:
        worker = node.worker(0)
        for keys, length in _CASES:
            calls = CALLS[keys]
            chosen = node.table(f"rows of {length}").keys(np.arange(keys))
            values = np.full((keys, length), 1e-3, dtype=np.float32)
            worker.push_gradients(chosen, values)  # the first call takes longer
            for found, call in ((pulls, worker.pull), (pushes, worker.push_gradients)):
                found.append(_micros(worker, call, chosen, values, calls, beside, node.rank))
    return pulls, pushes


class _Caches:
    """Fills a core's caches, as the training of a model does."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._touched = np.ones(_TOUCHED // 4, dtype=np.float32)

    def fill(self) -> None:
        """Fill the caches, and count the CPU time."""
        began = time.thread_time()
        for _ in range(_TIMES):
            self._touched *= 1.0
        self.seconds += time.thread_time() - began


def _micros(
    worker: adaps.Worker,
    call: Callable[..., Any],
    keys: Any,
    values: Any,
    calls: int,
    beside: _Caches | None,
    rank: int,
) -> float:
    """Return this process's CPU time per call that node 0 makes and other nodes serve, without `beside`.

    Returns the minimum of several rounds, because other activity on the machine only adds time.
    """
    least = float("inf")
    for _ in range(ROUNDS):
        worker.barrier()
        cpu = _seconds_but_for(beside)
        for _ in range(calls):
            if beside is not None:
                beside.fill()
            if rank == 0:
                call(keys, values)
        worker.barrier()
        least = min(least, 1e6 * (_seconds_but_for(beside) - cpu) / calls)
    return least


def _seconds_but_for(beside: _Caches | None) -> float:
    return time.process_time() - (0.0 if beside is None else beside.seconds)


def _frame_micros() -> float:
    """Return the mean CPU time to send or receive a small frame through a socket."""
    ours, other = socket.socketpair()
    with ours, other:
        least = float("inf")
        for _ in range(ROUNDS):
            cpu = time.thread_time()
            for _ in range(_FRAMES):
                ours.send(b"frame")
                other.recv(5)
            least = min(least, 1e6 * (time.thread_time() - cpu) / (2 * _FRAMES))
    return least


def _work(network: str, load: Load) -> Done:
    """Execute a load, as one of two nodes."""
    table = adaps.Table("rows", ROWS, load.length, adaps.Adagrad(lr=0.1))
    policy = Policy("load", [Rule("*", technique=load.technique)])
    with adaps.Node([table], policy=policy, network=network) as node:
        worker, handle = node.worker(0), node.table("rows")
        random = np.random.default_rng(node.rank)
        own, begin = (ROWS // 2, node.rank * (ROWS // 2)) if load.apart else (ROWS, 0)
        batches = [
            handle.keys(begin + np.sort(random.choice(own, KEYS, replace=False)))
            for _ in range(WARM_UP + STEPS + AHEAD)
        ]
        values = np.full((KEYS, load.length), 1e-3, dtype=np.float32)
        rows, caches = np.empty_like(values), _Caches()
        for number in range(AHEAD):
            worker.intent(batches[number], number, number + 1)
        worker.barrier()

        def step(number: int) -> None:
            worker.intent(batches[number + AHEAD], number + AHEAD, number + AHEAD + 1)
            worker.pull(batches[number], rows)
            caches.fill()
            worker.push_gradients(batches[number], values)
            worker.advance_clock()

        for number in range(WARM_UP):
            step(number)
        before = _counted(node)
        began = time.thread_time() - caches.seconds
        for number in range(WARM_UP, WARM_UP + STEPS):
            step(number)
        worked = time.thread_time() - caches.seconds - began
        after = _counted(node)
        worker.barrier()
    each = {name: (after[name] - before[name]) / STEPS for name in after}
    return Done(worked=1e6 * worked / STEPS, **each)


def _resume_micros(network: str) -> float:
    """Return the slowdown of a model's steps by a wait between two steps, in CPU time of the worker."""
    import torch

    torch.set_num_threads(1)
    layers = [
        torch.nn.Linear(_INPUTS, _HIDDEN[0]),
        torch.nn.ReLU(),
        torch.nn.Linear(*_HIDDEN),
        torch.nn.ReLU(),
    ]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(_HIDDEN[1], 1))
    rows = torch.nn.EmbeddingBag(50_000, 16)
    inputs, read = torch.randn(_SAMPLES, _INPUTS), torch.randint(0, 50_000, (_SAMPLES, 26))
    tables = [adaps.Table(f"rows of {rank}", 1, LENGTHS[0]) for rank in (0, 1)]
    first = Rule(tables[0].name, technique="static", home=Home("node", node=0))
    rules = [first, Rule("*", technique="static", home=Home("node", node=1))]
    with adaps.Node(tables, policy=Policy("each", rules), network=network) as node:
        worker = node.worker(0)
        elsewhere = node.table(tables[1 - node.rank].name).keys(np.arange(1))
        out = np.empty((1, LENGTHS[0]), dtype=np.float32)

        def step() -> None:
            (model(inputs).sum() + rows(read).sum()).backward()
            model.zero_grad()
            rows.zero_grad()

        def ask() -> None:
            worker.pull(elsewhere, out)

        def both() -> None:
            step()
            ask()

        def micros(what: Callable[[], None]) -> float:
            worker.barrier()
            began = time.thread_time()
            for _ in range(_MODEL_STEPS):
                what()
            return 1e6 * (time.thread_time() - began) / _MODEL_STEPS

        both()
        found = [micros(both) - micros(step) - micros(ask) for _ in range(ROUNDS)]
        worker.barrier()
    return float(np.median(found))


def _counted(node: adaps.Node) -> Mapping[str, float]:
    """Return the node's counts so far.

    Messages are counted at their sender. The numbers at the receiver are equal, because both nodes do the
    same.
    """
    said = node.stats()
    messages = {"messages": 0.0, "upkeep": 0.0}
    for name, number in node.table("rows").stats().items():
        kind = name.removeprefix("messages_sent_")
        if kind != name:
            messages["messages" if kind in ("request", "answer") else "upkeep"] += 2.0 * number
    return messages | {
        "micros": said["channel_micros"],
        "copies": said["pulled_replica"] + said["pushed_replica"],
        "elsewhere": said["pulled_remote"] + said["pushed_remote"],
        "turns": said["frames_received"] + said["rounds"],
        "intents": said["intents_acted"],
        "frames": said["frames_received"] + said["frames_sent"],
        "bytes": said["bytes_received"] + said["bytes_sent"],
    }


if __name__ == "__main__":
    if sys.argv[2:] == [_RESUME]:
        print(json.dumps(_resume_micros(sys.argv[1])))
    elif len(sys.argv) > 2:
        done = _work(sys.argv[1], msgspec.json.decode(sys.argv[2], type=Load))
        print(msgspec.json.encode(done).decode())
    else:
        print(json.dumps(_measure(sys.argv[1])))
