"""A rank under one of two agents: works until it is told to end or something fails; `agents` starts it.

``python -m tests.integration.faults.agent_rank FOLDER`` under torchrun. Its reports are appended to a file in
the folder. Exit code 1 makes the agent restart the job.
"""

import json
import os
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import adaps
from tests.integration.faults.workload import Workload

PEER_TIMEOUT = 2.0
WORKERS = 2


def main() -> int:
    folder = Path(sys.argv[1])
    say = partial(_say, folder)
    say(born=True)
    load = Workload(int(os.environ["WORLD_SIZE"]), WORKERS, saved_in(folder), say, stop_file(folder).exists)
    met = False
    try:
        with adaps.Node(
            load.tables(), workers=WORKERS, channels=2, peer_timeout=PEER_TIMEOUT, connect_timeout=60
        ) as node:
            met = True
            turns = load.live(node)
    except adaps.PeerLost as error:
        say(ended="lost a peer", why=str(error))
    except adaps.CheckpointError as error:
        say(ended="no checkpoint", why=str(error))
    except adaps.AdapsError as error:
        say(ended="failed" if met else "did not meet", why=str(error))
    except BaseException:
        say(ended="failed", why=traceback.format_exc())
    else:
        say(ended="done", turns=turns)
        return 0
    return 1


def reports_file(folder: Path) -> Path:
    return folder / "reports"


def stop_file(folder: Path) -> Path:
    return folder / "stop"


def saved_in(folder: Path) -> Path:
    return folder / "saved"


def _say(folder: Path, **message: Any) -> None:
    told = {"process": os.getpid(), "end": os.environ["END"], "rank": int(os.environ["RANK"]), **message}
    descriptor = os.open(reports_file(folder), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        # One call, so that lines of several ranks do not mix.
        os.write(descriptor, (json.dumps({"at": time.monotonic(), **told}) + "\n").encode())
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())
