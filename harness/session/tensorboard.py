"""TensorBoard's event files of a session's runs, written by this process while they train."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from adabench.harness.errors import UsageError
from adabench.harness.run.progress_log import ProgressEntry
from adabench.harness.run.spec import exchange_file, read_json

_SECONDS = 1.0
_MILLION = 1e6
_PULLED = ("pulled_local", "pulled_replica", "pulled_remote")


def check_tensorboard() -> None:
    """Raise `UsageError` if TensorBoard is not installed."""
    try:
        importlib.import_module("torch.utils.tensorboard")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "tensorboard":
            raise
        raise UsageError(
            "--tensorboard needs the package tensorboard, which is not installed: "
            "pip install 'adabench[tensorboard]'"
        ) from error


class RunEventFiles:
    """Writes the progress of a run's nodes to event files, in a folder with one folder per node."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self._nodes = [_NodeEventFile(folder / f"node-{rank}", rank) for rank in range(nodes)]
        self._due = 0.0

    def update(self, folder: Path, over: bool) -> None:
        """Write the progress since the last update, at most once per second until the run is over.

        `folder` is the run's scratch folder, and `over` is true in the last call.
        """
        if not over and time.monotonic() < self._due:
            return
        for node in self._nodes:
            node.update(folder)
            if over:
                node.close()
        self._due = time.monotonic() + _SECONDS


class _NodeEventFile:
    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._rank = rank
        self._writer: Any = None
        self._next = 0
        self._before: Mapping[str, float] = {}

    def update(self, folder: Path) -> None:
        entries = read_json(exchange_file(folder, "progress", self._rank), list[ProgressEntry]) or []
        new = [entry for entry in entries if entry.number >= self._next]
        for entry in new:
            for name, value in self._scalars(entry).items():
                self._opened().add_scalar(name, value, entry.step)
            self._before, self._next = entry.counters, entry.number + 1
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

    def _scalars(self, entry: ProgressEntry) -> dict[str, float]:
        found = {f"quality/{name}": value for name, value in entry.quality.items()}
        if entry.loss is not None:
            found["loss"] = entry.loss
        counters = entry.counters
        grown = {name: counters.get(name, 0.0) - self._before.get(name, 0.0) for name in _PULLED}
        if pulled := sum(grown.values()):
            found["local_share"] = 1 - grown["pulled_remote"] / pulled
        if "bytes_sent" in counters:
            found["bytes_sent"] = counters["bytes_sent"]
        if "blocked_micros" in counters:
            found["waiting_seconds"] = counters["blocked_micros"] / _MILLION
        return found
