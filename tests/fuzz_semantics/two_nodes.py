"""Runs a program on two nodes, each with half of every batch, and compares it with plain PyTorch."""

from __future__ import annotations

import multiprocessing
import os
import socket
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from torch import Tensor

from adaps.policy import Policy, Rule, Synchronization
from tests.fuzz_semantics.outcome import (
    SECONDS,
    Failure,
    Outcome,
    Seen,
    compared,
    is_finite,
    is_ill_conditioned,
    label,
    quiet,
    run,
)
from tests.fuzz_semantics.program import Program, compiled

__all__ = ["Pair"]

POLICY = Policy("together", [Rule("*")], synchronization=Synchronization(every=1))
EQUAL = {"weights", "optimizer", "random numbers"}
"""Values that are equal on both nodes; the mean of all other values is equal to plain PyTorch."""


class Pair:
    """Two processes that are the nodes of one program after another.

    They come from a server that has imported all modules, so that new ones start at once.
    """

    def __init__(self) -> None:
        self._pipes: list[Connection] = []
        self._processes: list[BaseProcess] = []

    def judge(self, program: Program, trusted: bool = False) -> Outcome:
        """Run a program plain in this process and wrapped on both nodes."""
        try:
            function = compiled(program.source())
        except SyntaxError as error:
            return Outcome("invalid", str(error))
        plain = run(function, wrapped=False)
        if plain.error is not None:
            return Outcome("invalid", plain.error.message)
        if not is_finite(plain.values):
            return Outcome("ill-conditioned", "the training diverges")
        outcome = self._compared(plain, self._run(program.source()))
        if outcome.kind == "DIFFERENT" and is_ill_conditioned(program, plain):
            return Outcome("ill-conditioned", outcome.detail)
        return outcome

    def end(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._pipes, self._processes = [], []

    def _compared(self, plain: Seen, nodes: list[Seen]) -> Outcome:
        for node in nodes:
            if node.error is not None:
                return compared(Seen(plain.values[: len(node.values)]), Seen([], node.error))
        together = Seen([])
        for first, second in zip(*(node.values for node in nodes), strict=True):
            if label(first) in EQUAL:
                other = compared(Seen([first]), Seen([second]))
                if other.kind != "equal":
                    return Outcome("DIFFERENT", f"nodes differ: {other.detail}", f"nodes: {other.origin}")
                together.values.append(first)
            else:
                together.values.append(mean(first, second))
        return compared(plain, together)

    def _run(self, source: str) -> list[Seen]:
        """Return the values of each node; if a node fails, only its failure."""
        if not self._processes:
            self._begin()
        for pipe in self._pipes:
            pipe.send(source)
        results: dict[int, Seen] = {}
        while len(results) < 2:
            ready: list[Any] = wait(
                [pipe for i, pipe in enumerate(self._pipes) if i not in results], SECONDS + 10
            )
            for pipe in ready:
                results[self._pipes.index(pipe)] = self._received(pipe)
            failed = [seen for seen in results.values() if seen.error is not None]
            if failed or not ready:  # The other node may wait for the failed node.
                self.end()
                late = Seen([], Failure("HANGS", "a node does not end", "hangs"))
                return failed[:1] or [late]
        return [results[0], results[1]]

    def _received(self, pipe: Connection) -> Seen:
        try:
            seen: Seen = pipe.recv()
        except EOFError:
            return Seen([], Failure("HANGS", "a process of a node has ended", "ended"))
        return seen

    def _begin(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        port = free_port()
        for rank in range(2):
            pipe, other = context.Pipe()
            process = context.Process(target=node, args=(rank, port, other), daemon=True)
            process.start()
            other.close()
            self._pipes.append(pipe)
            self._processes.append(process)


def node(rank: int, port: int, pipe: Connection) -> None:
    """Run programs as one of two nodes, until the pipe is closed."""
    quiet()
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    while True:
        try:
            source = pipe.recv()
        except EOFError:
            return
        pipe.send(run(compiled(source, rank=rank, policy=POLICY), wrapped=True, closes=False))


def mean(first: Any, second: Any) -> Any:
    """Return the mean of the values of two nodes."""
    if isinstance(first, Tensor) and isinstance(second, Tensor) and first.shape == second.shape:
        return (first + second) / 2 if first.is_floating_point() else first
    if isinstance(first, dict) and isinstance(second, dict):
        return {key: mean(value, second.get(key)) for key, value in first.items()}
    if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        return [mean(*both) for both in zip(first, second, strict=True)]
    if isinstance(first, float) and isinstance(second, float):
        return (first + second) / 2
    for one, other in ((first, second), (second, first)):
        if isinstance(one, Tensor) and other is None:
            return one / 2  # A node without a gradient counts as zero.
    return first


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
