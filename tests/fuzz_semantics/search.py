"""A search for bugs: many programs in several processes, and a small program for each kind of bug."""

from __future__ import annotations

import collections
import faulthandler
import itertools
import multiprocessing
import re
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from tests.fuzz_semantics.grammar import random_program
from tests.fuzz_semantics.outcome import SECONDS, Outcome, judge, quiet
from tests.fuzz_semantics.program import Program
from tests.fuzz_semantics.shrink import shrunk
from tests.fuzz_semantics.two_nodes import Pair

__all__ = ["Found", "Search"]

Judge = Callable[..., Outcome]

CHUNK = 25
"""Number of programs that a process is given at a time."""


@dataclass(frozen=True)
class Found:
    """Seed of a program and its outcome."""

    seed: int
    outcome: Outcome

    @property
    def group(self) -> tuple[str, str, str]:
        """Return the kind of an error: its place and message, ignoring numbers and names."""
        message = re.sub(r"'[^']*'|[-+]?\d[\d.e+-]*", "…", self.outcome.detail)
        if self.outcome.kind == "DIFFERENT":
            message = re.sub(r"value … shown:", "", message).split("expected")[0]
        return self.outcome.kind, self.outcome.origin, message[:80]


class Search:
    """Judges programs in several processes.

    Parameters
    ----------
    nodes : int
        Number of nodes for each program.
    jobs : int
        Number of processes.

    Attributes
    ----------
    counts : Counter of str
        Number of programs by the kind of their outcome.
    bugs, refusals : list of Found
        Programs that show a bug, and refused programs.
    """

    def __init__(self, nodes: int = 1, jobs: int = 1) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.bugs: list[Found] = []
        self.refusals: list[Found] = []
        self._nodes = nodes
        self._jobs = jobs

    def run(self, seeds: range) -> None:
        """Judge the programs of the seeds, and print the progress to standard error."""
        chunks = iter([seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)])
        workers = {}
        for chunk in itertools.islice(chunks, self._jobs):
            worker = Worker(self._nodes)
            worker.give(chunk)
            workers[worker.pipe] = worker
        while workers:
            for pipe in wait(list(workers)):
                assert isinstance(pipe, Connection)
                worker = workers[pipe]
                found = worker.result()
                if found is None:  # The process has ended.
                    del workers[pipe]
                    self._note(
                        Found(worker.seed, Outcome("HANGS", "the process of the program ended", "ended"))
                    )
                    left, worker = worker.left, Worker(self._nodes)
                    worker.left = left
                    workers[worker.pipe] = worker
                elif worker.left:
                    self._note(found)
                    continue
                else:
                    self._note(found)
                if rest := worker.left or next(chunks, None):
                    worker.give(rest)
                else:
                    worker.end()
                    del workers[worker.pipe]

    def print_counts(self, seconds: float) -> None:
        valid = sum(self.counts.values()) - self.counts["invalid"]
        print(f"{sum(self.counts.values())} programs in {seconds:.0f} s on {self._nodes} node(s)")
        for kind, count in self.counts.most_common():
            print(f"{count:8d} {kind}")
        share = self.counts["refused"] / max(1, valid)
        print(f"refused: {share:.1%} of the programs that plain PyTorch accepts")

    def print_refusals(self) -> None:
        for group, found in grouped(self.refusals):
            print(f"{len(found):6d} refused {group[2]}; seed {found[0].seed}: {found[0].outcome.detail}")

    def print_bugs(self, most: int) -> None:
        """Print each kind of bug, the most frequent first, with a small program."""
        groups = grouped(self.bugs)
        chosen = [found for _, found in groups]
        seeds = [one.seed for rank in itertools.zip_longest(*chosen) for one in rank if one is not None][
            :most
        ]
        printed: collections.Counter[str] = collections.Counter()
        programs: dict[str, tuple[int, Program, Outcome]] = {}
        with ProcessPoolExecutor(self._jobs, multiprocessing.get_context("spawn")) as pool:
            results = pool.map(smallest, seeds, itertools.repeat(self._nodes))
            for seed, (small, outcome) in zip(seeds, results, strict=True):
                printed[signature(small, outcome)] += 1
                programs.setdefault(signature(small, outcome), (seed, small, outcome))
        for name, count in printed.most_common():
            seed, small, outcome = programs[name]
            print(f"\n# {'-' * 100}\n# {count} of {len(seeds)} programs, such as that of seed {seed}")
            print(f"# {outcome.kind}: {outcome.detail} [{outcome.origin}]".replace("\n", "\n# "))
            print(small.source())

    def _note(self, found: Found) -> None:
        self.counts[found.outcome.kind] += 1
        if found.outcome.is_bug:
            self.bugs.append(found)
            print(
                f"seed {found.seed}: {found.outcome.kind} {found.outcome.detail}", file=sys.stderr, flush=True
            )
        if found.outcome.kind == "refused":
            self.refusals.append(found)
        if (done := sum(self.counts.values())) % 500 == 0:
            print(f"{done} programs, {len(self.bugs)} bugs", file=sys.stderr, flush=True)


