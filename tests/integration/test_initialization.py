"""Several nodes try initial weights together: one candidate wins, and the loss of a node is reported."""

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., list[subprocess.CompletedProcess[str]]]

PROGRAM = """
import hashlib, json, os, signal, sys
import torch
from torch import nn
import adaps, autoada as aa

rank, (seed, dies) = int(os.environ.get("RANK", "0")), map(int, sys.argv[1:])
steps = 0

class Net(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.rows = nn.Embedding(30, 70, sparse=True)
        self.head = nn.Linear(70, 1, dtype=torch.float64)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
    def forward(self, ids):
        self.seen += 1
        return self.head(nn.functional.dropout(self.rows(ids).mean(1).double(), 0.1, self.training))

def loss(model, ids):
    global steps
    steps += 1
    if dies == rank and steps == 9:
        os.kill(os.getpid(), signal.SIGKILL)
    return (model(ids) - ids.double().mean(1, keepdim=True) / 30).square().mean()

generator = torch.Generator().manual_seed(rank)
batches = [torch.randint(30, (16, 4), generator=generator) for _ in range(5)]
try:
    found = aa.select_initialization(
        Net, lambda model: torch.optim.SGD(model.parameters(), lr=0.05), loss, batches,
        candidates=5, rungs=2, steps=3, seed=seed,
    )
except adaps.PeerLost as lost:
    print("PeerLost", lost)
    sys.exit(3)
digest = hashlib.sha256()
for name, value in found.model.state_dict().items():
    digest.update(value.numpy().tobytes())
wrapped = aa.AdaModel(found.model, torch.optim.SGD(found.model.parameters(), lr=0.05))
wrapped(batches[0]).sum().backward()
wrapped.close()
print(json.dumps([found.seed, digest.hexdigest(), found.rungs, found.steps, steps]))
"""


def said(run_ranks: Run, ranks: int, seed: int) -> list[Any]:
    done = run_ranks(PROGRAM, ranks, str(seed), "-1")
    assert [each.returncode for each in done] == [0] * ranks, done
    return [json.loads(each.stdout) for each in done]


def test_all_nodes_get_the_same_winner_and_equal_seeds_the_same_one(run_ranks: Run) -> None:
    first, other, again = said(run_ranks, 2, 1), said(run_ranks, 2, 20), said(run_ranks, 2, 1)
    assert first == again
    for one, two in (first, other):
        assert one[:4] == two[:4]
        assert one[3] == 5 * 3 + 3 * 6 == one[4] + two[4]
        assert one[4] > 0 < two[4]
    assert first[0][1] != other[0][1]
    assert 1 <= first[0][0] < 6
    assert 20 <= other[0][0] < 25


def test_one_node_is_enough_and_more_nodes_than_candidates_are_none_too_many(run_ranks: Run) -> None:
    (alone,) = said(run_ranks, 1, 1)
    assert alone[3] == alone[4]
    six = said(run_ranks, 6, 1)
    assert len({each[1] for each in six}) == 1
    assert six[5][4] == 0


@pytest.mark.parametrize("dies", [0, 1])
def test_the_loss_of_a_node_in_the_middle_is_told(run_ranks: Run, dies: int) -> None:
    done = run_ranks(PROGRAM, 2, "1", str(dies))
    assert done[dies].returncode == -9
    assert done[1 - dies].returncode == 3, done
    assert done[1 - dies].stdout.startswith("PeerLost")
    assert f"rank {dies}" in done[1 - dies].stdout
