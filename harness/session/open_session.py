"""Finds the session that a study continues, or makes a new one."""

import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec

from adabench.harness.machine.environment import (
    capture,
    environment_id,
    git_state,
    machine_name,
    short_differences,
)
from adabench.harness.study.cell import Cell
from adabench.harness.study.plan import planned_runs, study_id
from adabench.harness.study.study import Study
from adabench.results.record import RecordError, Session
from adabench.results.store import SessionStore, list_sessions, readable_sessions

_LONGEST_NAME = 200
"""Bytes of a study's name in the name of a session."""


@contextmanager
def open_session(
    study: Study,
    cells: list[Cell],
    root: Path,
    fresh: bool,
    say: Callable[[str], None],
    environment: dict[str, Any] | None = None,
) -> Iterator[tuple[SessionStore, Session]]:
    """Open the newest session of the same study, sources, data and environment, or make a new session.

    The session is lengthened if the study is longer. No other process can add to it inside the context.

    Parameters
    ----------
    study : Study
        Study to run.
    cells : list of Cell
        Cells of the study.
    root : Path
        Folder that contains all sessions.
    fresh : bool
        Whether to make a new session even if one can be continued.
    say : callable
        Function that is called with a message for each session that cannot be read, and with the reason not
        to continue a session of the same study.
    environment : dict, optional
        Environment in the form of `environment.capture`; by default this machine's.
    """
    if any(store.folder == root for store in list_sessions(root)):
        raise RecordError(f"{root} is the folder of a session: name the folder that contains it")
    if environment is None:
        environment = capture()
    plan = planned_runs(cells, study)
    identifier = study_id(study, cells)
    found = None if fresh else _newest(root, identifier, environment, say)
    if found is not None:
        with found.locked():
            session = found.session()  # No other process changes the session now.
            if len(plan) > len(session.plan):
                # The command that lengthened the session is the command that repeats all of it.
                session = msgspec.structs.replace(
                    session, plan=plan, study=msgspec.to_builtins(study), command=_command()
                )
                found.create(session)
            yield found, session
        return
    now = datetime.now(timezone.utc)
    # A file name can have 255 bytes.
    name = study.name.encode()[:_LONGEST_NAME].decode(errors="ignore")
    session = Session(
        session=f"{name}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
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
    with store.locked():  # The lock is taken before other processes can find the session.
        store.create(session)
        yield store, session


def _newest(
    root: Path, identifier: str, environment: dict[str, Any], say: Callable[[str], None]
) -> SessionStore | None:
    """The newest session of the study in this environment, if there is one."""
    found = readable_sessions(root, say)
    same = [(store, session) for store, session, _ in found if session.study_id == identifier]
    for store, session in reversed(same):
        if session.environment_id == environment_id(environment):
            return store
        changed = short_differences(session.environment, environment)
        say(f"session {session.session} is of another environment ({changed}): starting a new one")
    return None


def _command() -> list[str]:
    return ["adabench", *sys.argv[1:]]
