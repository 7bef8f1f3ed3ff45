"""Finds the session that a study continues, or makes a new one."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from adabench.harness.cell import Cell
from adabench.harness.environment import capture, environment_id, git_state, machine_name, short_differences
from adabench.harness.plan import planned_runs, study_id
from adabench.harness.study import Study
from adabench.results.record import Session
from adabench.results.store import SessionStore, list_sessions

__all__ = ["open_session"]


def open_session(
    study: Study, cells: list[Cell], root: Path, fresh: bool, say: Callable[[str], None]
) -> tuple[SessionStore, Session]:
    """The newest session of the same study, sources, data and environment, lengthened if the study is longer.

    Parameters
    ----------
    fresh : bool
        Make a new one in any case.
    say : callable
        Told why a session of the same study is not continued.

    Raises
    ------
    RecordError
        If the results folder cannot be written or holds a session that cannot be read.
    """
    identifier = study_id(study, cells)
    environment = capture()
    plan = planned_runs(cells, study)
    same = (
        []
        if fresh
        else [
            (store, session)
            for store in list_sessions(root)
            if (session := store.session()).study_id == identifier
        ]
    )
    for store, session in reversed(same):
        if session.environment_id != environment_id(environment):
            changed = short_differences(session.environment, environment)
            say(f"session {session.session} is of another environment ({changed}): starting a new one")
            continue
        if len(plan) > len(session.plan):
            # Of both commands, the later one repeats the whole session.
            session = msgspec.structs.replace(
                session, plan=plan, study=msgspec.to_builtins(study), command=_command()
            )
            store.create(session)
        return store, session
    now = datetime.now(timezone.utc)
    session = Session(
        session=f"{study.name}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        created_at=now.isoformat(timespec="seconds"),
        command=_command(),
        study=msgspec.to_builtins(study),
        study_id=identifier,
        seed=study.seed,
        plan=plan,
        environment=environment,
        environment_id=environment_id(environment),
        git=git_state(),
        machine=machine_name(environment),
    )
    store = SessionStore(root / session.session)
    store.create(session)
    return store, session


def _command() -> list[str]:
    return ["adabench", *sys.argv[1:]]
