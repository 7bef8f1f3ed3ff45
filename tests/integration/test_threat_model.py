"""The lines of docs/concepts/threat-model.md, each shown by the test that carries its name."""

import functools
import json
import os
import pickle
import re
import shutil
import socket
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]

import adaps
import autoada
from adabench.harness.errors import UsageError
from adabench.harness.plugins import registry
from adabench.harness.study import study
from adaps import rendezvous
from adaps.rendezvous.job_secret import Handover, secret_in_environment, take_secret
from tests.conftest import free_port
from tests.processes import text_of_fork

from .threats.pair import ROWS, Between, pair, port_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "concepts" / "threat-model.md"
LATE = 60.0
NOBODY = 65534
SHOWN: Counter[str] = Counter()

Test = Callable[..., None]


def shows(*lines: str) -> Callable[[Test], Test]:
    """Mark the test of these lines of the page."""
    SHOWN.update(lines)
    return lambda test: test


def test_page_and_tests_have_the_same_lines() -> None:
    lines = Counter(re.findall(r"^\| `([a-z-]+)` \| (?:can|cannot) \|", PAGE.read_text(), re.MULTILINE))
    assert lines == SHOWN
    assert set(lines.values()) == {1}


@pytest.fixture
def between() -> Iterator[Between]:
    somebody = Between()
    yield somebody
    somebody.close()


def rows_of(node: Any) -> Any:
    out = np.empty((ROWS, 4), np.float32)
    node.worker(0).pull(np.arange(ROWS), out)
    return out


def push(node: Any, value: float) -> None:
    node.worker(0).push(np.arange(ROWS), np.full((ROWS, 4), value, np.float32))


def meet(store: Any, rank: int, seconds: float = LATE) -> Any:
    return rendezvous.Rendezvous(store, rank, 2, "job").meet(str(rank), time.monotonic() + seconds)


# A stranger on the network


@shows("stranger-joins")
def test_a_stranger_does_not_join() -> None:
    with (
        pytest.raises(adaps.AdapsError, match="no connection within"),
        pair(secrets=("the job's own secret", "a stranger's guess"), seconds=2.0),
    ):
        pass


