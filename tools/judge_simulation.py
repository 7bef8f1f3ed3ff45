"""Judges simulated times by the runs of the study `predictions`; writes docs/reference/predictions.md.

Usage: ``python tools/judge_simulation.py``, or ``make predictions``. The program runs the remaining part of
the study, which takes about a quarter of an hour on an otherwise idle machine, measures the machine's costs,
simulates each cell, and writes the table and the figure of the documentation. ``--session NAME`` uses an
existing session and only prints the results, unless ``--write`` is given. The machine's costs are stored with
the session's records, in ``resources.toml``, and the costs with imitated links in one file for each kind of
link.
"""

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import pandas as pd

from adabench.analysis.load import measured, shown_value
from adabench.analysis.pages import write_section
from adabench.analysis.simulation_errors import SimulatedCell, draw_errors, error_rows, setting_rows
from adabench.analysis.style import standalone_svg
from adabench.analysis.tables import markdown
from adabench.backends.policies.cost_model import measured_costs
from adabench.backends.policies.resources import Link, Resources
from adabench.harness.errors import UsageError
from adabench.harness.estimate.measured_steps import step_seconds
from adabench.harness.estimate.simulate import SimulationSettings, clusters_of, simulated_once
from adabench.harness.machine.measure_cluster import measure_here
from adabench.harness.plugins.registry import load_backend, load_usecase
from adabench.results.record import PlannedRun, RecordError, Run
from adabench.results.store import SessionStore, find_session
from adaps.simulation import Simulation

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "predictions.md"
SESSIONS = ROOT / "results" / "sessions"
KEPT = ROOT / "results" / "reference" / "predictions"
STUDY = "predictions"
HERE = "here"
LOOPBACK = "loopback"


def spec_of(run: PlannedRun) -> str:
    """Return the use case of a run as on the command line, without its epochs."""
    kind = load_usecase(run.usecase).Params
    usual = msgspec.structs.asdict(kind())
    given = {name: shown_value(run.params[name]) for name in kind.__struct_fields__ if name in run.params}
    changed = [
        f"{name}={value}"
        for name, value in given.items()
        if name != "epochs" and value != shown_value(usual[name])
    ]
    return f"{run.usecase}[{','.join(changed)}]" if changed else run.usecase


def setting_of(run: PlannedRun) -> str:
    """Return a description of a cell without its technique."""
    links = f", {run.network}" if run.nodes > 1 else ""
    nodes = f"{run.nodes} node{'s' if run.nodes > 1 else ''}"
    return f"{spec_of(run)}, {nodes}{links}, lookahead {run.params['lookahead']}"


def resources_for(runs: Sequence[Run], folder: Path) -> dict[str, Resources]:
    """Return this machine's costs, links and steps of all runs' use cases, for each network of the runs.

    They are read from files if these exist. Networks have separate costs, because an imitation takes CPU
    time.
    """
    file = folder / _file_of(LOOPBACK)
    if file.is_file():
        found = {LOOPBACK: Resources.read(file)}
    else:
        here = measure_here(2, None)
        costs = measured_costs(here.node[0].speed)
        steps = {}
        for run in runs:
            key = _step_of(run)
            if key not in steps:
                print(f"measuring a step of {key}", flush=True)
                steps[key] = 1e3 * step_seconds(spec_of(run), costs=costs, nodes=run.nodes)
        found = {LOOPBACK: msgspec.structs.replace(here, costs=costs, steps=steps)}
        file.write_text(found[LOOPBACK].text(), encoding="utf-8")
    for network in sorted({run.network for run in runs} - set(found)):
        file = folder / _file_of(network)
        if file.is_file():
            found[network] = Resources.read(file)
        else:
            print(f"measuring costs with links like {network}", flush=True)
            costs = measured_costs(found[LOOPBACK].node[0].speed, network)
            found[network] = msgspec.structs.replace(found[LOOPBACK], costs=costs)
            file.write_text(found[network].text(), encoding="utf-8")
    return found


def _file_of(network: str) -> str:
    return "resources.toml" if network == LOOPBACK else f"resources-{network}.toml"


def judged(store: SessionStore, resources: Mapping[str, Resources]) -> list[SimulatedCell]:
    """Simulate each cell of a session on nodes that share this machine.

    Raises
    ------
    RecordError
        If the session has no successful run.
    """
    by_cell: dict[str, list[Run]] = {}
    for run in measured(store.runs()):
        by_cell.setdefault(run.cell, []).append(run)
    if not by_cell:
        raise RecordError(f"{store.folder.name}: no run ended well")
    patterns = store.session().study["include"]
    return [
        _judged(runs, resources[runs[0].network], _is_held_out(runs[0], patterns))
        for runs in by_cell.values()
    ]


