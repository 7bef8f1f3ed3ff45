"""The parts of a policy that the training executes: synchronous steps, and how far ahead it announces."""

from dataclasses import replace
from itertools import islice
from typing import Any

import msgspec
import pytest
import torch

from adabench.backends.policies.parallax import bytes_per_step
from adabench.backends.policies.resources import Node, Resources
from adabench.harness.plugins.registry import load_usecase, names
from adabench.harness.study.data_partition import partitioned
from adabench.harness.study.model_parameters import count_accesses
from adabench.harness.study.policies import policy_from
from adaps.policy import Aggregation, Catalogue, DataSharing, Policy, RowSelection, Rule, Synchronization
from tests.conftest import Launch

from .autoada_ranks.sessions import trained_sessions

PARAMS: dict[str, dict[str, Any]] = {
    "ctr": {"rows": 2000, "vocabulary": 60, "dim": 4, "hidden": [8], "batch": 64},
    "gcn": {"dim": 4, "hidden": 8, "batch": 64, "fanout": 4},
}
STEPS = 6
RATE = 0.1


@pytest.mark.parametrize("usecase", ["ctr", "gcn"])
def test_steps_together_are_those_of_one_process_under_every_builder(launch: Launch, usecase: str) -> None:
    catalogue = count_accesses(made(usecase), 2, epochs=1)
    cases = [
        case(usecase, backend, in_lockstep(name, catalogue))
        for name in sorted(names("policy"))
        for backend in ("autoada-automatic", "manual")
    ]
    results = launch(trained_sessions, 2, cases=cases)
    for rank, losses in enumerate(one_process(usecase)):
        for ran, trained in zip(cases, results[rank]["runs"], strict=True):
            assert trained["losses"] == pytest.approx(losses, abs=1e-5), (rank, ran)
    for number, ran in enumerate(cases):
        runs = [result["runs"][number] for result in results]
        policy, tables = Policy.parse(ran["policy"]), [run["tables"] for run in runs]
        check_counters(policy, catalogue, tables)
        check_dense_counters(policy, catalogue, tables, [run["sent"]["bytes_sent_allreduce"] for run in runs])


@pytest.mark.parametrize("usecase", ["ctr", "gcn"])
def test_samples_count_alike_however_they_are_shared(launch: Launch, usecase: str) -> None:
    catalogue = count_accesses(made(usecase), 2, epochs=1)
    resources = Resources(node=(Node(speed=1.0), Node(speed=3.0)))
    policies = [
        replace(policy, synchronization=Synchronization(1), data=DataSharing((0.25, 0.75)))
        for policy in (
            policy_from(name, catalogue, resources) for name in ("uneven", "allreduce", "adaptive")
        )
    ]
    cases = [case(usecase, "autoada-automatic", policy) for policy in policies]
    results = launch(trained_sessions, 2, cases=cases)
    expected = one_process(usecase, (0.25, 0.75))
    for rank, losses in enumerate(expected):
        for ran, trained in zip(cases, results[rank]["runs"], strict=True):
            assert trained["losses"] == pytest.approx(losses, abs=1e-5), (rank, ran)
    # Equal shares with equal weights for every worker are a different training.
    assert one_process(usecase, (0.25, 0.75), weights=(0.5, 0.5)) != [
        pytest.approx(losses, abs=1e-4) for losses in expected
    ]


