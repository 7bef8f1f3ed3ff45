from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from adabench.backends.interface import Options
from adabench.harness.run import training_loop
from adabench.harness.run.spec import RunSpec
from adabench.harness.study import cell
from adabench.usecases.interface import Params
from tests.records import make_cell


class Reached(Exception):
    """The end of the tested part of the loop is reached."""


def test_options_are_converted_before_there_are_threads(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Threads that convert to a class which msgspec has not met before can die of a segmentation fault.
    where: list[tuple[int, threading.Thread]] = []

    class Kept(Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
        lookahead: int = 1

        def __post_init__(self) -> None:
            where.append((self.lookahead, threading.current_thread()))

    class Backend:
        Options = Kept

    class UseCase:
        Params = Params

        def __init__(self, params: object, data: Path | None, seed: int) -> None:
            pass

        def loaders(self, rank: int, world: int) -> Any:
            assert threading.current_thread() is not threading.main_thread()
            raise Reached

    monkeypatch.setattr(training_loop, "load_backend", lambda name: Backend)
    monkeypatch.setattr(cell, "load_usecase", lambda name: UseCase)
    spec = make_cell(RunSpec, options={"lookahead": 7}, nodes=1, workers=4, folder=str(tmp_path))
    with pytest.raises(Reached):
        training_loop.RankTraining(spec, 0).run()
    assert where == [(7, threading.main_thread())] * 4
