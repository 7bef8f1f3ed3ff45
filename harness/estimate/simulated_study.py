"""Simulation of a study: the costs of its cells on clusters that do not exist."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import msgspec

from adabench.analysis.load import shown_value
from adabench.analysis.tracking import tracked
from adabench.backends.policies.resources import Resources
from adabench.harness.estimate.simulate import SimulationSettings, clusters_of, require_server, simulated_once
from adabench.harness.estimate.stored_results import StoredResults
from adabench.harness.plugins.registry import load_backend, load_usecase, source_files
from adabench.harness.study.cell import Cell, data_key, shared_sources_hash, usecase_of
from adabench.harness.study.plan import selected_cells
from adabench.harness.study.study import SimulatedSteps, Study
from adabench.harness.study.syntax import convert_params, parse_one
from adabench.results.store import make_results_folder
from adaps.simulation import NodeSimulation, Simulation

if TYPE_CHECKING:
    from adabench.usecases.interface import UseCase

_CACHE = "simulated.json"
_SERVED = ("answer", "setup", "refresh", "transfer")
"""Types of messages that carry the value of a row to another node."""


class SimulatedCell(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of a training on a simulated cluster.

    Attributes
    ----------
    usecase, backend, policy, nodes, workers, network : str or int
        The cell. `policy` includes options of the backend that differ from their defaults, and `workers` is
        the number of workers of a node.
    steps : int
        Number of simulated steps of each worker.
    compute_ms : float
        Compute time of a step.
    ms_per_step : float
        Time of a worker's step, while all other workers make their steps.
    speed_up : float, optional
        Steps per second of all workers, relative to the same cell on one node.
    compute, visits, rows, network_share : float
        Fractions of the workers' time, as in `Simulation.shares`.
    local : float, optional
        Fraction of rows that are read without a message.
    bytes_per_step, messages_per_step : float
        Bytes and messages that a node sends per step of a worker.
    busiest, serving : float, optional
        Largest value over all nodes divided by the mean: of the processor time of a node's channels, and of
        the number of rows that a node sends to others. None if all are 0.
    cpu_seconds : float
        Processor time of the simulation.
    """

    usecase: str
    backend: str
    policy: str
    nodes: int
    workers: int
    network: str
    steps: int
    compute_ms: float
    ms_per_step: float
    speed_up: float | None = None
    compute: float
    visits: float
    rows: float
    network_share: float
    local: float | None
    bytes_per_step: float
    messages_per_step: float
    busiest: float | None
    serving: float | None
    cpu_seconds: float

    @property
    def waiting(self) -> float:
        """Fraction of the workers' time in which they wait for rows."""
        return self.rows + self.network_share


@dataclass(frozen=True, kw_only=True)
class StudySimulation:
    """Simulates the cells of a study.

    Attributes
    ----------
    study : Study
        Study to simulate.
    folder : Path
        Folder that keeps the results.
    steps : int, optional
        Number of steps of each worker, instead of the study's number.
    step_ms : float, optional
        Compute time of a step, instead of the study's.
    resources, file : Resources and Path, optional
        Cluster whose first node describes all nodes, and its file.
    """

    study: Study
    folder: Path
    steps: int | None = None
    step_ms: float | None = None
    resources: Resources | None = None
    file: Path | None = None

    def results(self) -> Iterator[list[SimulatedCell]]:
        """Yield the results of each use case and number of workers; stored ones are not simulated again.

        Raises
        ------
        UsageError
            If a backend is not on the server, or its policy or the data cannot be used.
        RecordError
            If the folder cannot be made.
        """
        cells = selected_cells(self.study)
        places = {key: place for place, key in enumerate(dict.fromkeys(map(data_key, cells)))}

        def block(cell: Cell) -> tuple[int, int]:
            return places[data_key(cell)], cell.workers

        for name in {cell.backend for cell in cells}:
            require_server(name)
        make_results_folder(self.folder)
        stored = StoredResults(self.folder / _CACHE, SimulatedCell)
        # Cells with equal accesses follow each other.
        for _, same in groupby(sorted(cells, key=lambda cell: (*block(cell), cell.nodes)), key=block):
            yield with_speed_ups(list(self._block(list(same), stored)))

    def _block(self, cells: Sequence[Cell], stored: StoredResults[SimulatedCell]) -> Iterator[SimulatedCell]:
        """Yield the results of cells with equal use cases and numbers of workers."""
        text = _text_of(cells[0])
        compute = self._compute_ms(cells[0], text)
        usecase: UseCase | None = None
        for cell in tracked(cells, f"simulating {cells[0].usecase} with workers={cells[0].workers}"):
            key = stored.key([_sources(cell.usecase, cell.backend), self._determined_by(cell), compute])
            found = stored.get(key)
            if found is None:
                usecase = usecase or usecase_of(cell, self.study.seed)
                found = self._simulated(cell, usecase, compute)
                stored.put(key, found)
                stored.write()
            yield found

    @property
    def _given(self) -> SimulatedSteps:
        return self.study.simulation or SimulatedSteps()

    def _determined_by(self, cell: Cell) -> list[Any]:
        """Return the values that determine a cell's result, except for its compute time and the sources."""
        policy = str(cell.options["policy"])
        # Unlike Path.is_file, this is false for a text that is too long for a path.
        document = Path(policy).read_text(encoding="utf-8") if os.path.isfile(policy) else None
        cluster = msgspec.to_builtins(self._cluster(cell))
        trained = [data_key(cell).decode(), cell.backend, cell.options, document, self.study.seed]
        return [*trained, cell.workers, cluster, self.steps or self._given.steps, self._given.steps_before]

    def _cluster(self, cell: Cell) -> Resources:
        channels = cell.options.get("channels")
        (cluster,) = clusters_of(self.resources, [cell.nodes], cell.network, cell.workers, channels)
        return cluster

    def _compute_ms(self, cell: Cell, text: str) -> float:
        """Return the compute time of a step: as given, of a file, of the study, or measured now."""
        from adabench.harness.estimate.measured_steps import compute_of

        if self.step_ms is not None:
            return self.step_ms
        measured = {} if self.resources is None else self.resources.steps
        for described, milliseconds in [*measured.items(), *self._given.compute_ms.items()]:
            if _describes(described, cell):
                return milliseconds
        data = None if cell.data_path is None else Path(cell.data_path)
        seconds, _ = compute_of(text, cell.backend, None, self.file, self.resources, data, self.study.seed)
        return 1e3 * seconds

    def _simulated(self, cell: Cell, usecase: UseCase, compute_ms: float) -> SimulatedCell:
        options = msgspec.convert(cell.options, load_backend(cell.backend).Options)
        settings = SimulationSettings(
            workers=cell.workers,
            steps=self.steps or self._given.steps,
            steps_before=self._given.steps_before,
            compute=1e-3 * compute_ms,
            seed=self.study.seed,
        )
        began = time.process_time()
        found = simulated_once(usecase, cell.backend, options, self._cluster(cell), settings)
        spent = time.process_time() - began
        return _result(cell, settings, found, spent)