def test_gradients_that_are_all_reduced_are_combined_by_the_same_rule(launch: Launch) -> None:
    rules = [Aggregation("median"), Aggregation("suspicion", faulty=1)]
    cases = [
        case(
            "ctr",
            "manual",
            Policy(
                "robust",
                [Rule("dense", technique=technique), Rule("*", technique="static")],
                synchronization=Synchronization(1, rule),
            ),
        )
        for rule in rules
        for technique in ("allreduce", "static")
    ]
    results = launch(trained_sessions, 3, cases=cases)
    together = one_process("ctr", (1 / 3, 1 / 3, 1 / 3))
    for rank, result in enumerate(results):
        runs = result["runs"]
        for reduced, in_server in zip(runs[::2], runs[1::2], strict=True):
            assert reduced["losses"] == pytest.approx(in_server["losses"], abs=1e-5), rank
            assert reduced["sent"]["bytes_sent_allreduce"] > in_server["sent"]["bytes_sent_allreduce"] > 0
            assert reduced["losses"] != pytest.approx(together[rank], abs=1e-5), "that is the mean"
            for name, values in reduced["state"].items():
                assert values == pytest.approx(
                    results[0]["runs"][runs.index(reduced)]["state"][name], abs=1e-6
                )


def check_counters(policy: Policy, catalogue: Catalogue, tables: list[dict[str, dict[str, float]]]) -> None:
    """Check that the messages of each table fit its technique, and that rows were found where they belong."""
    for managed in policy.managed(catalogue):
        name = managed.parameter.name
        if managed.parameter.kind == "dense":
            continue
        rules = [policy.rules[part.rule - 1] for part in managed.parts]
        rule = rules[-1]
        kinds = ("intent", "setup", "transfer", "delta", "refresh", "drop")
        sent = {kind: sum(one[name][f"messages_sent_{kind}"] for one in tables) for kind in kinds}
        told = (policy.name, name, sent)
        # A table that is copied everywhere has been copied before the first step.
        silent = ("static", "full_replication")
        assert (sent["intent"] > 0) == (rule.technique not in silent), told
        if rule.technique == "static":
            assert set(sent.values()) == {0}, told
            for node, counted in enumerate(one[name] for one in tables):
                here, elsewhere = counted["pulled_local"], counted["pulled_remote"]
                assert counted["pulled_replica"] == 0, told
                if rule.home.node is None:
                    assert min(here, elsewhere) > 0, told
                else:
                    assert (here > 0, elsewhere > 0) == (node == rule.home.node, node != rule.home.node), told
        elif rule.technique == "relocation" and len(rules) > 1:
            assert {one.technique for one in rules[:-1]} == {"replication"}, told
            assert min(sent["transfer"], sent["setup"], sent["refresh"] + sent["delta"]) > 0, told
        elif rule.technique == "relocation":
            assert sent["transfer"] > 0, told
            assert sent["setup"] == sent["delta"] == sent["refresh"] == 0, told
        elif rule.technique == "full_replication":
            assert sent["delta"] > 0, told
            assert sent["transfer"] == sent["drop"] == 0, told


def check_dense_counters(
    policy: Policy, catalogue: Catalogue, tables: list[dict[str, dict[str, float]]], reduced: list[float]
) -> None:
    """Check the counters of dense parameters, which share one table and are all read in each step."""
    (technique,) = {
        policy.rules[managed.parts[0].rule - 1].technique
        for managed in policy.managed(catalogue)
        if managed.parameter.kind == "dense"
    }
    if technique == "allreduce":
        assert min(reduced) > 0, policy.name
        assert not any("dense.0" in one for one in tables), policy.name
        return
    kinds = ("intent", "setup", "transfer", "delta", "refresh", "drop")
    sent = {kind: sum(one["dense.0"][f"messages_sent_{kind}"] for one in tables) for kind in kinds}
    told = (policy.name, technique, sent)
    # They are announced before the first step, for good.
    assert sent["intent"] == sent["drop"] == 0, told
    if technique in ("static", "relocation"):
        assert set(sent.values()) == {0}, told
        assert sum(one["dense.0"]["pulled_remote"] for one in tables) > 0, told
        assert sum(one["dense.0"]["pulled_replica"] for one in tables) == 0, told
    else:
        assert sent["delta"] + sent["refresh"] > 0, told
        assert sent["transfer"] == 0, told
        assert sum(one["dense.0"]["pulled_replica"] for one in tables) > 0, told


