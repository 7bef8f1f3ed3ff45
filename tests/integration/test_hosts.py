"""Jobs on two hosts, which are two network namespaces: how nodes find and trust each other."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes import outputs

from .faults import network

ROOT = Path(__file__).resolve().parents[2]
SECRET = "lMe6iY1fC9Q0Vd3n"
ENDS = ("near", "far")


def start(cable: network.Cable, end: str, *command: str, **variables: str) -> subprocess.Popen[str]:
    """Python with these arguments, on one of the hosts."""
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: network.enter(cable.names[end]),
    )


def results_of(processes: list[subprocess.Popen[str]]) -> list[str]:
    """The output of each process; the test fails if a process fails."""
    said = outputs(processes, 240)
    for process, (_, err) in zip(processes, said, strict=True):
        assert process.returncode == 0, err
    return [out for out, _ in said]


def test_a_model_trains_under_an_agent_on_each_host(cable: network.Cable, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    agents = [
        start(
            cable,
            end,
            *("-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d"),
            *(f"--rdzv-endpoint={cable.addresses['near']}:29400", f"--local-addr={cable.addresses[end]}"),
            *(
                f"--rdzv-conf=is_host={int(end == 'near')}",
                "-m",
                "tests.integration.hosts.train",
                str(tmp_path),
            ),
            ADAPS_SECRET_FILE=str(secret),
        )
        for end in ENDS
    ]
    results_of(agents)
    found = [json.loads((tmp_path / f"result-{rank}.json").read_text()) for rank in range(2)]
    for one in found:
        assert one["outputs"] == pytest.approx(found[0]["outputs"], abs=1e-6)
        assert one["losses"][-1] < one["losses"][0]
        assert one["sent"] > 0
    logs = "".join((tmp_path / f"log-{rank}").read_text() for rank in range(2))
    for address in cable.addresses.values():
        assert logs.count(f"this node listens at {address}, the interface by which MASTER_ADDR=") == 1


@pytest.fixture(scope="module")
def outcomes(cable: network.Cable) -> dict[str, list[dict[str, Any]]]:
    """Outcomes of each rank without agents, by the name of its environment."""
    given: dict[str, dict[str, str]] = {
        "right": {"ADAPS_SECRET": SECRET},
        "no secret": {},
        "loopback": {"ADAPS_SECRET": SECRET, "ADAPS_LISTEN": "127.0.0.1"},
        "another secret": {"ADAPS_SECRET": SECRET, "SECONDS": "15"},
    }
    if Path("/proc/net/if_inet6").exists():
        given["IPv6"] = {"ADAPS_SECRET": SECRET, "MASTER_ADDR": cable.add_ipv6()["near"]}
    processes = []
    for rank, end in enumerate(ENDS):
        environments = [
            {"MASTER_ADDR": cable.addresses["near"], "MASTER_PORT": str(29500 + number), **one}
            for number, one in enumerate(given.values())
        ]
        if rank == 1:
            environments[list(given).index("another secret")]["ADAPS_SECRET"] = SECRET[::-1]
        processes.append(
            start(
                cable,
                end,
                *("-m", "tests.integration.hosts.rendezvous", json.dumps(environments)),
                RANK=str(rank),
                WORLD_SIZE="2",
            )
        )
    said = [json.loads(out) for out in results_of(processes)]
    return {name: [ranks[number] for ranks in said] for number, name in enumerate(given)}


@pytest.mark.parametrize("name", ["right", "IPv6"])
def test_nodes_meet_at_the_masters_own_address_and_its_store_is_nowhere_else(
    outcomes: Any, name: str
) -> None:
    if name not in outcomes:
        pytest.skip("this kernel has no IPv6")
    assert outcomes[name] == [{"sums": [3.0], "open": False}] * 2


@pytest.mark.parametrize(
    ("name", "sentence", "remedies"),
    [
        (
            "no secret",
            "rank 1 of 2 nodes is on another host than rank 0",
            ["head -c 32 /dev/urandom | base64", "ADAPS_SECRET_FILE"],
        ),
        (
            "loopback",
            "rank 0 listens at 127.0.0.1, which nodes on other hosts cannot reach",
            ["ADAPS_LISTEN"],
        ),
    ],
)
def test_a_mistake_is_refused_everywhere_with_a_remedy(
    outcomes: Any, name: str, sentence: str, remedies: list[str]
) -> None:
    for one in outcomes[name]:
        assert one["refused"].startswith(sentence)
        assert all(remedy in one["refused"] for remedy in remedies)
        assert one["seconds"] < 100  # not at the end of the connect_timeout


def test_another_secret_is_no_secret(outcomes: Any) -> None:
    refused = [one["refused"] for one in outcomes["another secret"]]
    assert any("as it does for another secret" in one for one in refused), refused
