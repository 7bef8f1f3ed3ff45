"""Reads records into pandas frames and names cells so that a reader can tell them apart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from adabench.results.record import PlannedRun, Run
from adabench.results.run_settings import RunSettings
from adabench.results.store import SessionStore

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["SUCCESS", "cell_labels", "last_attempts", "load_frame", "measured", "shown_value", "traced_runs"]

SUCCESS = ("ok", "not_converged")
"""Statuses of runs that were trained to their end and hence have times and quality."""


def load_frame(store: SessionStore) -> pd.DataFrame:
    """All recorded runs of a session, one row each; nested tables become columns such as ``seconds.train``.

    `label` tells the cells of a use case apart. Nothing is filtered: warm-ups and failures are rows too.
    """
    import pandas as pd  # takes as long to import as most commands do

    runs = store.runs()
    frame = pd.json_normalize([msgspec.to_builtins(run) for run in runs], max_level=1)
    if runs:
        labels = cell_labels(store.session().plan)
        frame["label"] = [labels.get(run.cell, run.backend) for run in runs]
    return frame


def measured(runs: Iterable[Run]) -> list[Run]:
    """The last attempt of every measured run that was trained to its end."""
    return [run for run in last_attempts(runs) if run.phase == "measured" and run.status in SUCCESS]


def traced_runs(store: SessionStore) -> dict[str, Run]:
    """Use case -> a run whose rows' life was written down, of automatic intent where there is one."""
    runs = [run for run in last_attempts(store.runs()) if store.trace_file(run.run_id).is_file()]
    runs.sort(key=lambda run: (run.nodes > 1, run.backend == "autoada-automatic"))
    return {run.usecase: run for run in runs}


def last_attempts(runs: Iterable[Run]) -> list[Run]:
    """A planned run counts once: by its last attempt."""
    return list({(run.cell, run.phase, run.block): run for run in runs}.values())


def cell_labels(planned: Sequence[PlannedRun] | Sequence[Run], *, topology: bool = True) -> dict[str, str]:
    """Cell identifier -> backend, with whatever else distinguishes it among the cells of its use case.

    A parameter stands there if two cells differ in it, be they of different backends; the topology if two
    cells of the same backend do, because some backends have one only.

    Parameters
    ----------
    planned : sequence
        A session's plan, or recorded runs.
    topology : bool
        Whether nodes, workers, network and other run settings are told, too; without, such cells are called
        the same.
    """
    cells = {run.cell: run for run in planned if run.phase == "measured"}
    labels = {}
    for identifier, run in cells.items():
        alike = [
            other for other in cells.values() if (other.usecase, other.backend) == (run.usecase, run.backend)
        ]
        rivals = [other for other in cells.values() if other.usecase == run.usecase]
        varying = [name for name in run.params if _varies(name, rivals)]
        extra = [f"{name}={shown_value(run.params[name])}" for name in varying]
        extra += [
            f"{name}={getattr(run, name)}"
            for name in RunSettings.__struct_fields__
            if topology and len({getattr(other, name) for other in alike}) > 1
        ]
        labels[identifier] = run.backend + (f" ({', '.join(extra)})" if extra else "")
    return labels


def _varies(parameter: str, cells: Sequence[PlannedRun | Run]) -> bool:
    return len({repr(cell.params[parameter]) for cell in cells if parameter in cell.params}) > 1


def shown_value(value: object) -> str:
    """A parameter's value as it stands in labels and on the command line."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
