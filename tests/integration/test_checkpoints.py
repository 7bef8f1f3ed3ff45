"""Checkpoints of clusters: written while keys move, restored with other numbers of nodes.

They and exports are whole after kills.
"""

import json
import os
import re
from pathlib import Path
from types import ModuleType

import pytest

from adabench.harness.launch.fork_server import ForkServer
from adaps.policy import Home, MadeFor, Policy, RowSelection, Rule
from tests.checkpoint_files import content, manifest
from tests.conftest import Launch, Python, free_port, reports_of_ranks

from .checkpoints import at_once, evicted, kills, moving, restarts, stopped
from .exports import kills as export_kills

TOLD_BY_TORCH = re.compile(r"\[W.*TCPStore|Exception raised from \w{4}Bytes|frame #|<omitting python|$")
"""Messages of PyTorch when rank 0 dies, and its store too, during another node's request."""
TURNS = 12
SAME_LOSS = 0.03
"""The nodes' updates have no fixed order, so runs of one seed differ: by up to 0.010 on a quiet machine, and
by 0.021 on one with ten times as many processes as cores."""


@pytest.mark.parametrize("technique", ["relocation", "full_replication"])
def test_every_push_is_in_the_files_once_while_keys_move(
    launch: Launch, tmp_path: Path, technique: str
) -> None:
    given = {"directory": str(tmp_path / "saved"), "techniques": technique}
    ranks = launch(moving.main, 2, **given, counts=None, turns=TURNS)
    moved = "relocations" if technique == "relocation" else "replicas"
    assert all(rank[moved] > 0 for rank in ranks)


def test_two_nodes_go_on_as_three_and_then_as_one(launch: Launch, tmp_path: Path) -> None:
    directory = tmp_path / "saved"
    counts = None
    for number, nodes in enumerate([2, 3, 1], start=1):
        given = {"directory": str(directory), "techniques": "adaptive"}
        ranks = launch(moving.main, nodes, **given, counts=counts, turns=TURNS)
        counts = ranks[0]["counts"]
        assert manifest(directory)["world_size"] == nodes
        assert manifest(directory)["clocks"] == [[TURNS * number] * 2] * nodes
        assert nodes == 1 or sum(rank["relocations"] + rank["replicas"] for rank in ranks) > 0
    assert counts is not None
    assert sum(counts) == content(directory, "sums").values[:, 0].sum() == TURNS * (2 + 3 + 1) * 2 * 60


def test_a_checkpoint_is_restored_under_policies_of_other_nodes_homes_and_techniques(
    launch: Launch, tmp_path: Path
) -> None:
    directory = tmp_path / "saved"
    counts = None
    lives = [
        (2, Home("blocks"), "relocation", "replication"),
        (3, Home("shares", shares=(0.2, 0.5, 0.3)), "full_replication", "adaptive"),
        (1, Home("node", node=0), "static", "relocation"),
        (2, Home("node", node=1), "static", "full_replication"),
    ]
    hot = RowSelection(ranges=((0, 40), (100, 130)))
    for nodes, home, technique, of_hot in lives:
        rules = [
            Rule("sums", hot, of_hot, Home("node", node=0), wire="bfloat16"),
            Rule("sums", None, technique, home),
            Rule("*", None, "static", Home("node", node=nodes - 1)),
        ]
        given = {
            "directory": str(directory),
            "policy": Policy("life", rules, MadeFor(nodes=nodes)).text(),
        }
        ranks = launch(moving.main, nodes, **given, counts=counts, turns=TURNS)
        counts = ranks[0]["counts"]
        for rank, one in enumerate(ranks):  # every row of the table is where the present policy has put it
            away = one["tables"]["adagrad"]["pushed_remote"]
            assert (away == 0) == (rank == nodes - 1), (nodes, rank)
    assert counts is not None
    assert sum(counts) == content(directory, "sums").values[:, 0].sum() == TURNS * (2 + 3 + 1 + 2) * 2 * 60


def test_workers_that_restore_at_once_do_not_crash_the_process(launch: Launch) -> None:
    assert launch(at_once.main, 1) == [{"died": 0}]


@pytest.mark.parametrize(
    ("program", "nodes", "kills"),
    [
        (kills, 1, 25),
        (kills, 2, 8),
        (evicted, 1, 12),
        (evicted, 2, 6),
        (export_kills, 1, 25),
        (export_kills, 2, 8),
    ],
)
def test_a_kill_at_any_call_leaves_a_checkpoint_or_an_export_of_the_last_acknowledged_step(
    tmp_path: Path, full: bool, warm: ForkServer, program: ModuleType, nodes: int, kills: int
) -> None:
    """2,000 kills at the full size. Losses of power are imitated. In half of them, nodes evict rows."""
    count, folder = 500 if full else kills, tmp_path / "checkpoints"
    folder.mkdir()
    given = {"kills": count, "seed": 3 * nodes, "nodes": nodes, "folder": str(folder)}
    seconds = 3600.0 if full else 600.0
    (result,), (said,) = reports_of_ranks(warm, tmp_path, program.main, 1, seconds, given)
    assert [line for line in said.splitlines() if not TOLD_BY_TORCH.match(line)] == []
    assert result["kills"] == count
    assert result["acknowledged"] > count // 4
    assert list(folder.iterdir()) == []


def test_a_process_that_was_stopped_at_any_call_harms_no_checkpoint_of_its_successor(
    tmp_path: Path, launch: Launch
) -> None:
    (ends,) = launch(stopped.main, 1, folder=str(tmp_path))
    assert ends["told"] > 20
    assert ends["had published"] > 0


def test_torchrun_restarts_a_job_whose_rank_died_and_it_is_as_good_as_one_without_a_death(
    tmp_path: Path, launch: Launch, python: Python
) -> None:
    directories = [str(tmp_path / name) for name in ("dies", "lives")]
    torchrun = ["torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1"]
    done = python(
        *("-m", *torchrun, f"--rdzv-endpoint=127.0.0.1:{free_port()}"),
        *("-m", "tests.rank", restarts.__name__, "main"),
        json.dumps({"directory": directories[0], "dies": True}),
        environment={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    disturbed = [json.loads(line) for line in done.stdout.splitlines()]
    undisturbed = launch(restarts.main, 2, directory=directories[1], dies=False)
    # killed at step 20, before its checkpoint was complete; three epochs of 12 batches
    assert [(result["restored"], result["steps"]) for result in disturbed] == [(15, 36)] * 2
    assert [(result["restored"], result["steps"]) for result in undisturbed] == [(0, 36)] * 2
    # A third of the labels is 1: without the features it is 0.636.
    losses = [sum(result["loss"] for result in job) / 2 for job in (disturbed, undisturbed)]
    assert max(losses) < 0.62
    assert abs(losses[0] - losses[1]) < SAME_LOSS
