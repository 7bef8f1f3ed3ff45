"""Jobs of two torchrun agents, which count restarts separately: when a rank dies, all ranks restart."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from adabench.harness.launch.fork_server import Fork, ForkServer
from tests.conftest import free_port
from tests.warm import RUN_PYTHON, whole

ROOT = Path(__file__).resolve().parents[2]
GIVEN_UP = 240.0
"""Seconds after which a test counts as hung."""
QUICK = ["c10d, rank 1 dies working, the other lingers", "c10d, an agent joins later and rank 0 dies"]
SCENARIOS: dict[str, dict[str, Any]] = {
    str(name): dict(zip(("backend", "victim", "moment", "lingers", "joins"), values, strict=False))
    for name, *values in [
        ("c10d, rank 0 dies working", "c10d", 0, "working", 0),
        ("c10d, rank 1 dies working", "c10d", 1, "working", 0),
        ("c10d, rank 0 dies connected, the other lingers", "c10d", 0, "connected", 3),
        ("c10d, rank 1 dies starting", "c10d", 1, "starting", 0),
        ("c10d, rank 1 dies working, the other lingers", "c10d", 1, "working", 3),
        ("static, rank 0 dies working", "static", 0, "working", 0),
        ("static, rank 1 dies connected", "static", 1, "connected", 0),
        ("static, rank 1 dies working, the other lingers", "static", 1, "working", 3),
        ("c10d, an agent joins later and rank 0 dies", "c10d", 0, "working", 0, True),
        ("c10d, an agent joins later and rank 1 dies", "c10d", 1, "working", 0, True),
    ]
}


class Job:
    """A job of two agents in a folder; they are forks of `server`, and need not import PyTorch."""

    def __init__(self, server: ForkServer, folder: Path, scenario: dict[str, Any]) -> None:
        self._server = server
        self._folder = folder
        self._scenario = scenario
        self._port = free_port()
        self._deadline = time.monotonic() + GIVEN_UP
        self._agents: list[Fork] = []

    def run(self) -> list[dict[str, Any]]:
        """The result of each rank."""
        try:
            self._start(0)
            if self._scenario.get("joins"):
                self._await("0-of-1-came-*")
            self._start(1)
            codes = [agent.wait(max(self._deadline - time.monotonic(), 0.1)) for agent in self._agents]
        finally:
            for agent in self._agents:
                agent.end()
        assert None not in codes, "not done in time\n" + self._said()
        assert codes == [0, 0], f"the agents ended with {codes}\n{self._said()}"
        assert (self._folder / "died").exists(), "the fault did not come"
        return [json.loads((self._folder / f"result-{rank}.json").read_text()) for rank in range(2)]

    def _start(self, number: int) -> None:
        backend = self._scenario["backend"]
        at = (
            [f"--rdzv-endpoint=127.0.0.1:{self._port}", "--rdzv-backend=c10d", "--rdzv-id=job"]
            if backend == "c10d"
            else ["--master-addr=127.0.0.1", f"--master-port={self._port}", f"--node-rank={number}"]
        )
        nodes = "1:2" if self._scenario.get("joins") else "2"
        command = [
            *("-m", "torch.distributed.run", f"--nnodes={nodes}", "--nproc-per-node=1"),
            *("--max-restarts=3", "--local-addr=127.0.0.1", *at),
            *(["--rdzv-conf=last_call_timeout=1"] if backend == "c10d" else []),
            *("-m", "tests.integration.agents.rank", str(self._folder)),
            json.dumps({"nodes": 2, **self._scenario}),
        ]
        # In PyTorch 2.13, an agent that joins later is never told about the store that agents share. With
        # this option, rank 0 hosts a store instead.
        own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if self._scenario.get("joins") else {}
        with (self._folder / f"agent-{number}.log").open("wb") as log:
            environment = whole({**os.environ, "OMP_NUM_THREADS": "1", **own_store})
            arguments = [str(ROOT), *command]
            self._agents.append(
                self._server.fork(RUN_PYTHON, arguments, environment, log.fileno(), log.fileno())
            )

    def _await(self, pattern: str) -> None:
        while not list(self._folder.glob(pattern)):
            if time.monotonic() > self._deadline:
                raise AssertionError(f"no {pattern}\n{self._said()}")
            time.sleep(0.05)

    def _said(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self._folder.glob("*[rg]*-*")))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_job_of_two_agents_goes_on_with_exact_sums(
    tmp_path: Path, full: bool, warm: ForkServer, scenario: str
) -> None:
    if scenario not in QUICK and not full:
        pytest.skip("one of the scenarios for --full")
    expected = {"world": 2, "sums": [20.0 * 3]}
    assert Job(warm, tmp_path, SCENARIOS[scenario]).run() == [expected, expected]
