"""One node is slower than another: the benefit of giving it less work."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from adabench.backends.policies.resources import Node, Resources
from adabench.harness.machine.quota import Quota, QuotaUnavailable
from adabench.harness.study.data_partition import with_whole_samples
from adabench.harness.study.model_parameters import model_parameters_of, usecase_from
from adabench.harness.study.policies import policy_from
from adaps.policy import Policy
from tests.conftest import Launch

from .autoada_ranks.sessions import slowed_epochs

QUOTAS = (0.16, 0.04)
"""CPU time that each node may use, in cores."""
PARAMS = {"rows": 8000, "vocabulary": 100, "dim": 8, "hidden": [16], "lr": 0.02, "batch": 200, "epochs": 4}
LARGE = {**PARAMS, "rows": 60_000, "dim": 16, "hidden": [256], "batch": 2000}


@pytest.fixture
def slowed_groups() -> Iterator[list[Path]]:
    """Control groups with `QUOTAS`; skips where this user cannot make them."""
    with ExitStack() as context:
        try:
            made = [context.enter_context(Quota(quota)).folder for quota in QUOTAS]
        except QuotaUnavailable as error:
            pytest.skip(str(error))
        yield made


def test_blocks_and_samples_by_speed_are_less_work_for_a_slower_node(launch: Launch) -> None:
    by_speed, equal = trained(launch, [], PARAMS)
    slow, half = by_speed[1], equal[1]
    assert slow["samples"] == 0.4 * half["samples"]
    # The fast node requests more rows than before, and far fewer of them are local.
    assert 0 < slow["answers"] < half["answers"], (by_speed, equal)


def test_blocks_and_samples_by_speed_shorten_an_epoch(
    launch: Launch, slowed_groups: list[Path], full: bool
) -> None:
    if not full:
        pytest.skip("how long it takes is seen with --full, on a machine with nothing else to do")
    # A single pair of runs is not reliable on a shared machine.
    pairs = [[runs[0] for runs in trained(launch, slowed_groups, LARGE)] for _ in range(3)]
    ratios = [by_speed["seconds"] / equal["seconds"] for by_speed, equal in pairs]
    # A small number of samples would show nothing: the order of the steps alone moves the AUC of a thousand
    # test samples by 0.01. With equal shares the AUC can only be worse, as the slow node's changes come late.
    lost = [max(equal["auc"]) - max(by_speed["auc"]) for by_speed, equal in pairs]
    print(f"time of an epoch by equal shares: {ratios}; AUC lost: {lost}")
    assert median(ratios) <= 0.6, pairs
    assert median(lost) <= 0.01, pairs


def trained(launch: Launch, groups: list[Path], params: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The results of each node with blocks and samples by speed, and with equal ones; both learn."""
    cases = [{"policy": policy.text(), "params": params} for policy in by_speed_and_equal(params)]
    ranks = launch(slowed_epochs, 2, cases=cases, groups=[str(group) for group in groups])
    by_speed, equal = ([rank["runs"][number] for rank in ranks] for number in range(2))
    assert by_speed[0]["samples"] == 4 * by_speed[1]["samples"]
    assert {run["samples"] for run in equal} == {sum(run["samples"] for run in by_speed) / 2}
    assert min(max(by_speed[0]["auc"]), max(equal[0]["auc"])) > 0.6, ranks
    return [by_speed, equal]


def by_speed_and_equal(params: dict[str, Any]) -> tuple[Policy, Policy]:
    """The policy of `uneven` for the nodes' speeds, and one with equal blocks and shares."""
    said = ",".join(f"{name}={value}" for name, value in params.items()).replace("[", "").replace("]", "")
    catalogue = model_parameters_of(usecase_from(f"ctr[{said}]", None, 1))
    resources = Resources(node=tuple(Node(speed=quota) for quota in QUOTAS))
    uneven = with_whole_samples(policy_from("uneven", catalogue, resources), params["batch"])
    return uneven, replace(
        policy_from("partitioned", catalogue, resources), synchronization=uneven.synchronization
    )