def with_speed_ups(cells: Iterable[SimulatedCell]) -> list[SimulatedCell]:
    """Return the cells with their speed-up, if the results contain the same cell on one node."""
    cells = list(cells)
    alone = {_alike(cell): cell.ms_per_step for cell in cells if cell.nodes == 1}
    return [
        msgspec.structs.replace(cell, speed_up=cell.nodes * alone[_alike(cell)] / cell.ms_per_step)
        if _alike(cell) in alone and cell.ms_per_step > 0
        else cell
        for cell in cells
    ]


def _alike(cell: SimulatedCell) -> tuple[Any, ...]:
    return cell.usecase, cell.backend, cell.policy, cell.workers


def _result(cell: Cell, settings: SimulationSettings, found: Simulation, spent: float) -> SimulatedCell:
    shares, local = found.shares(), found.local_share()
    return SimulatedCell(
        usecase=_text_of(cell),
        backend=cell.backend,
        policy=_policy_of(cell),
        nodes=cell.nodes,
        workers=cell.workers,
        network=cell.network,
        steps=settings.steps,
        compute_ms=1e3 * settings.compute,
        ms_per_step=1e3 * found.seconds_per_step,
        compute=shares["compute"],
        visits=shares["visits"],
        rows=shares["rows"],
        network_share=shares["network"],
        local=None if local != local else local,
        bytes_per_step=found.bytes_per_step,
        messages_per_step=found.messages_per_step,
        busiest=_over_mean([node.channels for node in found.nodes]),
        serving=_over_mean([_rows_sent(node) for node in found.nodes]),
        cpu_seconds=spent,
    )


def _over_mean(values: Sequence[float]) -> float | None:
    return max(values) / mean(values) if any(values) else None


def _rows_sent(node: NodeSimulation) -> float:
    return sum(table[f"messages_sent_{kind}"] for table in node.tables.values() for kind in _SERVED)


def _text_of(cell: Cell) -> str:
    """Return the use case as on the command line, with the parameters that differ from their defaults."""
    usual = msgspec.to_builtins(load_usecase(cell.usecase).Params())
    given = [f"{name}={shown_value(value)}" for name, value in cell.params.items() if value != usual[name]]
    return cell.usecase + (f"[{','.join(given)}]" if given else "")


def _policy_of(cell: Cell) -> str:
    """Return the policy, or the technique of a uniform one, and other options that are not the default."""
    usual = msgspec.to_builtins(load_backend(cell.backend).Options())
    others = {name: value for name, value in cell.options.items() if value != usual[name]}
    policy = str(others.pop("policy", usual["policy"]))
    name, given = parse_one(policy) or (policy, {})
    if name == "uniform" and given.keys() == {"technique"}:
        policy = str(given["technique"])
    return " ".join([policy, *(f"{name}={shown_value(value)}" for name, value in others.items())])


def _describes(text: str, cell: Cell) -> bool:
    """Whether a use case as on the command line is the cell's."""
    parsed = parse_one(text)
    if parsed is None or parsed[0] != cell.usecase:
        return False
    given = convert_params(load_usecase(cell.usecase).Params, parsed[1], f"use case {cell.usecase!r}")
    return bool(msgspec.to_builtins(given) == cell.params)


@lru_cache
def _sources(usecase: str, backend: str) -> str:
    plugins = load_usecase(usecase), load_backend(backend)
    return shared_sources_hash(Path(__file__), *(file for one in plugins for file in source_files(one)))
