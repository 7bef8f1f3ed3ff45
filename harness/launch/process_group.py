"""The root of a run's process group: it forks the ranks, and ends all of them if one fails.

The root gives the ranks torchrun's environment, so that each rank runs as under torchrun's agent. The root
holds the rendezvous store, which outlives all ranks. It leaves no process and no file behind.
"""

import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import psutil

from adabench.harness.launch.launcher import Failure
from adabench.harness.machine.process import adopt_orphans, end_quickly, kill_descendants
from adabench.harness.run.rank import run_rank
from adabench.harness.run.spec import Place, RunSpec, exchange_file
from adabench.results.store import write_atomically

_LOOPBACK = "127.0.0.1"
_TERMINATION_SECONDS = 30.0
"""Seconds for a rank to write its results after SIGTERM."""


def run_group(file: str) -> int:
    """Run the ranks of a run to their end. A forked process runs only its rank.

    Returns
    -------
    int
        Exit code of this process: of the group, or of the rank in a fork.
    """
    spec_file = Path(file)
    spec = msgspec.json.decode(spec_file.read_bytes(), type=RunSpec)
    folder = Path(spec.folder)
    adopt_orphans()
    place = spec.place or _whole(spec.nodes)
    listener, port = None, place.port
    if not port:
        # Bound before any rank starts, so that none finds the port closed; without other hosts it is
        # reachable from this one only.
        family = socket.AF_INET6 if ":" in place.address else socket.AF_INET
        listener = socket.create_server((place.address, 0), family=family)
        port = listener.getsockname()[1]
        write_atomically(exchange_file(folder, "rendezvous", 0), msgspec.json.encode(port))
    root, ranks = os.getpid(), dict[int, int]()
    for index, rank in enumerate(place.ranks):
        pid = os.fork()
        if not pid:
            if listener is not None:
                listener.close()
            return run_rank(spec_file, root, _environment(place, index, spec.nodes, port))
        ranks[pid] = rank
    store = None if listener is None else _store(place.address, listener)
    failures = _end_together(ranks, folder, place.group)
    del store
    # All ranks have ended: a process that is still there was started by one of them and forgotten.
    left = [f"process {_command(process)}" for process in psutil.Process().children(recursive=True)]
    kill_descendants(psutil.Process())
    left += [f"file {path.name}" for path in (folder / "tmp").glob("*")]
    write_atomically(exchange_file(folder, "left", place.group), msgspec.json.encode(left))
    bad = [failure for failure in failures if failure.exit_code]
    if bad:
        print(f"[adabench] {_sentence(bad)}", file=sys.stderr, flush=True)
    return end_quickly(1 if bad else 0)


def _whole(nodes: int) -> Place:
    return Place(
        ranks=list(range(nodes)), local_rank=0, local_size=nodes, group=0, groups=1, address=_LOOPBACK
    )


def _environment(place: Place, index: int, nodes: int, port: int) -> Mapping[str, str]:
    rank = place.ranks[index]
    return {
        "MASTER_ADDR": place.address,
        "MASTER_PORT": str(port),
        **{name: str(rank) for name in ("RANK", "ROLE_RANK")},
        **{name: str(nodes) for name in ("WORLD_SIZE", "ROLE_WORLD_SIZE")},
        "LOCAL_RANK": str(place.local_rank + index),
        "LOCAL_WORLD_SIZE": str(place.local_size),
        "GROUP_RANK": str(place.group),
        "GROUP_WORLD_SIZE": str(place.groups),
        "ROLE_NAME": "default",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


def _store(address: str, listener: socket.socket) -> object:
    """The store of the run. It has threads, so there is nothing to be forked after it."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    port = listener.getsockname()[1]
    return TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def _end_together(ranks: Mapping[int, int], folder: Path, group: int) -> list[Failure]:
    """Wait for all ranks; as soon as one ends with an error, the others get SIGTERM, and later SIGKILL.

    Failures are written when they happen. A rank that ends well but has written no result is one of them.
    """
    running, failures, oom_kills = dict(ranks), list[Failure](), _oom_kills()
    deadline: float | None = None
    while running:
        pid, status = os.waitpid(-1, 0 if deadline is None else os.WNOHANG)
        if pid in running:
            rank, code = running.pop(pid), os.waitstatus_to_exitcode(status)
            if code or not exchange_file(folder, "result", rank).exists():
                oom = _oom_kills() > oom_kills
                failures.append(
                    Failure(rank=rank, pid=pid, exit_code=code, time=time.monotonic(), out_of_memory=oom)
                )
                write_atomically(exchange_file(folder, "failures", group), msgspec.json.encode(failures))
            if code:
                deadline = deadline or time.monotonic() + _TERMINATION_SECONDS
                for other in running:
                    os.kill(other, signal.SIGTERM)
        elif not pid:
            assert deadline is not None
            if time.monotonic() > deadline:
                for other in running:
                    os.kill(other, signal.SIGKILL)
            time.sleep(0.05)
    return failures


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


def _oom_kills() -> int:
    """Number of processes of this machine that the kernel has killed for lack of memory; 0 if unknown."""
    try:
        counts = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    except FileNotFoundError:
        return 0
    return int(counts.get("oom_kill", 0))
