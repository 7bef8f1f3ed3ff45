"""A script in AdaPM's style: a scheduler and two servers, configured only by DMLC's environment."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from adabench.harness.launch.fork_server import ForkServer
from tests.conftest import free_port
from tests.processes import outputs
from tests.warm import WarmProcess

SCRIPT = """
import os, sys, threading
import numpy as np, torch
import adaps.compat.adapm as adapm

num_keys, num_threads = 1000, 2
if os.environ["DMLC_ROLE"] == "scheduler":
    adapm.scheduler(num_keys, num_threads)
    sys.exit(0)

adapm.setup(num_keys, num_threads, use_techniques="all", num_channels=2)
lengths = torch.ones(num_keys) * 2
lengths[400] = 10
server = adapm.Server(lengths)
server.barrier()
server.enable_sampling_support("preloc", False, "log-uniform", 500, 900)
failures = []

def work(index, kv):
    try:
        keys = torch.arange(0, 300) + index
        vals = torch.ones(600)
        for _ in range(10):
            kv.intent(keys, kv.current_clock() + 1)
            kv.advance_clock()
            kv.push(keys, vals, True)
            keys, pushed = keys.clone(), keys
            vals, given = vals.clone(), vals
            given.fill_(1e6)  # both are the script's again
            pushed.fill_(999)
        kv.waitall()
        kv.wait_sync()
        kv.barrier()
        kv.wait_sync()
        kv.pull(torch.arange(300), vals)
        # Key 0 belongs to one thread of each server, the others to both.
        assert vals[:2].tolist() == [20, 20], vals[:2]
        assert (vals[2:] == 40).all(), vals
        kv.barrier()
        if server.my_rank() == 0 and index == 0:
            kv.set(torch.arange(500, 900), torch.arange(500, 900).float().repeat_interleave(2))
        kv.wait_sync()
        kv.barrier()
        kv.wait_sync()
        sample = kv.prepare_sample(100, kv.current_clock())
        keys, vals = torch.empty(100, dtype=torch.int64), torch.empty(200)
        kv.wait(kv.pull_sample(sample, keys, vals, True))
        assert len(set(keys.tolist())) == 100 and 500 <= keys.min() and keys.max() < 900, keys
        assert (vals.view(100, 2) == keys[:, None]).all(), (keys, vals)
        kv.barrier()
        kv.finalize()
    except BaseException as error:
        failures.append(error)
        raise

threads = [threading.Thread(target=work, args=(w, adapm.Worker(w, server))) for w in range(num_threads)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
server.barrier()
server.shutdown()
print("rank", server.my_rank())
sys.exit(bool(failures))
"""


FAILING = """
import os, signal, sys
import adaps.compat.adapm as adapm
from adaps.compat import _presence

_presence.SILENCE, adapm._CONNECT_TIMEOUT = 4.0, 20.0
if os.environ["DMLC_ROLE"] == "scheduler":
    if sys.argv[1] == "absent":
        adapm._CONNECT_TIMEOUT = 2.0
    adapm.scheduler(10, 1)
    sys.exit(0)
adapm.setup(10, 1)
server = adapm.Server(2)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "left":
    raise ValueError("of the script")
"""


def start(
    warm: ForkServer, script: Path, role: str, port: int, servers: int = 2, arguments: Sequence[str] = ()
) -> WarmProcess:
    environment = {
        **os.environ,
        "DMLC_NUM_SERVER": str(servers),
        "DMLC_ROLE": role,
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    return WarmProcess(warm, [str(script), *arguments], environment, script.parent)


def test_a_scheduler_and_two_servers(tmp_path: Path, warm: ForkServer) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    port = free_port()
    processes = [start(warm, script, role, port) for role in ("scheduler", "server", "server")]
    said = outputs(processes, 120)
    assert [process.returncode for process in processes] == [0, 0, 0], said
    assert sorted(out for out, _ in said) == ["", "rank 0\n", "rank 1\n"]
    assert [err for _, err in said] == ["", "", ""]


@pytest.mark.parametrize(
    ("how", "code", "message"),
    [
        ("killed", -9, "AdapsError: server 0 is dead: it gave no sign of life for 4 s"),
        ("left", 1, "AdapsError: server 0 ended without shutdown()"),
        ("absent", None, "RendezvousError: 0 of 1 servers came within 2 s"),
    ],
)
def test_the_scheduler_ends_with_a_reason_when_a_server_does_not_shut_down(
    how: str, code: int | None, message: str, tmp_path: Path, warm: ForkServer
) -> None:
    script = tmp_path / "script.py"
    script.write_text(FAILING)
    port = free_port()
    roles = ["scheduler"] if code is None else ["scheduler", "server"]
    processes = [start(warm, script, role, port, 1, [how]) for role in roles]
    said = outputs(processes, 120)
    assert message in said[0][1]
    assert [process.returncode for process in processes] == [1, code][: len(roles)]
