"""Nodes in network namespaces: properties of their links, isolation, and runs between them."""

import ctypes
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from adabench.harness.launch.fork_server import ForkServer
from adabench.harness.launch.local import launch_unrecorded
from adabench.harness.machine import namespaces
from adabench.harness.machine.link_probe import probe_link
from adabench.harness.machine.namespaces import NamespacesUnavailable, NodeLinks, address, enter
from adabench.harness.run.spec import RunSpec
from adabench.results.record import Run
from adabench.results.run_settings import RunSettings
from adabench.results.store import list_sessions
from tests.integration.conftest import Adabench

PR_CAPBSET_DROP, CAP_SYS_ADMIN = 24, 21


@pytest.fixture
def allowed() -> None:
    """Skips the test where namespaces cannot be made."""
    try:
        with NodeLinks("loopback", 2):
            pass
    except NamespacesUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def three(allowed: None) -> Iterator[list[str]]:
    with NodeLinks("2ms,100mbit", 3) as links:
        yield links.namespaces
        assert links.failure is None


def listening(namespace: str, node: int, port: int) -> socket.socket:
    enter(namespace)
    return socket.create_server((address(node), port))


def connected(namespace: str, to: int, port: int) -> socket.socket:
    enter(namespace)
    return socket.create_connection((address(to), port), timeout=10)


def test_links_have_the_latency_and_the_rate_that_were_asked_for(three: list[str]) -> None:
    probe = probe_link(three)
    print(probe)
    # Other work on the machine makes links slower, nothing makes them faster.
    assert probe.round_trip_ms >= 4.0
    assert 0.0 < probe.gbit_per_second <= 0.105


def test_every_node_reaches_every_other_and_nothing_else(three: list[str]) -> None:
    with ThreadPoolExecutor(1) as elsewhere, socket.create_server(("127.0.0.1", 0)) as outside:
        for here, there in [(0, 2), (2, 1), (1, 0)]:
            with (
                elsewhere.submit(listening, three[there], there, 6000).result() as server,
                elsewhere.submit(connected, three[here], there, 6000).result() as near,
            ):
                far, (peer, _) = server.accept()
                with far, far.makefile("rb") as received:
                    near.sendall(bytes(200_000))
                    near.shutdown(socket.SHUT_WR)
                    assert len(received.read()) == 200_000
                assert peer == address(here)
        with pytest.raises(ConnectionRefusedError):
            # The namespace has its own loopback device, on which nothing listens.
            elsewhere.submit(socket.create_connection, outside.getsockname()).result()


def test_namespaces_end_with_the_process_that_made_them(allowed: None) -> None:
    code = (
        "import sys; from adabench.harness.machine.namespaces import NodeLinks\n"
        "links = NodeLinks('lan', 2); print(links._relay.pid, flush=True); sys.stdin.read()"
    )
    maker = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert maker.stdout is not None
    relay = psutil.Process(int(maker.stdout.readline()))
    maker.kill()
    maker.wait()
    psutil.wait_procs([relay], timeout=10)
    assert not relay.is_running() or relay.status() == psutil.STATUS_ZOMBIE
    maker.communicate()


def test_a_relay_that_dies_is_named(allowed: None) -> None:
    with NodeLinks("lan", 2) as links:
        links._relay.kill()
        links._relay.wait()
        assert links.failure == "the relay between the namespaces ended with exit code -9: no message"


def test_without_root_the_relay_says_what_it_was_not_allowed() -> None:
    libc = ctypes.CDLL(None)
    said = subprocess.run(
        [namespaces._RELAY, "2", "lan"],
        # Drops the capability by which root may change namespaces; other users do not have it.
        preexec_fn=lambda: libc.prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN) if os.geteuid() == 0 else None,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr == "a network namespace: Operation not permitted\n"


