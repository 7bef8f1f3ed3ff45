"""Expected seconds of runs: the simulator's figure, corrected by recorded runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from adabench.analysis.load import measured
from adabench.analysis.regression import Judgement, Regression, judged, judgement_of
from adabench.analysis.tracking import tracked
from adabench.backends.interface import ServerOptions
from adabench.harness.errors import UsageError
from adabench.harness.estimate.recorded import Expected
from adabench.harness.estimate.simulate import SimulationSettings, clusters_of, simulated_once
from adabench.harness.estimate.stored_results import StoredResults
from adabench.harness.machine.environment import capture, probe
from adabench.harness.plugins.registry import load_backend, load_usecase
from adabench.harness.study.cell import shared_sources_hash
from adabench.results.record import POLICY_LEFT_OUT, PlannedRun, Run, Session
from adabench.results.store import readable_sessions
from adaps.policy import Policy, PolicyError
from adaps.simulation import Simulation

if TYPE_CHECKING:
    import pandas as pd

    from adabench.usecases.interface import UseCase

FEWEST_RUNS, FEWEST_CELLS = 20, 5
"""Minimum numbers of runs and cells from which a prediction is learned."""
_STEPS = 40
_FLOPS, _PER_STEP = 2e10, 2e-3
"""Operations of a core per second, and other seconds of a step, on an unknown machine."""
_WAYS = 4
"""Number of transfers in a step that a node has to wait for: rows in both directions, and a ring of two."""
_AROUND = 5.0
"""Seconds of a run outside training. As for the constants above, the real value is learned."""
_MOST_SCATTER = 0.1
"""Maximum median deviation from a cell's median in a session that predictions learn from."""
_A_FILE = "a file"
"""Name of all policies from files, because files with equal names may differ."""
_CACHE = "physics.json"


