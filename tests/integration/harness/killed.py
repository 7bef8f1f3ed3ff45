"""Runs a session of fake runs repeatedly and kills it at random moments, until it is complete.

``python -m tests.integration.harness.killed FOLDER SEED`` prints the number of kills. Every run that was
fully recorded is named in FOLDER/finished, a file that the session does not know.
"""

import io
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from adabench.harness.launch import local
from adabench.harness.launch.fork_server import ForkServer
from adabench.harness.machine.environment import capture
from adabench.harness.session import execute, open_session
from adabench.harness.session.execute import run_session
from adabench.harness.session.one_run import Attempt
from adabench.harness.session.resume_options import ResumeOptions
from adabench.harness.study.plan import cells_of
from adabench.harness.study.study import load_study
from adabench.results.record import Run, Seconds
from adabench.results.store import SessionStore
from tests.records import ended

SECONDS_OF_A_RUN = 0.002
ID_BYTES = 8
LINE = 2 * ID_BYTES + 1
MOST_RUNS_OF_A_LIFE = 8


def main(folder: Path, seed: int) -> None:
    overrides = {"usecases": "ctr[rows=2000]", "backends": "single,manual", "repeats": "30", "nodes": "1"}
    study = load_study(None, "s", overrides)
    environment = capture()
    cells_of(study)  # imports modules here, so that the children need not
    finished = folder / "finished"
    finished.touch()
    setattr(open_session, "capture", lambda: environment)  # noqa: B010
    setattr(execute, "execute_run", made_up)  # noqa: B010
    setattr(execute, "noise_complaints", lambda environment: [])  # noqa: B010
    setattr(local, "ForkServer", NoServer)  # noqa: B010
    announce_what_is_recorded(finished)
    generator, kills = random.Random(seed), 0
    while True:
        process = os.fork()
        if process == 0:
            run_session(study, folder / "sessions", ResumeOptions(), Console(file=io.StringIO()))
            os._exit(0)
        enough = finished.stat().st_size + generator.randint(0, MOST_RUNS_OF_A_LIFE) * LINE
        status = 0
        while process and finished.stat().st_size < enough:
            ended, status = os.waitpid(process, os.WNOHANG)
            process = 0 if ended else process
            time.sleep(SECONDS_OF_A_RUN / 4)
        if process:
            time.sleep(generator.uniform(0, 3 * SECONDS_OF_A_RUN))
            os.kill(process, signal.SIGKILL)
            _, status = os.waitpid(process, 0)
        if not os.WIFSIGNALED(status):
            break
        kills += 1
    print(kills)
    sys.exit(os.waitstatus_to_exitcode(status))


class NoServer(ForkServer):
    """Made-up runs have no processes, and each life would wait seconds for the imports of a server."""

    def start(self) -> None:
        pass


def made_up(attempt: Attempt, *rest: Any) -> Run:
    time.sleep(SECONDS_OF_A_RUN)
    return ended(attempt.planned, run_id=os.urandom(ID_BYTES).hex(), seconds=Seconds(train=1.0, total=1.0))


def announce_what_is_recorded(file: Path) -> None:
    append = SessionStore.append

    def announced(store: SessionStore, run: Run) -> None:
        append(store, run)
        with file.open("a") as finished:
            finished.write(f"{run.run_id}\n")

    setattr(SessionStore, "append", announced)  # noqa: B010


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