class Watched(HashStore):
    """A store whose content anybody can read."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def set(self, key: str, value: str) -> None:
        self.told.append(value)
        super().set(key, value)


@shows("stranger-store")
@pytest.mark.parametrize("given", [None, "the user's own secret"])
def test_the_store_tells_no_secret(monkeypatch: pytest.MonkeyPatch, given: str | None) -> None:
    if given is not None:
        monkeypatch.setenv("ADAPS_SECRET", given)
    store = Watched()
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda rank: meet(store, rank), range(2))
    assert first.secret == second.secret
    assert store.told
    for value in store.told:
        assert first.secret not in value
        assert given is None or given not in value


@shows("stranger-loopback")
def test_jobs_of_one_host_are_open_at_loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    store = rendezvous.open_store("127.0.0.1", port, hosts=True, deadline=time.monotonic() + LATE)
    addresses: list[str] = []

    def way(address: str) -> str:
        # 127.0.0.2 belongs to this host, too, as do the addresses of its other interfaces.
        for each in (port, port_of(address)):
            socket.create_connection(("127.0.0.1", each), timeout=LATE).close()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.2", each), timeout=LATE)
        addresses.append(address)
        return address

    with pair(way):
        assert addresses
    store.set("still", "open")


@shows("stranger-garbage")
def test_garbage_at_a_nodes_port_keeps_nobody_out() -> None:
    strangers: list[socket.socket] = []

    def way(address: str) -> str:
        for number in range(150):
            stranger = socket.create_connection(("127.0.0.1", port_of(address)), timeout=LATE)
            if number % 3:
                stranger.sendall(os.urandom(200) if number % 3 == 1 else b"AdaPS\r\n\0" + bytes(64))
            strangers.append(stranger)
        return address

    try:
        with pair(way) as nodes:
            push(nodes[1], 2.0)
            assert (rows_of(nodes[0]) == 2.0).all()
    finally:
        for stranger in strangers:
            stranger.close()


@shows("stranger-flood")
def test_a_flooded_store_is_reached_all_the_same() -> None:
    port, deadline = free_port(), time.monotonic() + LATE
    store = rendezvous.open_store("127.0.0.1", port, hosts=True, deadline=deadline)
    strangers = [socket.create_connection(("127.0.0.1", port), timeout=LATE) for _ in range(300)]
    try:
        for stranger in strangers[::2]:
            stranger.sendall(os.urandom(1000))
        rendezvous.open_store("127.0.0.1", port, hosts=False, deadline=deadline).set("key", "value")
        assert store.get("key") == b"value"
    finally:
        for stranger in strangers:
            stranger.close()
    # If nobody answers at all, the error comes when the time is up.
    with pytest.raises(adaps.RendezvousError, match="no process opened the rendezvous store"):
        rendezvous.open_store("127.0.0.1", free_port(), hosts=False, deadline=time.monotonic())


@shows("stranger-ends")
def test_a_stranger_at_the_store_can_end_a_meeting_but_is_not_met() -> None:
    store = HashStore()
    with ThreadPoolExecutor(1) as threads:
        leader = threads.submit(meet, store, 0)
        assert rendezvous.wait_for(store, ["job/of 2/1/member/0"], time.monotonic() + LATE)
        store.add("job/of 2/generation", 1)
        with pytest.raises(adaps.RendezvousError, match="another process has come as rank 0"):
            leader.result()
    store = HashStore()
    store.add("job/of 2/generation", 1)
    store.set("job/of 2/1/member/1", "nobody's")
    with ThreadPoolExecutor(1) as threads:
        leader = threads.submit(meet, store, 0)
        assert rendezvous.wait_for(store, ["job/of 2/2/member/0"], time.monotonic() + LATE)
        store.set("job/of 2/2/member/1", "nobody's")
        with pytest.raises(adaps.RendezvousError, match="as rank 1"):
            leader.result()


# Another user of a host


def as_nobody(call: Callable[[], str]) -> str:
    """The result in a process of another user; the test is skipped without root."""

    def be_nobody() -> str:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        return call()

    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    return text_of_fork(be_nobody)


@shows("user-asks")
def test_another_user_is_not_given_the_secret() -> None:
    def ask() -> str:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(LATE)
            asking.connect("\0" + handover.name)
            return f"answer: {asking.recv(1000)!r}"

    with Handover() as handover, ThreadPoolExecutor(1) as threads:
        found = threads.submit(as_nobody, ask)
        while not found.done():
            handover.serve()
            time.sleep(0.01)
        assert found.result() == "answer: b''"


@shows("user-offers")
def test_another_users_secret_is_not_taken() -> None:
    def take() -> str:
        return take_secret(handover.name, time.monotonic() + LATE)

    # Seen from the other side: to them, we are the other user.
    with Handover() as handover:
        assert "Error: user 0 offers this job's secret, not 65534" in as_nobody(take)


@shows("user-file")
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o610, 0o666])
def test_a_secret_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "secret"
    file.write_text("the user's own secret")
    file.chmod(mode)
    with pytest.raises(adaps.RendezvousError, match=rf"has mode {mode:o} and .* chmod 600 {file}$"):
        secret_in_environment({"ADAPS_SECRET_FILE": str(file)})


@shows("user-checkpoint")
def test_a_checkpoints_files_are_readable_as_the_umask_says(saved: Path) -> None:
    found = {path.stat().st_mode & 0o777 for path in files_of(saved)}
    umask = os.umask(0o77)
    os.umask(umask)
    assert found == {0o644 & ~umask}


# Another job of the same user


@shows("job-mistake")
def test_the_same_secret_makes_another_key_for_every_meeting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAPS_SECRET", "the user's own secret")
    keys = set()
    for store in (HashStore(), HashStore()):
        with ThreadPoolExecutor(2) as threads:
            first, second = threads.map(functools.partial(meet, store), range(2))
        assert first.secret == second.secret
        keys.add(first.secret)
    assert len(keys) == 2


@shows("job-user")
def test_a_process_of_the_same_user_is_given_the_secret() -> None:
    with Handover() as handover, ThreadPoolExecutor(1) as threads:
        taken = threads.submit(take_secret, handover.name, time.monotonic() + LATE)
        while not taken.done():
            handover.serve()
            time.sleep(0.01)
        assert taken.result() == handover.secret
        assert handover.secret not in handover.name


# A node gone wrong


@shows("node-rows")
def test_every_node_can_change_every_row() -> None:
    with pair() as nodes:
        push(nodes[1], 3.0)
        assert (rows_of(nodes[0]) == 3.0).all()


@shows("node-frames")
@pytest.mark.parametrize("frame", [b"\xfe\xff\xff\x7f" + bytes(4), bytes(4) + b"\xff" * 4, os.urandom(4096)])
def test_frames_that_make_no_sense_end_the_connection(between: Between, frame: bytes) -> None:
    with pair(between.lead_to) as nodes:
        push(nodes[1], 1.0)
        between.change = lambda sent: frame
        lost(nodes[0], nodes[1])


@shows("node-silent")
def test_a_silent_node_is_lost(between: Between) -> None:
    with pair(between.lead_to, peer_timeout=1.0) as nodes:
        push(nodes[1], 1.0)
        between.change = lambda sent: b""
        lost(nodes[0], None)


def lost(node: Any, other: Any) -> None:
    """Node 0 loses node 1 in a call that waits for it, while node 1 has something to send."""
    with ThreadPoolExecutor(1) as threads:
        if other is not None:
            speaking = threads.submit(push, other, 1.0)
        with pytest.raises(adaps.PeerLost) as error:
            node.worker(0).barrier()
        assert error.value.rank == 1
        if other is not None:
            assert isinstance(speaking.exception(), adaps.PeerLost | None)


# An attacker who reads or changes packets

KNOWN, OTHER = 1234.5, 4321.5


@shows("packets-read")
def test_rows_can_be_read_on_the_way(between: Between) -> None:
    with pair(between.lead_to) as nodes:
        push(nodes[1], KNOWN)
        assert struct.pack("<4f", *[KNOWN] * 4) in between.seen


@shows("packets-change")
def test_a_changed_frame_goes_unnoticed(between: Between) -> None:
    with pair(between.lead_to) as nodes:
        between.change = lambda sent: sent.replace(struct.pack("<f", KNOWN), struct.pack("<f", OTHER))
        push(nodes[1], KNOWN)
        assert OTHER in rows_of(nodes[0])


@shows("packets-mac")
def test_a_changed_frame_with_a_mac_ends_the_connection(between: Between) -> None:
    with pair(between.lead_to, frame_mac=True) as nodes:
        push(nodes[1], 1.0)
        between.change = lambda sent: sent.replace(struct.pack("<f", KNOWN), struct.pack("<f", OTHER))
        with ThreadPoolExecutor(1) as threads:
            speaking = threads.submit(push, nodes[1], KNOWN)
            with pytest.raises(adaps.PeerLost):
                nodes[0].worker(0).barrier()
            assert isinstance(speaking.exception(), adaps.PeerLost)


@shows("packets-replay")
def test_a_recorded_handshake_is_worthless(between: Between) -> None:
    with pair(between.lead_to):
        pass
    recorded = bytes(between.seen)
    assert recorded.startswith(b"AdaPS")
    refused = threading.Event()

    def way(address: str) -> str:
        def replay() -> None:
            with socket.create_connection(("127.0.0.1", port_of(address)), timeout=LATE) as again:
                again.sendall(recorded)
                answer = b""
                while piece := again.recv(1000):
                    answer += piece
            # It sends a greeting, as it does to everybody, but no proof: it does not take us for a node.
            if 0 < len(answer) <= len(recorded) - 32:
                refused.set()

        threading.Thread(target=replay, daemon=True).start()
        assert refused.wait(LATE)
        return address

    with pair(way) as nodes:
        push(nodes[1], 1.0)
        assert (rows_of(nodes[0]) == 1.0).all()


@shows("packets-cut")
def test_a_gap_ends_the_connection(between: Between) -> None:
    with pair(between.lead_to, peer_timeout=2.0) as nodes:
        push(nodes[1], 1.0)
        pieces = iter([b""])
        between.change = lambda sent: next(pieces, sent)
        lost(nodes[0], nodes[1])


# An attacker who writes to the checkpoint directory


def write(directory: Path, value: float) -> Path:
    with adaps.Node([adaps.Table("emb", ROWS, 4)]) as node:
        push(node, value)
        node.checkpoint(directory)
    return directory


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return write(tmp_path / "saved", 1.0)


def files_of(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def restore(directory: Path) -> Any:
    with adaps.Node([adaps.Table("emb", ROWS, 4)]) as node:
        push(node, 9.0)
        try:
            node.restore(directory)
        except adaps.CheckpointError:
            assert (rows_of(node) == 9.0).all()
            raise
        return rows_of(node)


@shows("checkpoint-damage")
def test_a_damaged_checkpoint_is_refused(saved: Path) -> None:
    for file in saved.rglob("*.safetensors"):
        content = bytearray(file.read_bytes())
        content[-3] ^= 1
        file.write_bytes(content)
    with pytest.raises(adaps.CheckpointError, match="checksum"):
        restore(saved)


@shows("checkpoint-forge")
def test_another_whole_checkpoint_is_restored(saved: Path, tmp_path: Path) -> None:
    forged = write(tmp_path / "forged", 7.0)
    shutil.rmtree(saved)
    forged.rename(saved)
    assert (restore(saved) == 7.0).all()


class Trap:
    """An object that creates a folder when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, (str(TRAP),)


