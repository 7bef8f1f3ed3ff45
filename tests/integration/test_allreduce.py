"""Dense gradients that nodes average among themselves, in steps of all kinds."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.conftest import Launch

from .autoada_ranks.allreduced import MORE, STEPS, backward, branches, optimizers_of, trained
from .autoada_ranks.task import as_lists

SMALL = 64
"""Bytes of a bucket, small enough for several buckets."""
WHOLE = 1 << 20


@pytest.mark.parametrize(
    ("buckets", "own_group", "checkpoint"), [(SMALL, False, True), (SMALL, True, False), (WHOLE, True, True)]
)
def test_irregular_steps_are_those_of_one_process(
    launch: Launch, tmp_path: Path, buckets: int, own_group: bool, checkpoint: bool
) -> None:
    folder = str(tmp_path / "checkpoint") if checkpoint else ""
    results = launch(trained, 2, buckets=[buckets, buckets], own_group=own_group, checkpoint=folder)
    losses, state, last = one_process()
    for rank, result in enumerate(results):
        assert result["losses"] == pytest.approx(losses[rank], abs=1e-5), rank
        assert set(result["state"]) == set(state)
        for name, values in state.items():
            assert result["state"][name] == pytest.approx(values, abs=1e-5), name
    for name, values in results[1]["last"].items():
        assert values == pytest.approx(last[name], abs=1e-5), name
    for result in results:
        # Some buckets are on their way before the first step; none any more once gradients were clipped.
        assert (result["early"][0] > 0) == (buckets == SMALL), result["early"]
        assert result["early"][5] == 0 or buckets == WHOLE, result["early"]


def one_process() -> tuple[list[list[float]], dict[str, list[float]], dict[str, list[float]]]:
    model = branches(seed=0)
    optimizers = optimizers_of(model)
    losses: list[list[float]] = [[], []]
    state: dict[str, list[float]] = {}
    for step in range(STEPS + MORE):
        if step == STEPS:
            state = as_lists({name: value.clone() for name, value in model.state_dict().items()})
        sums: dict[str, torch.Tensor] = {}
        for rank in (0, 1) if step < STEPS else (1,):
            model.zero_grad()
            losses[rank].append(backward(model, model, step, rank))
            for name, parameter in model.named_parameters():
                if parameter.grad is not None:
                    sums[name] = sums.get(name, torch.zeros(())) + parameter.grad
        for name, parameter in model.named_parameters():
            parameter.grad = sums[name] / 2 if name in sums else None
        for optimizer in optimizers:
            optimizer.step()
    return losses, state, as_lists(model.state_dict())


# The tables' own steps are left out, so that nothing but gradients of the other node is waited for.
LOST = """
import os, signal, sys
sys.path.insert(0, sys.argv[2])
from dataclasses import replace
from pathlib import Path
import torch
import adaps, autoada
from adaps.policy import Synchronization
from autoada.parameters import dense_allreduce
from tests.integration.autoada_ranks.allreduced import backward, branches, optimizers_of, policy

rank, how = int(os.environ["RANK"]), sys.argv[1]
dense_allreduce.FIRST_BUCKET = dense_allreduce.BUCKET = 64
model = branches(0)
optimizers = optimizers_of(model)
policy = replace(policy(), synchronization=Synchronization(0))
node = autoada.create_node(model, optimizers, policy=policy, peer_timeout=1.0)
if rank == 1:
    Path("pid").write_text(str(os.getpid()))
wrapped = autoada.AdaModel(model, optimizers, node=node)
try:
    for step in range(1000):
        backward(wrapped, model, 0, rank)
        if rank == 1 and step == 3:
            if how == "left":
                optimizers[1].step()
                optimizers[2].step()
                sys.exit(0)
            if how == "failed":
                raise ArithmeticError("a mistake in the loop")
            os.kill(os.getpid(), signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        optimizers[1].step()
        optimizers[2].step()
except adaps.AdapsError as error:
    sys.stdout.write(f"{type(error).__name__}: {error}\\n")
    if how == "stopped":
        os.kill(int(Path("pid").read_text()), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("killed", "PeerLost: "),
        ("stopped", "PeerLost: "),
        ("failed", "PeerLost: "),
        ("left", "AdapsError: gradients were not all-reduced: "),
    ],
)
def test_who_waits_for_gradients_of_a_node_that_is_gone_is_told_and_ends(
    run_ranks: Callable[..., list[subprocess.CompletedProcess[str]]], how: str, said: str
) -> None:
    first, last = run_ranks(LOST, 2, how, str(Path(__file__).parents[2]))
    assert first.stdout.startswith(said), (first, last)
    assert (last.returncode == 0) == (how == "left"), last
