"""Two agents of torchrun on this machine, of which a rank dies; by hand, many trials one after the other.

``python -m tests.integration.agents.trial 20`` prints how many of 20 trials ended with exact sums.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.conftest import free_port

ROOT = Path(__file__).resolve().parents[3]
SCENARIOS: dict[str, dict[str, Any]] = {
    f"{backend}, rank {victim} dies {moment}{', the other lingers' if lingers else ''}": {
        "backend": backend,
        "victim": victim,
        "moment": moment,
        "lingers": lingers,
    }
    for backend, victim, moment, lingers in [
        ("c10d", 0, "working", 0),
        ("c10d", 1, "working", 0),
        ("c10d", 0, "connected", 3),
        ("c10d", 1, "starting", 0),
        ("c10d", 1, "working", 3),
        ("static", 0, "working", 0),
        ("static", 1, "connected", 0),
        ("static", 1, "working", 3),
    ]
} | {
    f"c10d, an agent joins later and rank {victim} dies": {
        "backend": "c10d",
        "victim": victim,
        "moment": "working",
        "lingers": 0,
        "joins": True,
    }
    for victim in (0, 1)
}


class Job:
    """A job of two agents in a folder."""

    def __init__(self, folder: Path, scenario: dict[str, Any], seconds: float) -> None:
        self._folder = folder
        self._scenario = scenario
        self._port = free_port()
        self._deadline = time.monotonic() + seconds
        self._agents: list[subprocess.Popen[bytes]] = []

    def run(self) -> list[dict[str, Any]]:
        """What each rank found; AssertionError with what was said, if an agent fails."""
        try:
            self._start(0)
            if self._scenario.get("joins"):
                self._await("0-of-1-came-*")
            self._start(1)
            for agent in self._agents:
                agent.wait(max(self._deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            raise AssertionError("not done in time\n" + self._said()) from None
        finally:
            for agent in self._agents:
                if agent.poll() is None:
                    os.killpg(agent.pid, signal.SIGKILL)
                agent.wait()
        codes = [agent.returncode for agent in self._agents]
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
            *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}", "--nproc-per-node=1"),
            *("--max-restarts=3", "--local-addr=127.0.0.1", *at),
            *(["--rdzv-conf=last_call_timeout=1"] if backend == "c10d" else []),
            *("-m", "tests.integration.agents.rank", str(self._folder)),
            json.dumps({"nodes": 2, **self._scenario}),
        ]
        # An agent of PyTorch 2.13 that joins later waits in vain to be told of the store that agents share.
        # With this, rank 0 holds one.
        own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if self._scenario.get("joins") else {}
        with (self._folder / f"agent-{number}.log").open("wb") as log:
            # A session of its own: what an agent leaves behind can be ended with it.
            self._agents.append(
                subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env={**os.environ, "OMP_NUM_THREADS": "1", **own_store},
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def _await(self, pattern: str) -> None:
        while not list(self._folder.glob(pattern)):
            if time.monotonic() > self._deadline:
                raise AssertionError(f"no {pattern}\n{self._said()}")
            time.sleep(0.05)

    def _said(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self._folder.glob("*[rg]*-*")))


def trial(scenario: str, folder: Path, seconds: float = 240.0) -> None:
    """Raise AssertionError unless both ranks end with exact sums after the fault."""
    expected = {"world": 2, "sums": [20.0 * 3]}
    found = Job(folder, SCENARIOS[scenario], seconds).run()
    assert found == [expected, expected], found


def main() -> None:
    good, number = 0, int(sys.argv[1])
    for index in range(number):
        name = list(SCENARIOS)[index % len(SCENARIOS)]
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="agents-") as folder:
            try:
                trial(name, Path(folder))
                good += 1
                said = "good"
            except AssertionError as error:
                said = f"BAD: {error}"
        print(f"{index + 1}: {name}: {said} ({time.monotonic() - begin:.1f} s)", flush=True)
    print(f"{good} of {number}")


if __name__ == "__main__":
    main()