def test_parallax_sends_no_more_than_a_parameter_server_or_copies_of_everything(launch: Launch) -> None:
    sparse = {"rows": 2000, "vocabulary": 200, "dim": 16, "hidden": [4], "batch": 64}
    catalogue = count_accesses(made("ctr", sparse), 2, epochs=1)
    builders = ("static", "allreduce", "parallax")
    policies = [policy_from(name, catalogue, Resources.alike(2)) for name in builders]
    cases = [
        case("ctr", "autoada-automatic", policy, params=sparse, optimizer="Adagrad") for policy in policies
    ]
    results = launch(trained_sessions, 2, cases=cases)
    sent = {
        name: {
            kind: sum(result["runs"][number]["sent"][kind] for result in results)
            for kind in ("bytes_sent", "bytes_sent_allreduce")
        }
        for number, name in enumerate(builders)
    }
    # With Adagrad rows of 16 floats are cheaper where they are at home, and rows of one float as copies.
    assert [(rule.parameters, rule.technique) for rule in policies[2].rules[1:]] == [
        ("wide.weight", "full_replication"),
        ("*", "static"),
    ]
    assert sent["parallax"]["bytes_sent"] < min(sent[name]["bytes_sent"] for name in builders[:2]), sent
    # The figure that the choice is based on. It is the smallest for copies: with optimizer state, one more
    # refresh follows the gradients that meet at the owner.
    for number, most in ((0, 1.05), (1, 1.4)):
        tables = [result["runs"][number]["tables"] for result in results]
        for name in ("wide.weight", "deep.weight"):
            expected = bytes_per_step(catalogue.parameter(name), catalogue, 2, state=1)[number] * STEPS
            kinds = [kind for kind in tables[0][name] if kind.startswith("bytes_sent")]
            found = sum(one[name][kind] for one in tables for kind in kinds)
            assert 0.95 * expected <= found <= most * expected, (builders[number], name)
    # Two nodes send each float of a gradient once per step, a number for each parameter, and two for all.
    dense = [parameter for parameter in catalogue.parameters if parameter.kind == "dense"]
    floats = sum(parameter.rows * parameter.length for parameter in dense) + len(dense) + 2
    for name, reduced in (("static", 0), ("allreduce", 1), ("parallax", 1)):
        assert sent[name]["bytes_sent_allreduce"] == reduced * 2 * 4 * floats * STEPS, name


def test_tables_are_announced_as_far_ahead_as_the_policy_says(launch: Launch) -> None:
    policy = Policy(
        "ahead",
        [
            Rule("wide.weight", lookahead=0),
            Rule("deep.weight", lookahead=3),
            Rule("dense", lookahead=0),
            Rule("*"),
        ],
    )
    backends = ("manual", "prefetch", "autoada-manual", "autoada-automatic")
    for given in (1, 5):
        cases = [case("ctr", backend, policy, lookahead=given) for backend in backends]
        for result in launch(trained_sessions, 2, cases=cases):
            for backend, run in zip(backends, result["runs"], strict=True):
                assert set(run["distances"]) == {"deep.weight"}, backend
                assert max(run["distances"]["deep.weight"]) == 3, (backend, run["distances"])
                assert run["tables"]["wide.weight"]["messages_sent_intent"] == 0
    (own,) = launch(
        trained_sessions, 2, cases=[case("ctr", "manual", Policy.uniform("adaptive"), lookahead=2)]
    )[:1]
    assert max(own["runs"][0]["distances"]["wide.weight"]) == 2


