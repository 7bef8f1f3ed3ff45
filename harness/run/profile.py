"""Inside a profiled run: the training loop runs with timed parts, and then again for flame graphs."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from adabench.backends.interface import Measurable, TrainingSession
from adabench.harness.run.flame_graph import NoFlameGraph, flame_graph
from adabench.harness.run.step_budget import StepBudget
from adabench.usecases.interface import Loaders, UseCase


def flame_file(folder: Path, rank: int) -> Path:
    """Return the file of a node process's flame graph."""
    return folder / f"flame-rank{rank}.svg"


def no_flame_file(folder: Path, rank: int) -> Path:
    """Return the file with the reason why there is no flame graph."""
    return folder / f"flame-rank{rank}.txt"


class Profile:
    """Timing and flame graphs of one process, which its workers share; flame graphs go to `folder`."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.budget = StepBudget()
        self._folder, self._rank = folder, rank
        self._patched = ExitStack()

    def of_worker(
        self, session: TrainingSession, usecase: UseCase, loaders: Loaders, leads: bool
    ) -> WorkerProfile:
        """A worker's profile; `leads` is true for the first worker of the process. Collective."""
        if leads:
            self._patched.enter_context(self.budget.backward_timed())
            if isinstance(session, Measurable):
                self._patched.enter_context(session.measured(self.budget.timed))
        session.synchronize()
        return WorkerProfile(self, session, usecase, loaders, leads)

    def sample(self) -> ExitStack:
        """A context that samples the process with py-spy; on failure, it writes the reason to a file."""
        sampling = ExitStack()
        try:
            sampling.enter_context(flame_graph(flame_file(self._folder, self._rank)))
        except NoFlameGraph as reason:
            self.explain(reason)
        return sampling

    def explain(self, reason: NoFlameGraph) -> None:
        no_flame_file(self._folder, self._rank).write_text(f"{reason}\n", encoding="utf-8")

    def close(self) -> None:
        """Stop timing calls."""
        self._patched.close()


class WorkerProfile:
    """One worker's training with its parts timed."""

    def __init__(
        self, profile: Profile, session: TrainingSession, usecase: UseCase, loaders: Loaders, leads: bool
    ) -> None:
        budget = profile.budget
        self._profile, self._session, self._usecase, self._leads = profile, session, usecase, leads
        self._loader = budget.batches(loaders.train)
        self._loss = budget.timed("forward", usecase.loss)
        self._step = budget.timed("update", session.step)
        self._synchronize = budget.timed("waiting for the others", session.synchronize)

    def train(self) -> int:
        """One epoch; returns the number of samples."""
        self._profile.budget.start()
        samples = self._epoch()
        self._synchronize()
        self._profile.budget.stop()
        return samples

    def draw_flames(self) -> None:
        """Train one more epoch for py-spy, which is not counted. Collective."""
        if not self._leads:
            self._session.synchronize()
            self._epoch()
            self._session.synchronize()
            return
        self._profile.close()
        sampling = self._profile.sample()
        self._session.synchronize()
        try:
            with sampling:
                self._epoch()
                self._session.synchronize()
        except NoFlameGraph as reason:
            self._profile.explain(reason)

    def _epoch(self) -> int:
        samples = 0
        for batch in self._session.batches(self._loader):
            self._step(self._loss(self._session.model, batch))
            samples += self._usecase.samples(batch)
        return samples
