"""Alternation of runs, each simulated by a thread that does the same as a rank's workers."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path

import pytest

from adabench.harness.errors import UsageError
from adabench.harness.run.interleaving import TurnTaker, in_turns

EPOCHS = 3


@dataclass
class MadeUpRun:
    """A run of a function, which is given the run's socket and a question whether to give up."""

    function: Callable[[str, Callable[[], bool]], str]
    workers: int = 1
    ended: list[str] = field(default_factory=list)

    def begin_turn(self) -> None:
        pass

    def execute(self, turn_socket: str, given_up: Callable[[], bool]) -> str:
        return self.function(turn_socket, given_up)

    def record(self, result: str) -> None:
        self.ended.append(result)


def in_threads(work: Callable[[int], None], workers: int) -> None:
    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class MadeUp:
    """Runs that record their actions, with a separate part for each worker."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.ended: list[str] = []

    def run(self, name: str, workers: int = 1, epochs: int = EPOCHS) -> MadeUpRun:
        def execute(address: str, given_up: Callable[[], bool]) -> str:
            def work(worker: int) -> None:
                turn = TurnTaker(address)
                for epoch in range(epochs):
                    turn.wait()
                    self.events.append(f"{name} {epoch}")
                turn.close()

            self.events.append(f"{name} setup")
            in_threads(work, workers)
            self.events.append(f"{name} end")
            return name

        return MadeUpRun(execute, workers, self.ended)


def test_runs_train_an_epoch_each_in_turn() -> None:
    runs = MadeUp()
    in_turns([runs.run("a"), runs.run("b")])
    assert runs.events == [
        *("a setup", "b setup", "a 0", "b 0", "a 1", "b 1", "a 2", "a end", "b 2", "b end")
    ]
    assert runs.ended == ["a", "b"]


def test_a_turn_is_over_when_all_workers_of_the_run_wait() -> None:
    runs = MadeUp()
    in_turns([runs.run("a", workers=3), runs.run("b", workers=2)])
    rounds = [
        ["a 0"] * 3,
        ["b 0"] * 2,
        ["a 1"] * 3,
        ["b 1"] * 2,
        ["a 2"] * 3,
        ["a end"],
        ["b 2"] * 2,
        ["b end"],
    ]
    assert runs.events == ["a setup", "b setup", *(event for own in rounds for event in own)]


def test_turns_of_some_steps_let_workers_wait_for_one_another_at_the_end_of_an_epoch() -> None:
    """The first worker of a run has fewer steps than the second, which waits twice more before the end."""
    events: list[str] = []
    paused: dict[str, float] = {}

    def execute(name: str, address: str, given_up: Callable[[], bool]) -> str:
        together = threading.Barrier(2)

        def work(worker: int) -> None:
            turn = TurnTaker(address, steps=2)
            for epoch in range(2):
                turn.wait()
                for step in range((2, 7)[worker]):
                    turn.step()
                    events.append(f"{name}{worker} {epoch}.{step}")
                turn.at_end()
                together.wait()
                turn.synchronized()
                events.append(f"{name}{worker} evaluates {epoch}")
                together.wait()
            paused[f"{name}{worker}"] = turn.paused_seconds
            turn.close()

        in_threads(work, 2)
        return name

    in_turns([MadeUpRun(partial(execute, name), 2) for name in "ab"])
    turns = [(name, list(group)) for name, group in groupby(events, key=lambda event: event[0])]
    assert [name for name, _ in turns] == list("ab" * 8)
    first, *_, before, last_of_epoch = [sorted(group) for name, group in turns if name == "a"][:4]
    assert first == ["a0 0.0", "a0 0.1", "a1 0.0", "a1 0.1"]
    assert before == ["a1 0.4", "a1 0.5"]
    assert last_of_epoch == ["a0 evaluates 0", "a1 0.6", "a1 evaluates 0"]
    # Ranks that waited at the end of the epoch have learned of the pauses, too.
    assert paused["a0"] == paused["a1"]
    assert paused["b0"] == paused["b1"]


def test_runs_of_different_lengths_end_when_they_are_through() -> None:
    runs = MadeUp()
    in_turns([runs.run("a", epochs=1), runs.run("b", epochs=3), runs.run("c", epochs=0)])
    assert runs.ended == ["c", "a", "b"]
    assert runs.events[-3:] == ["b 1", "b 2", "b end"]


def test_a_run_that_ends_early_leaves_the_turns_to_the_others() -> None:
    runs = MadeUp()

    def dies(address: str, given_up: Callable[[], bool]) -> str:
        turn = TurnTaker(address)
        turn.wait()
        turn.close()
        return "died"

    in_turns([MadeUpRun(dies, 1, runs.ended), runs.run("a")])
    assert runs.ended == ["died", "a"]
    assert runs.events[-1] == "a end"


def test_an_error_gives_up_the_other_runs() -> None:
    stopped = threading.Event()

    def fails(address: str, given_up: Callable[[], bool]) -> str:
        raise OSError("no space left")

    def waits(address: str, given_up: Callable[[], bool]) -> str:
        threading.Thread(target=_wait_in_vain, args=(TurnTaker(address),)).start()
        while not given_up():
            threading.Event().wait(0.001)
        stopped.set()
        return "stopped"

    with pytest.raises(OSError, match="no space left"):
        in_turns([MadeUpRun(waits), MadeUpRun(fails)])
    assert stopped.is_set()


def test_a_temporary_folder_whose_name_is_too_long_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    runs = MadeUp()
    with pytest.raises(UsageError, match=r"has too long a name .* set TMPDIR to one of at most 82 bytes"):
        in_turns([runs.run("a"), runs.run("b")])
    assert runs.events == []
    assert list(folder.iterdir()) == []


def _wait_in_vain(turn: TurnTaker) -> None:
    with pytest.raises(ConnectionError, match="the harness that lets the runs take turns is gone"):
        turn.wait()
    turn.close()


def test_a_run_that_has_the_machine_for_itself_never_waits(tmp_path: Path) -> None:
    turn = TurnTaker(None)
    turn.wait()
    turn.step()
    turn.at_end()
    turn.synchronized()
    turn.close()
    assert turn.paused_seconds == 0
