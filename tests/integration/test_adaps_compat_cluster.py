"""A script in AdaPM's manner: a scheduler process and two servers that know only DMLC's environment."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

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
failures = []

def work(index, kv):
    try:
        keys = torch.arange(0, 300) + index
        vals = torch.ones(600)
        for _ in range(10):
            kv.intent(keys, kv.current_clock() + 1)
            kv.advance_clock()
            kv.push(keys, vals, True)
        kv.waitall()
        kv.wait_sync()
        kv.barrier()
        kv.wait_sync()
        kv.pull(torch.arange(300), vals)
        # Key 0 belongs to one thread of each server, the others to both.
        assert vals[:2].tolist() == [20, 20], vals[:2]
        assert (vals[2:] == 40).all(), vals
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


def start(script: Path, role: str, port: int) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "DMLC_NUM_SERVER": "2",
        "DMLC_ROLE": role,
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, str(script)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_scheduler_and_two_servers(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = [start(script, role, port) for role in ("scheduler", "server", "server")]
    try:
        said = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0, 0], said
    assert sorted(out for out, _ in said) == ["", "rank 0\n", "rank 1\n"]
    assert [err for _, err in said] == ["", "", ""]