class Worker:
    """A process that judges programs.

    Attributes
    ----------
    pipe : Connection
        Connection that receives results.
    seed : int
        Seed of the program that is being judged.
    left : range
        Seeds without a result.
    """

    def __init__(self, nodes: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self._process = context.Process(target=work, args=(nodes, other), daemon=False)
        self._process.start()
        other.close()
        self.left = range(0)
        self.seed = 0

    def give(self, seeds: range) -> None:
        self.left = seeds
        self.seed = seeds[0]
        self.pipe.send(seeds)

    def result(self) -> Found | None:
        """The next result, or None if the process has ended."""
        try:
            found: Found = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            self.left = self.left[1:]
            return None
        self.left = self.left[1:]
        self.seed = self.left[0] if self.left else 0
        return found

    def end(self) -> None:
        self.pipe.close()
        self._process.join()


def work(nodes: int, pipe: Connection) -> None:
    """Judge the programs of the seeds that arrive, until the pipe is closed."""
    quiet()
    judged = judge_for(nodes)
    while True:
        try:
            seeds = pipe.recv()
        except EOFError:
            return
        for seed in seeds:
            faulthandler.dump_traceback_later(4 * SECONDS, exit=True)  # what a signal does not interrupt
            found = Found(seed, judged(random_program(seed, nodes)))
            faulthandler.cancel_dump_traceback_later()
            pipe.send(found)


def judge_for(nodes: int) -> Judge:
    """The function that judges programs for a number of nodes."""
    return judge if nodes == 1 else Pair().judge


def smallest(seed: int, nodes: int) -> tuple[Program, Outcome]:
    """Return the shrunk program of a seed and its outcome."""
    quiet()
    judged = judge_for(nodes)
    program = random_program(seed, nodes)
    outcome = judged(program)
    if not outcome.is_bug or outcome.kind == "HANGS":
        return program, outcome
    small = shrunk(program, outcome, lambda candidate: judged(candidate, trusted=True))
    return small, judged(small)


def signature(program: Program, outcome: Outcome) -> str:
    """Text that is equal for shrunk programs that probably show the same bug."""
    texts = [one.text for one in program.statements if one.section not in ("init", "data", "optimizers")]
    plain = re.sub(r"\b(net|model|self)\.[abc](\.weight)?|-?\d[\d.]*", "…", "\n".join(sorted(texts)))
    return "\n".join([outcome.kind, outcome.origin, plain, program.iterate, str(program.lookahead)])


def grouped(found: Iterable[Found]) -> list[tuple[tuple[str, str, str], list[Found]]]:
    """Results by their kind, the most frequent first."""
    groups: dict[tuple[str, str, str], list[Found]] = {}
    for one in found:
        groups.setdefault(one.group, []).append(one)
    return sorted(groups.items(), key=lambda item: -len(item[1]))