def _judged(runs: Sequence[Run], resources: Resources, held_out: bool) -> SimulatedCell:
    first = runs[0]
    found = [_simulated(run, resources) for run in runs]
    workers = first.nodes * first.workers
    steps = found[0].steps // workers
    worked = [sum(node.working + node.channels for node in one.nodes) for one in found]

    def per_step(figures: Sequence[float | None], of: int = steps) -> float:
        return 1e3 * median(figure for figure in figures if figure is not None) / of

    return SimulatedCell(
        usecase=first.usecase,
        setting=setting_of(first),
        technique=_technique(first),
        held_out=held_out,
        nodes=first.nodes,
        runs=len(runs),
        milliseconds=per_step([one.seconds.train for one in runs]),
        simulated_milliseconds=per_step([one.seconds for one in found]),
        cpu=per_step([one.train_cpu_seconds for one in runs], steps * workers),
        simulated_cpu=per_step(worked, steps * workers),
        kilobytes=1e-6 * per_step([one.counters.get("bytes_sent", 0.0) for one in runs], steps * workers),
        simulated_kilobytes=1e-3 * median(one.bytes_per_step for one in found),
    )


def _simulated(run: Run, resources: Resources) -> Simulation:
    """Simulate the run's whole training, with its seed and thus its order of batches."""
    kind, options = load_usecase(run.usecase), load_backend(run.backend).Options
    params = {name: run.params[name] for name in kind.Params.__struct_fields__ if name in run.params}
    usecase = kind(msgspec.convert(params, kind.Params), None, run.seed)
    given = {name: run.params[name] for name in options.__struct_fields__ if name in run.params}
    epoch = sum(1 for _ in usecase.loaders(0, run.nodes * run.workers).train)
    return simulated_once(
        usecase,
        run.backend,
        msgspec.convert(given, options),
        _cluster(run, resources),
        SimulationSettings(
            workers=run.workers,
            steps=epoch * int(run.params["epochs"]),
            compute=1e-3 * resources.steps[_step_of(run)],
            epoch=epoch,
            seed=run.seed,
        ),
    )


def _cluster(run: PlannedRun, resources: Resources) -> Resources:
    """Return nodes that share this machine's cores, with shaped links on top of the loopback device."""
    node = msgspec.structs.replace(resources.node[0], host=HERE)
    links = resources.links
    if run.nodes > 1 and run.network != LOOPBACK:
        (shaped,) = clusters_of(None, [2], run.network)
        links = Link(
            latency_ms=links.latency_ms + shaped.links.latency_ms,
            gbit_per_second=min(links.gbit_per_second, shaped.links.gbit_per_second),
        )
    return msgspec.structs.replace(resources, node=(node,) * run.nodes, links=links, link=())


def _is_held_out(run: PlannedRun, patterns: Sequence[dict[str, Any]]) -> bool:
    """Whether a run is held out: it matches a pattern of the study with an odd index."""
    has = {**run.params, "usecase": run.usecase, "nodes": run.nodes, "network": run.network}
    for number, pattern in enumerate(patterns):
        if all(has[name] == value for name, value in pattern.items()):
            return number % 2 == 1
    raise RecordError(f"no pattern of the study {STUDY!r} includes {setting_of(run)}")


def _step_of(run: PlannedRun) -> str:
    return f"{spec_of(run)} on {run.nodes} node{'s' if run.nodes > 1 else ''}"


def _technique(run: PlannedRun) -> str:
    return str(run.params["policy"]).partition("technique=")[2].rstrip("]")


def _write(cells: Sequence[SimulatedCell], store: SessionStore, resources: Mapping[str, Resources]) -> None:
    KEPT.mkdir(exist_ok=True)
    pd.DataFrame([asdict(cell) for cell in cells]).to_csv(KEPT / "cells.csv", index=False)
    for network, found in resources.items():
        (KEPT / _file_of(network)).write_text(found.text(), encoding="utf-8")
    (KEPT / "predictions.svg").write_text(standalone_svg(draw_errors(cells)), encoding="utf-8")
    write_section(PAGE, "judged", "tools/judge_simulation.py", _section(cells, store))
    print(PAGE.relative_to(ROOT))


def _section(cells: Sequence[SimulatedCell], store: SessionStore) -> str:
    machine = store.session().machine
    runs = sum(cell.runs for cell in cells)
    return "\n\n".join(
        [
            f"{runs} runs of {len(cells)} cells, {date.today().isoformat()}, {machine}.",
            "![simulated against measured time](../../results/reference/predictions/predictions.svg)",
            _table(error_rows(cells)),
            "Simulated ÷ measured time of a step:",
            _table(setting_rows(cells)),
        ]
    )


def _table(lines: Sequence[dict[str, str]]) -> str:
    return markdown(list(lines[0]), [list(line.values()) for line in lines])


def _run_study() -> SessionStore:
    command = [sys.executable, "-m", "adabench.harness.cli", "run", "--study", STUDY]
    if subprocess.run(command, check=False).returncode != 0:
        raise RecordError(f"the study {STUDY!r} did not come to its end: run this again to go on with it")
    return find_session(SESSIONS)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="judge_simulation.py", description=__doc__)
    parser.add_argument("--session")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args(arguments)
    try:
        store = _run_study() if given.session is None else find_session(SESSIONS, given.session)
        resources = resources_for(measured(store.runs()), store.folder)
        cells = judged(store, resources)
    except (RecordError, UsageError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for table in (error_rows(cells), setting_rows(cells)):
        print(_table(table), end="\n\n")
    if given.write or given.session is None:
        _write(cells, store, resources)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
