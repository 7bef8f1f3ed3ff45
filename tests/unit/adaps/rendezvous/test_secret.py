"""Where the job's secret comes from, and who may have it."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import adaps
from adaps.rendezvous import job_secret
from adaps.rendezvous.job_secret import Handover, secret_in_environment, take_secret

GOOD = "lMe6iY1fC9Q0Vd3n"


def test_without_variables_there_is_none() -> None:
    assert secret_in_environment({}) is None


def test_a_variable_or_a_file_gives_it_without_the_space_around(tmp_path: Path) -> None:
    assert secret_in_environment({"ADAPS_SECRET": f" {GOOD}\n"}) == GOOD
    path = tmp_path / "secret"
    path.write_text(f"{GOOD}\n")
    path.chmod(0o600)
    assert secret_in_environment({"ADAPS_SECRET_FILE": str(path)}) == GOOD
    path.chmod(0o400)
    assert secret_in_environment({"ADAPS_SECRET_FILE": str(path)}) == GOOD


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    path.write_text(GOOD)
    path.chmod(0o600)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(
        adaps.RendezvousError, match=rf"belongs to user {os.getuid()}; it must be this user's"
    ):
        secret_in_environment({"ADAPS_SECRET_FILE": str(path)})


def test_what_is_no_secret_is_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch(0o600)
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff" * 32)
    binary.chmod(0o600)
    for environment, message in [
        ({"ADAPS_SECRET": "short"}, "ADAPS_SECRET holds 5 characters; a secret has 16 to 4096"),
        ({"ADAPS_SECRET": "x" * 5000}, "ADAPS_SECRET holds 5000 characters"),
        ({"ADAPS_SECRET": ""}, "ADAPS_SECRET holds 0 characters"),
        ({"ADAPS_SECRET": GOOD, "ADAPS_SECRET_FILE": str(empty)}, "are both set"),
        ({"ADAPS_SECRET_FILE": str(empty)}, "of ADAPS_SECRET_FILE holds 0 characters"),
        ({"ADAPS_SECRET_FILE": str(binary)}, "holds no text"),
        ({"ADAPS_SECRET_FILE": str(tmp_path / "none")}, "cannot be read: No such file"),
        ({"ADAPS_SECRET_FILE": str(tmp_path)}, "(cannot be read|has mode)"),
    ]:
        with pytest.raises(adaps.RendezvousError, match=message):
            secret_in_environment(environment)


@pytest.fixture
def served() -> Iterator[Handover]:
    ended = threading.Event()
    with Handover() as handover, ThreadPoolExecutor(1) as threads:

        def serve() -> None:
            while not ended.wait(0.01):
                handover.serve()

        serving = threads.submit(serve)
        yield handover
        ended.set()
        serving.result()


def test_others_are_given_nothing(served: Handover, monkeypatch: pytest.MonkeyPatch) -> None:
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect("\0" + served.name)
        assert asking.recv(100) == b""
    with pytest.raises(adaps.RendezvousError, match=f"^user {user} offers this job's secret, not {user + 1}"):
        take_secret(served.name, time.monotonic() + 60)


def test_those_who_only_connect_keep_nobody_from_it(served: Handover) -> None:
    strangers = [socket.socket(socket.AF_UNIX) for _ in range(200)]
    try:
        for stranger in strangers:
            stranger.connect("\0" + served.name)
        assert take_secret(served.name, time.monotonic() + 60) == served.secret
    finally:
        for stranger in strangers:
            stranger.close()


def test_names_of_other_sockets_are_not_asked() -> None:
    """An attacker with write access to the store could name the socket of a program with a known greeting."""
    with pytest.raises(adaps.RendezvousError, match="'greeter' as the socket for the job's secret"):
        take_secret("greeter", time.monotonic() + 60)
    gone = Handover()
    with gone:
        pass
    with pytest.raises(adaps.RendezvousError, match="may have ended: Connection refused"):
        take_secret(gone.name, time.monotonic() + 60)


def test_an_answer_that_is_no_secret_is_refused() -> None:
    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor(1) as threads:
        listener.bind(f"\0{job_secret._PREFIX}test-{os.getpid()}")
        listener.listen()

        def greet() -> None:
            asking, _ = listener.accept()
            with asking:
                asking.sendall(b"220 ready\n")

        greeting = threads.submit(greet)
        with pytest.raises(adaps.RendezvousError, match="rank 0 did not hand over the job's secret"):
            take_secret(f"{job_secret._PREFIX}test-{os.getpid()}", time.monotonic() + 60)
        greeting.result()