def test_rows_are_announced_as_far_ahead_as_their_own_rule_says(launch: Launch) -> None:
    policy = Policy(
        "ahead",
        [
            Rule("deep.weight", RowSelection(ranges=((0, 400), (800, 1000))), lookahead=4),
            Rule("deep.weight", RowSelection(ranges=((300, 600),)), lookahead=0),
            Rule("wide.weight", RowSelection(ranges=((0, 700),)), lookahead=0),
            Rule("deep.weight", lookahead=1),
            Rule("*"),
        ],
    )
    rows = range(made("ctr").model().deep.weight.shape[0])
    told: dict[str, dict[int, int | None]] = {
        "wide.weight": {row: 0 if row < 700 else None for row in rows},
        "deep.weight": {row: 4 if row < 400 or 800 <= row < 1000 else 0 if row < 600 else 1 for row in rows},
    }
    backends = ("manual", "prefetch", "autoada-manual", "autoada-automatic")
    for given in (2, 6):
        cases = [case("ctr", backend, policy, lookahead=given) for backend in backends]
        for result in launch(trained_sessions, 2, cases=cases):
            for backend, run in zip(backends, result["runs"], strict=True):
                for table, said in told.items():
                    most: dict[int | None, set[int]] = {ahead: set() for ahead in said.values()}
                    for row, distance in run["farthest"][table]:
                        most[said[row]].add(distance)
                    assert most.pop(0) == set(), (backend, table)
                    expected = {ahead: given if ahead is None else ahead for ahead in most}
                    assert {ahead: max(found) for ahead, found in most.items()} == expected, (backend, table)


def test_all_updates_are_visible_to_all_after_so_many_steps(launch: Launch) -> None:
    policy = replace(Policy.uniform("full_replication"), synchronization=Synchronization(STEPS // 2))
    results = launch(
        trained_sessions,
        2,
        cases=[case("ctr", name, policy, state=True) for name in ("manual", "autoada-automatic")],
    )
    for one, other in zip(*(result["runs"] for result in results), strict=True):
        for name, values in one["state"].items():
            assert other["state"][name] == pytest.approx(values, abs=1e-6), name
        # Before that, no node waits for another: the first steps differ from those of one process.
        assert one["losses"] != pytest.approx(one_process("ctr")[0], abs=1e-5)


def case(
    usecase: str,
    backend: str,
    policy: Policy,
    lookahead: int = 3,
    params: dict[str, Any] | None = None,
    optimizer: str = "SGD",
    state: bool = False,
) -> dict[str, Any]:
    return {
        "usecase": usecase,
        "params": params or PARAMS[usecase],
        "backend": backend,
        "policy": policy.text(),
        "steps": STEPS,
        "rate": RATE,
        "lookahead": lookahead,
        "optimizer": optimizer,
        "state": state,
    }


def in_lockstep(name: str, catalogue: Catalogue) -> Policy:
    # So few accesses to so few rows that no row is hot by the usual threshold.
    policy = policy_from("nups[times=2]" if name == "nups" else name, catalogue, Resources.alike(2))
    assert name != "nups" or any(rule.rows is not None for rule in policy.rules)
    return replace(policy, synchronization=Synchronization(1))


def made(name: str, params: dict[str, Any] | None = None) -> Any:
    kind = load_usecase(name)
    return kind(msgspec.convert(params or PARAMS[name], kind.Params), None, 1)


def one_process(
    name: str, shares: tuple[float, ...] = (0.5, 0.5), weights: tuple[float, ...] | None = None
) -> list[list[float]]:
    """The losses of each worker's batches in one process that trains on both together."""
    usecase = made(name)
    usecase = partitioned(usecase, replace(Policy.uniform("static"), data=DataSharing(shares)), 1)
    model = usecase.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses: list[list[float]] = [[] for _ in shares]
    loaders = [usecase.loaders(worker, len(shares)).train for worker in range(len(shares))]
    for batches in islice(zip(*loaders, strict=True), STEPS):
        found = [usecase.loss(model, batch) for batch in batches]
        optimizer.zero_grad()
        (torch.stack(found) * torch.tensor(weights or shares)).sum().backward()
        optimizer.step()
        for worker, loss in enumerate(found):
            losses[worker].append(loss.item())
    return losses
