"""The root of a run's process group: torchrun, in a process that ends with the harness and leaves nothing.

``python -m adabench.harness.group HARNESS-PID FOLDER TORCHRUN-ARGUMENTS…``
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import psutil

from adabench.harness.owner import Owner
from adabench.harness.process import adopt_orphans, die_with_parent, kill_descendants
from adabench.harness.spec import GROUP_VARIABLE
from adabench.results.store import write_atomically

__all__ = ["Failure", "failures_file", "leftovers_file"]


class Failure(msgspec.Struct, kw_only=True, frozen=True):
    """A rank that ended badly, as torchrun saw it; a negative exit code is a signal's number."""

    rank: int
    pid: int
    exit_code: int
    time: float


def main(arguments: list[str]) -> int:
    """Run torchrun; write which ranks failed; kill whatever they started and left."""
    die_with_parent(int(arguments[0]))
    adopt_orphans()
    os.environ[GROUP_VARIABLE] = Owner.this_process().text()
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    folder = Path(arguments[1])
    try:
        run(parse_args(arguments[2:]))
    except ChildFailedError as error:
        failures = [
            Failure(rank=rank, pid=failure.pid, exit_code=failure.exitcode, time=float(failure.timestamp))
            for rank, failure in error.failures.items()
        ]
        write_atomically(failures_file(folder), msgspec.json.encode(failures))
        print(f"[adabench] {_sentence(failures)}", file=sys.stderr, flush=True)
        return 1
    finally:
        # Torchrun has ended its ranks by now; what is still there, a rank has started and forgotten.
        left = psutil.Process().children(recursive=True)
        write_atomically(leftovers_file(folder), msgspec.json.encode([_command(process) for process in left]))
        kill_descendants(psutil.Process())
    return 0


def failures_file(folder: Path) -> Path:
    return folder / "failures.json"


def leftovers_file(folder: Path) -> Path:
    return folder / "leftovers.json"


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) or process.name()
    except psutil.NoSuchProcess:
        return f"{process.pid}"


def _sentence(failures: list[Failure]) -> str:
    return "; ".join(
        f"rank {failure.rank} (pid {failure.pid}) ended with "
        + (f"signal {-failure.exit_code}" if failure.exit_code < 0 else f"exit code {failure.exit_code}")
        for failure in sorted(failures, key=lambda one: one.time)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
