"""Reads records into pandas frames and gives cells distinct labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from adabench.results.record import PlannedRun, Run
from adabench.results.run_settings import RunSettings
from adabench.results.store import SessionStore

if TYPE_CHECKING:
    import pandas as pd

SUCCESS = ("ok", "not_converged")
"""Statuses of runs that were trained to their end and hence have times and quality."""


def load_frame(store: SessionStore) -> pd.DataFrame:
    """All recorded runs of a session, one row each; nested tables become columns such as ``seconds.train``.

    `label` is unique among the cells of a use case. Nothing is filtered: warm-ups and failures are also rows.
    """
    import pandas as pd  # Importing pandas takes as long as most commands.

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
    """Return use case -> a run with traced rows, with automatic intent if there is one."""
    runs = [run for run in last_attempts(store.runs()) if store.trace_file(run.run_id).is_file()]
    runs.sort(key=lambda run: (run.nodes > 1, run.backend == "autoada-automatic"))
    return {run.usecase: run for run in runs}


def last_attempts(runs: Iterable[Run]) -> list[Run]:
    """Return the last attempt of each planned run."""
    return list({(run.cell, run.phase, run.block): run for run in runs}.values())


def cell_labels(planned: Sequence[PlannedRun] | Sequence[Run], *, topology: bool = True) -> dict[str, str]:
    """Return cell identifier -> backend, with the values that distinguish it in its use case.

    A label contains a parameter if two cells of any backends differ in it, or if another cell of its backend
    does not have it. It contains the topology only if two cells of the same backend differ in it, because
    some backends support a single topology.

    Parameters
    ----------
    planned : sequence
        Planned runs of a session, or recorded runs.
    topology : bool
        Whether labels include nodes, workers, network and other run settings; otherwise such cells have equal
        labels.
    """
    cells = {run.cell: run for run in planned if run.phase == "measured"}
    labels = {}
    for identifier, run in cells.items():
        alike = [
            other for other in cells.values() if (other.usecase, other.backend) == (run.usecase, run.backend)
        ]
        rivals = [other for other in cells.values() if other.usecase == run.usecase]
        varying = [
            name
            for name in run.params
            if _varies(name, rivals) or any(name not in other.params for other in alike)
        ]
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
    """Return a parameter's value in the form of labels and of the command line."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