TRAP = Path(tempfile.gettempdir()) / f"adaps-threat-{os.getpid()}"


@shows("checkpoint-code")
def test_nothing_of_a_checkpoint_is_executed(saved: Path) -> None:
    for file in files_of(saved):
        content = pickle.dumps(Trap())
        file.write_bytes(content + bytes(max(0, file.stat().st_size - len(content))))
    with pytest.raises(adaps.CheckpointError):
        restore(saved)
    assert not TRAP.exists()


# An attacker who provides data or a study file


@shows("data-keys")
@pytest.mark.parametrize("key", [-1, ROWS, 2**62])
def test_keys_beyond_the_tables_are_refused(key: int) -> None:
    with adaps.Node([adaps.Table("emb", ROWS, 4)]) as node:
        kv = node.worker(0)
        with pytest.raises(IndexError):
            kv.push(np.array([0, key]), np.ones((2, 4), np.float32))
        with pytest.raises(IndexError):
            kv.pull(np.array([key]), np.empty((1, 4), np.float32))
        assert (rows_of(node) == 0.0).all()


class Spelled:
    """A key of a batch that is written as a call."""

    def __repr__(self) -> str:
        return f"__import__('os').mkdir({str(TRAP)!r})"


@shows("data-code")
def test_keys_of_a_batch_are_no_code() -> None:
    key = Spelled()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(ROWS, 4)

        def forward(self, batch: Any) -> Any:
            return self.table(batch[key]).sum()

    model = autoada.AdaModel(Model())
    for batch in autoada.AdaDataLoader([{key: torch.arange(8), repr(key): torch.arange(2)}] * 6):
        model(batch).backward()
    model.close()
    assert not TRAP.exists()


@shows("study-file")
def test_a_study_file_names_what_is_installed_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    for name in (f"__import__('os').mkdir({str(TRAP)!r})", "os.system", "../../elsewhere"):
        file.write_text(f"backends = [{json.dumps(name)}]\nusecases = ['ctr']\n")
        with pytest.raises(UsageError):
            load_backends(file)
    assert not TRAP.exists()
    assert "os.system" not in sys.modules


def load_backends(file: Path) -> None:
    for selection in study.load_study(file, "study", {}).backends:
        registry.load_backend(selection.name)
