"""Makes records for tests and fills in all fields that a test does not specify."""

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from adabench.harness.study.cell import Cell
from adabench.results.record import PlannedRun, Run, Seconds, Session
from adaps import Costs

C = TypeVar("C", bound=Cell)

COSTS = Costs(
    call=1.0,
    wake=6.0,
    resume=40.0,
    key=0.1,
    value=0.001,
    copy=0.15,
    elsewhere=0.25,
    intent=0.3,
    message=0.2,
    upkeep=0.4,
    frame=5.0,
    byte=0.002,
    speed=4.0,
)
"""Values that are all different."""


def make_run(backend: str, block: int, **fields: Any) -> Run:
    """A measured run on one node that succeeded; `fields` replace fields of `Run`."""
    made: dict[str, Any] = {
        "run_id": f"{backend}-{block}",
        "session": "s",
        "cell": backend,
        "usecase": "ctr",
        "backend": backend,
        "params": {},
        "nodes": 1,
        "workers": 1,
        "network": "loopback",
        "data": None,
        "block": block,
        "position": 0,
        "seed": 1,
        "phase": "measured",
        "attempt": 1,
        "status": "ok",
        "started_at": "",
        "seconds": Seconds(total=0.0),
    }
    return Run(**{**made, **fields})


def ended(planned: PlannedRun, **fields: Any) -> Run:
    """The record of a planned run that succeeded; `fields` replace fields of `Run`."""
    return make_run(**{**msgspec.structs.asdict(planned), **fields})


def make_cell(kind: type[C], **fields: Any) -> C:
    """A cell, or a run's specification, of ctr with manual intent on two nodes; `fields` are otherwise."""
    made: dict[str, Any] = {
        "usecase": "ctr",
        "backend": "manual",
        "params": {},
        "options": {},
        "nodes": 2,
        "workers": 1,
        "network": "loopback",
    }
    return kind(**{**made, **fields})


def make_session(name: str = "s", **fields: Any) -> Session:
    """A session without a plan; `fields` replace fields of `Session`."""
    made: dict[str, Any] = {
        "session": name,
        "created_at": "2026-01-01T00:00:00+00:00",
        "command": ["adabench"],
        "study": {"name": name},
        "study_id": name,
        "seed": 1,
        "plan": [],
        "environment": {},
        "environment_id": "e",
        "git": None,
        "machine": "m",
    }
    return Session(**{**made, **fields})


def plan_of(runs: Sequence[Run]) -> list[PlannedRun]:
    """The plan that these runs have followed."""
    return [msgspec.convert(run, PlannedRun, from_attributes=True) for run in runs]