class Physics(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of a run that are known before any measurement.

    Attributes
    ----------
    steps : int
        Number of steps of a worker per epoch.
    keys : int
        Rows that a step accesses.
    compute : float
        Computing time of a step in seconds, on a core of a nominal machine, from its floating point
        operations.
    seconds : float
        Simulated seconds of a step on such machines. For backends that are not simulated, it is `compute`
        plus, with several nodes, the time of transfers.
    kilobytes : float
        Kilobytes that a node sends per step.
    """

    steps: int
    keys: int
    compute: float
    seconds: float
    kilobytes: float


@dataclass(frozen=True)
class Records:
    """Data from recorded sessions, from which a prediction is learned.

    Attributes
    ----------
    features : DataFrame
        One row for each run. Runs of the same cell in one session have equal rows.
    total, train : array of float
        Seconds of runs, and of their training.
    simulated : array of float
        Training time in seconds that the simulator computes.
    cells : list of str
        Cell of each run.
    left_out : Counter of str
        Reasons for which runs were left out, with their counts.
    """

    features: pd.DataFrame
    total: Any
    train: Any
    simulated: Any
    cells: list[str]
    left_out: Counter[str]

    @classmethod
    def read(cls, roots: Iterable[Path], cache: Path) -> Records:
        """Return all successful measured runs in some folders.

        Parameters
        ----------
        roots : iterable of Path
            Folders of sessions.
        cache : Path
            Folder that keeps the simulator's results; nothing is kept if it does not exist.
        """
        import pandas as pd

        known = _Known(cache)
        rows, total, train, simulated, cells = [], [], [], [], []
        left_out: Counter[str] = Counter()
        for root in roots:
            for store, session, several in tracked(readable_sessions(root), f"simulating sessions in {root}"):
                runs = measured(several)
                scatter = _scatter((run.cell, run.seconds.train) for run in runs if run.seconds.train)
                if scatter > _MOST_SCATTER:
                    left_out[
                        f"session {store.folder.name}: runs of a cell are {scatter:.0%} off their median, "
                        f"because of other work on the machine"
                    ] += len(runs)
                    continue
                probes = [run.noise.probe_seconds for run in runs if run.noise is not None]
                for run in runs:
                    try:
                        physics = known.of(run, _data_of(session, run), _cores_of(session.environment))
                    except UsageError as error:
                        left_out[str(error)] += 1
                        continue
                    if run.seconds.train is None or run.seconds.train <= 0 or run.noise is None:
                        left_out["without seconds of training, or the probe before it"] += 1
                        continue
                    rows.append(_row(run, physics, session.environment, median(probes), session.created_at))
                    total.append(run.seconds.total)
                    train.append(run.seconds.train)
                    simulated.append(_simulated(run, physics))
                    cells.append(run.cell)
        known.write()
        return cls(
            _filled(pd.DataFrame(rows)),
            np.array(total),
            np.array(train),
            np.array(simulated),
            cells,
            left_out,
        )

    @property
    def are_enough(self) -> bool:
        """Whether there are enough records to learn a prediction."""
        return len(self.cells) >= FEWEST_RUNS and len(set(self.cells)) >= FEWEST_CELLS

    def judged(self, seed: int = 0) -> list[tuple[str, Judgement]]:
        """Predict each cell from the others, and return names and judgements.

        They cover all runs and, if some predictions extrapolate, the remaining runs.
        """
        lines: list[tuple[str, Judgement]] = []
        groups = np.unique(self.cells, return_inverse=True)[1]
        folds = np.random.default_rng(seed).permutation(groups.max() + 1)[groups] % 10
        for name, seconds, base in (
            ("train", self.train, self.simulated),
            ("total", self.parts, _expected_parts(self.simulated)),
        ):
            found, said = judged(self.features, seconds, folds, groups, base, seed)
            lines.append((f"cells: {name}", found))
            known = np.array([not text for text in said.extrapolated])
            if known.any() and not known.all():
                measured_seconds = seconds.reshape(len(known), -1).sum(axis=1)
                ends = np.stack([said.seconds, said.low, said.high])
                of_known = judgement_of(measured_seconds[known], ends[:, known])
                lines.append((f"{name}, not extrapolated", of_known))
        return lines

    def scatter(self) -> float:
        """Return the median deviation of runs from their cell's median, which no prediction can remove."""
        return _scatter(zip(self.cells, self.train, strict=True))

    @property
    def parts(self) -> Any:
        """Return the seconds of each run inside and outside training."""
        return np.column_stack([self.train, self.total - self.train])


class Predictor:
    """Predicts the time of runs from recorded runs."""

    def __init__(self, records: Records, cache: Path) -> None:
        self._known = _Known(cache)
        self._records = records
        self._learned = Regression.fit(
            records.features, records.parts, np.array(records.cells), _expected_parts(records.simulated)
        )

    def expected(self, planned: Sequence[PlannedRun], data: Mapping[str, str]) -> list[Expected]:
        """Return the expected time of each run here, with folders or files of data by use case."""
        import pandas as pd

        environment = capture()
        seconds = probe()[1]
        physics = [
            self._known.of(run, data.get(run.usecase), _cores_of(environment))
            for run in tracked(planned, "simulating runs")
        ]
        self._known.write()
        now = datetime.now(timezone.utc).isoformat()
        rows = [_row(run, one, environment, seconds, now) for run, one in zip(planned, physics, strict=True)]
        features = _filled(pd.DataFrame(rows).reindex(columns=self._records.features.columns))
        base = np.array([_simulated(run, one) for run, one in zip(planned, physics, strict=True)])
        said = self._learned.predict(features, _expected_parts(base))
        learned = set(features.columns)
        return [
            Expected(
                seconds=float(said.seconds[row]),
                low=float(said.low[row]),
                high=float(said.high[row]),
                runs=len(self._records.cells),
                extrapolated=[*said.extrapolated[row], *_new_options(run, learned)],
            )
            for row, run in enumerate(planned)
        ]


def _new_options(run: PlannedRun, learned: set[str]) -> list[str]:
    """Return options of a run that differ from their defaults and that no recorded run has."""
    kinds = (load_usecase(run.usecase).Params, load_backend(run.backend).Options)
    usual = {name: value for kind in kinds for name, value in msgspec.structs.asdict(kind()).items()}
    return [
        f"{name} {value}, which no recorded run has"
        for name, value in run.params.items()
        if isinstance(value, str | bool) and name not in learned and value != usual.get(name)
    ]


def reference() -> list[Path]:
    """Return the folder of sessions in a clone; an installed package has none."""
    from adabench import results

    folders = [Path(folder) / "reference" for folder in results.__path__]
    return [folder for folder in folders if folder.is_dir()]


def physics_of(run: PlannedRun, data: str | None, cores: int) -> Physics:
    """Count a batch of the use case, and simulate its steps.

    Parameters
    ----------
    run : PlannedRun
        A planned run, or a recorded run with the current parameters of its use case.
    data : str or None
        Folder or file of the use case's data.
    cores : int
        Number of cores that its nodes share.

    Raises
    ------
    UsageError
        If the plugins are not here, have other parameters now, or the data cannot be used.
    """
    kind, backend = load_usecase(run.usecase), load_backend(run.backend)
    own = {name: value for name, value in run.params.items() if name in kind.Params.__struct_fields__}
    usecase = _usecase(run.usecase, msgspec.json.encode({**own, "epochs": 1}, order="deterministic"), data)
    workers = run.nodes * run.workers
    train = usecase.loaders(0, workers).train
    batch = next(iter(train))
    steps = len(train) if isinstance(train, Sized) else sum(1 for _ in train)
    compute = _PER_STEP + _operations(usecase, batch) / _FLOPS
    seconds, kilobytes = compute * max(workers / cores, 1.0), 0.0
    if issubclass(backend.Options, ServerOptions):
        found = _simulation(usecase, run, cores, compute)
        if found is not None:
            seconds, kilobytes = found.seconds_per_step, found.bytes_per_step / 1e3
    elif backend.distributed and run.nodes > 1:
        sent = _exchanged(usecase, batch, run.nodes)
        (resources,) = clusters_of(None, [run.nodes], run.network)
        links = resources.links
        seconds += sent / (1.25e8 * links.gbit_per_second) + _WAYS * 1e-3 * links.latency_ms
        kilobytes = sent / 1e3
    keys = sum(len(np.unique(rows.numpy())) for rows in usecase.keys(batch).values())
    return Physics(steps=steps, keys=keys, compute=compute, seconds=seconds, kilobytes=kilobytes)


def _exchanged(usecase: UseCase, batch: Any, nodes: int) -> float:
    """Return the bytes that a node sends per step if each distinct row with its key is sent once each way.

    All other parameters are averaged in a ring.
    """
    shapes = {name: value.shape for name, value in usecase.model().named_parameters()}
    read = {name: len(np.unique(rows.numpy())) for name, rows in usecase.keys(batch).items()}
    rows = sum(count * (8 + 8 * shapes[name][1:].numel()) for name, count in read.items())
    dense = sum(4 * shape.numel() for name, shape in shapes.items() if name not in read)
    return float((nodes - 1) / nodes * (rows + 2 * dense))


def _simulation(usecase: UseCase, run: PlannedRun, cores: int, compute: float) -> Simulation | None:
    """Return the simulation of a run; None if its policy cannot be simulated."""
    kind = load_backend(run.backend).Options
    given = {name: value for name, value in run.params.items() if name in kind.__struct_fields__}
    (resources,) = clusters_of(None, [run.nodes], run.network)
    node = msgspec.structs.replace(resources.node[0], cores=max(cores // run.nodes, 1))
    try:
        # Nodes that share a core get equal parts of it.
        shared = max(run.nodes / cores, 1.0)
        return simulated_once(
            usecase,
            run.backend,
            msgspec.convert(given, kind),
            msgspec.structs.replace(resources, node=(node,) * run.nodes),
            SimulationSettings(workers=run.workers, steps=_STEPS, compute=compute * shared),
            policy=_recorded_policy(run),
        )
    except (UsageError, PolicyError):
        return None


def _recorded_policy(run: PlannedRun) -> Policy | None:
    """Return the policy document of a recorded run, as its file may have changed.

    A builder's policy is built again.
    """
    if not _is_of_a_file(run) or not isinstance(run, Run) or run.policy is None:
        return None
    return Policy.parse(run.policy, source=str(run.params["policy"]))


def _is_of_a_file(run: PlannedRun) -> bool:
    return str(run.params.get("policy", "")).endswith(".toml")


def _document(run: PlannedRun) -> str | None:
    """Return the document of a policy file; None for a builder, or if it is not a policy.

    Raises
    ------
    UsageError
        If the document is no longer available.
    """
    if not _is_of_a_file(run):
        return None
    if isinstance(run, Run):
        if run.policy is None or run.policy.startswith(POLICY_LEFT_OUT):
            raise UsageError("their policy was read from a file, and the record does not contain it")
        return run.policy
    try:
        return Path(str(run.params["policy"])).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"policy {run.params['policy']} cannot be read: {error}") from error


@lru_cache(maxsize=4)
def _usecase(name: str, params: bytes, data: str | None) -> UseCase:
    from adabench.usecases.interface import DataError

    kind = load_usecase(name)
    try:
        return kind(msgspec.json.decode(params, type=kind.Params), None if data is None else Path(data), 1)
    except msgspec.ValidationError as error:
        raise UsageError(f"use case {name!r} has other parameters now: {error}") from error
    except DataError as error:
        raise UsageError(f"use case {name!r}: {error}") from error


def _operations(usecase: UseCase, batch: Any) -> int:
    """Return the floating point operations of a step's matrix products, forward and backward."""
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with counter:
        usecase.loss(usecase.model(), batch).backward()
    return int(counter.get_total_flops())


class _Known:
    """Stores results of `physics_of` in a file."""

    def __init__(self, folder: Path) -> None:
        self._stored = StoredResults(folder / _CACHE, Physics)
        self._refused: dict[str, str] = {}

    def of(self, run: PlannedRun, data: str | None, cores: int) -> Physics:
        """Return the stored result of `physics_of`, or compute it."""
        params = {name: value for name, value in run.params.items() if name not in ("epochs", "lr")}
        settings = (run.nodes, run.workers, run.network)
        what = [_sources(), run.usecase, run.backend, params, settings, data, cores, _document(run)]
        key = self._stored.key(what)
        if key in self._refused:
            raise UsageError(self._refused[key])
        found = self._stored.get(key)
        if found is None:
            try:
                found = physics_of(run, data, cores)
            except UsageError as error:
                self._refused[key] = str(error)
                raise
            self._stored.put(key, found)
        return found

    def write(self) -> None:
        """Write new results if the folder for the file exists."""
        self._stored.write()


@lru_cache(maxsize=1)
def _sources() -> str:
    """Return a hash of the sources that determine the simulator's results."""
    return shared_sources_hash(Path(__file__))


def _simulated(run: PlannedRun, physics: Physics) -> float:
    return float(run.params.get("epochs", 1) * physics.steps * physics.seconds)


def _row(
    run: PlannedRun, physics: Physics, environment: Mapping[str, Any], probe_seconds: float, when: str
) -> dict[str, Any]:
    """Return the features of a run: its properties before it begins."""
    import pandas as pd

    (resources,) = clusters_of(None, [run.nodes], run.network)
    words = {name: str(value) for name, value in run.params.items() if isinstance(value, str | bool)}
    if _is_of_a_file(run):
        words["policy"] = _A_FILE
    switches = {name: str(value) for name, value in run.settings().items() if isinstance(value, bool)}
    return {
        "usecase": run.usecase,
        "backend": run.backend,
        "machine": str(environment.get("cpu")),
        "cores": float(_cores_of(environment)),
        "probe": probe_seconds,
        "nodes": float(run.nodes),
        "workers": float(run.workers),
        "latency_ms": resources.links.latency_ms if run.nodes > 1 else 0.0,
        "gbit_per_second": resources.links.gbit_per_second if run.nodes > 1 else 0.0,
        "link": run.network.partition(":")[0] if run.nodes > 1 else "none",
        "part": run.node_percent / 100.0,
        "last": run.last_node_percent / 100.0 if run.nodes > 1 else 1.0,
        "epochs": float(run.params.get("epochs", 1)),
        "batch": float(run.params.get("batch", 0)),
        "dim": float(run.params.get("dim", 0)),
        "lookahead": float(run.params.get("lookahead", 0)),
        "steps": float(physics.steps),
        "keys": float(physics.keys),
        "compute": 1e6 * physics.compute,
        "simulated": 1e6 * physics.seconds,
        "kilobytes": physics.kilobytes,
        "when": pd.Timestamp(when).tz_convert(None),  # Versions differ in speed.
        **switches,
        # A use case or backend can name a parameter as one of the other columns.
        **{f"parameter {name}": word for name, word in words.items()},
    }


def _scatter(runs: Iterable[tuple[str, float]]) -> float:
    """Return the median deviation of seconds from their cell's median; NaN if no cell has several runs."""
    of_cell: dict[str, list[float]] = {}
    for cell, seconds in runs:
        of_cell.setdefault(cell, []).append(seconds)
    found = [abs(one / median(own) - 1) for own in of_cell.values() if len(own) > 1 for one in own]
    return median(found) if found else float("nan")


def _expected_parts(training: Any) -> Any:
    """Return the simulator's seconds of each run inside and outside training."""
    return np.column_stack([training, np.full(len(training), _AROUND)])


def _filled(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with a dash for missing options. Numeric columns have no missing values."""
    return frame.fillna("-")


def _cores_of(environment: Mapping[str, Any]) -> int:
    cores = environment.get("cores")
    return int(cores["usable"]) if isinstance(cores, dict) and "usable" in cores else 1


def _data_of(session: Session, run: Run) -> str | None:
    data = session.study.get("data")
    return str(data[run.usecase]) if isinstance(data, dict) and run.usecase in data else None