def test_wrong_arguments_of_the_relay_are_named() -> None:
    for arguments, message in [
        (("0", "lan"), '"0" is not a number of nodes'),
        (("2", "wan"), '"wan" is not a link'),
        (("2", "lan:0-2/10"), '"lan:0-2/10" does not name a link of 2 nodes. For example: lan:0-1/10'),
        (("2", "lan:0-1/10x"), '"lan:0-1/10x" does not name a link'),
        (("2", "lan:0-1/nan"), '"lan:0-1/nan" does not name a link'),
    ]:
        said = subprocess.run(
            [namespaces._RELAY, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert said.returncode == 2
        assert said.stderr.startswith(message)


def test_a_run_that_may_not_have_namespaces_is_skipped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(namespaces, "_RELAY", tmp_path / "missing")
    with pytest.raises(NamespacesUnavailable, match=r"missing, cannot be started: No such file"):
        NodeLinks("lan", 2)
    settings = RunSettings(nodes=2, workers=1, network="namespaces:lan").settings()
    spec = RunSpec(usecase="ctr", params={}, backend="rpc", options={}, **settings)
    with ForkServer() as server:
        outcome = launch_unrecorded(server, spec, 60)
    assert outcome.status == "skipped"
    assert outcome.reason is not None
    assert outcome.reason.startswith("the relay between network namespaces, ")
    refused = tmp_path / "refused"
    refused.write_text("#!/bin/sh\necho 'a network namespace: Operation not permitted' >&2; exit 1\n")
    refused.chmod(0o755)
    monkeypatch.setattr(namespaces, "_RELAY", refused)
    with pytest.raises(NamespacesUnavailable, match=r"need root and TUN devices: a network namespace: Oper"):
        NodeLinks("lan", 2)


def trained(adabench: Adabench, folder: Path, *, backends: str, nodes: int, link: str) -> list[Run]:
    done = adabench(
        *("run", "-u", "ctr[rows=3000,epochs=1,batch=256]", "-b", backends, "--nodes", f"{nodes}"),
        *("--network", f"namespaces:{link}", "-r", "1", "--results", "kept"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (store,) = list_sessions(folder / "kept")
    return store.runs()


def test_systems_with_sockets_of_their_own_train_between_namespaces(
    allowed: None, adabench: Adabench, tmp_path: Path
) -> None:
    runs = trained(adabench, tmp_path, backends="rpc,autoada-automatic", nodes=2, link="1ms,1gbit")
    for run in runs:
        assert (run.status, run.network) == ("ok", "namespaces:1ms,1gbit")
        assert run.link is not None
        assert run.link.round_trip_ms >= 2.0
        assert run.link.relay_cpu_seconds > 0.0
    ours = next(run for run in runs if run.backend == "autoada-automatic")
    assert ours.counters["bytes_sent"] > 0


def test_a_link_may_be_slower_than_the_others(allowed: None) -> None:
    with NodeLinks("1ms,100mbit:1-2/10", 3) as links:
        usual, slow = (probe_link(links.namespaces, *pair) for pair in ((0, 1), (2, 1)))
    assert usual.round_trip_ms >= 2.0
    assert slow.round_trip_ms >= 20.0
    assert 0.0 < slow.gbit_per_second <= 0.0105


def test_training_goes_on_beside_a_slow_link_and_the_record_tells_which_nodes_have_it(
    allowed: None, adabench: Adabench, tmp_path: Path
) -> None:
    link = "10ms,100mbit:1-2/10"
    for run in trained(adabench, tmp_path, backends="autoada-automatic", nodes=3, link=link):
        assert run.status == "ok"
        both = [run.waiting[name] for name in ("blocked_micros", "sync_micros")]
        waited = [sum(times) for times in zip(*both, strict=True)]
        assert min(waited[1:]) > waited[0], run.waiting
        assert sum(run.waiting["sync_micros"]) == pytest.approx(run.counters["sync_micros"])


def test_a_pinned_rank_has_one_core_for_all_its_threads() -> None:
    cores = sorted(os.sched_getaffinity(0))
    rank = len(cores) - 1
    code = (
        "import os, json, threading; from adabench.harness.run.rank import take_place\n"
        "from adabench.harness.run.spec import RunSpec\n"
        "settings = {'nodes': 2, 'workers': 1, 'network': 'loopback', 'pinned': True}\n"
        "spec = RunSpec(usecase='u', params={}, backend='b', options={}, **settings)\n"
        f"take_place(spec, {rank}); found = []\n"
        "thread = threading.Thread(target=lambda: found.extend(os.sched_getaffinity(0)))\n"
        "thread.start(); thread.join(); print(json.dumps(found))"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert json.loads(said.stdout) == [cores[rank]]
