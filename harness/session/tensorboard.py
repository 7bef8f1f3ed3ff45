"""TensorBoard's event files of a session's runs, written by this process while they train."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adabench.harness.errors import UsageError
from adabench.harness.run.progress_log import ProgressEntry
from adabench.harness.run.spec import progress_file, read_json

__all__ = ["RunEventFiles", "SessionEventFiles", "check_tensorboard"]

_SECONDS = 1.0
_MILLION = 1e6


def check_tensorboard() -> None:
    """Raise `UsageError` if there is no TensorBoard here."""
    try:
        importlib.import_module("torch.utils.tensorboard")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "tensorboard":
            raise
        raise UsageError(
            "--tensorboard needs the package tensorboard, which is not installed: "
            "pip install 'adabench[tensorboard]'"
        ) from error


class SessionEventFiles:
    """A session's.

    Parameters
    ----------
    folder : Path
        For the event files: a folder per run, and in it one per node.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, name: str, nodes: int) -> RunEventFiles:
        """For a run that begins."""
        return RunEventFiles([self.folder / name / f"node-{rank}" for rank in range(nodes)])


class RunEventFiles:
    """A run's.

    Parameters
    ----------
    folders : list of Path
        One per node.
    """

    def __init__(self, folders: list[Path]) -> None:
        self._nodes = [_Node(folder, rank) for rank, folder in enumerate(folders)]
        self._due = 0.0

    def look(self, folder: Path, over: bool) -> None:
        """Write what the run's nodes have said since the last look, at most once per second until it is over.

        Parameters
        ----------
        folder : Path
            The run's scratch folder.
        over : bool
            Whether this is the last look.
        """
        if not over and time.monotonic() < self._due:
            return
        for node in self._nodes:
            node.look(folder)
            if over:
                node.close()
        self._due = time.monotonic() + _SECONDS


class _Node:
    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._rank = rank
        self._writer: Any = None
        self._next = 0
        self._before: Mapping[str, float] = {}

    def look(self, folder: Path) -> None:
        samples = read_json(progress_file(folder, self._rank), list[ProgressEntry]) or []
        new = [sample for sample in samples if sample.number >= self._next]
        for sample in new:
            for name, value in self._scalars(sample).items():
                self._opened().add_scalar(name, value, sample.step)
            self._before, self._next = sample.counters, sample.number + 1
        if new:
            self._opened().flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def _opened(self) -> Any:
        if self._writer is None:
            writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter
            self._writer = writer(log_dir=str(self._folder))
        return self._writer

    def _scalars(self, sample: ProgressEntry) -> dict[str, float]:
        found = {f"quality/{name}": value for name, value in sample.quality.items()}
        if sample.loss is not None:
            found["loss"] = sample.loss
        counters = sample.counters
        here, all_ = (
            sum(counters.get(name, 0.0) - self._before.get(name, 0.0) for name in names)
            for names in (
                ("pulled_local", "pulled_replica"),
                ("pulled_local", "pulled_replica", "pulled_remote"),
            )
        )
        if all_:
            found["local_share"] = here / all_
        if "bytes_sent" in counters:
            found["bytes_sent"] = counters["bytes_sent"]
        if "blocked_micros" in counters:
            found["waiting_seconds"] = counters["blocked_micros"] / _MILLION
        return found
