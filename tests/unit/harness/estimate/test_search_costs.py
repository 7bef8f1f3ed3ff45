"""The search's cost formula compared with the messages of the server's own code in a simulation."""

from functools import cache

import numpy as np
import pytest

import adaps
from adabench.backends.interface import Served, ServerOptions, SimulatedRun
from adabench.backends.policies.resources import Resources
from adabench.backends.strategies._table_layout import served
from adabench.backends.strategies.autoada_automatic import AutoAdaAutomatic
from adabench.harness.estimate.search.accesses import Accesses, accesses_of
from adabench.harness.estimate.search.cost_model import CostModel
from adabench.harness.estimate.search.options import WHERE_READ, Space, TableOption, policy_of
from adabench.harness.estimate.search.table_costs import Situation, bytes_on_wire
from adabench.harness.study.model_parameters import model_parameters_of, usecase_from
from adabench.usecases.interface import UseCase
from adaps.policy import Catalogue, MadeFor
from adaps.simulation import Simulation

CTR = "ctr[rows=3000,batch=64,vocabulary=100,hidden=8]"
COMPUTE = 0.003


@cache
def use_case(text: str) -> tuple[UseCase, tuple[Served, ...]]:
    found = usecase_from(text, None, 0)
    return found, served(found)


def simulated(text: str, nodes: int, options: list[TableOption]) -> tuple[CostModel, Simulation]:
    """One epoch: as many steps as the closed form's accesses are of."""
    usecase, tables = use_case(text)
    accesses = accesses_of(usecase, tables, nodes, 1)
    resources = Resources.alike(nodes)
    made_for = MadeFor(model_parameters_of(usecase).sha256, nodes)
    policy = policy_of("tried", tables, options, accesses, made_for)
    run = SimulatedRun(resources.cluster(), policy, compute=COMPUTE)
    model = CostModel(tables, accesses, Situation(resources, 1, COMPUTE), Space())
    return model, AutoAdaAutomatic().simulate(usecase, ServerOptions(), run)


def sent(node: adaps.simulation.NodeSimulation, table: str, what: str) -> float:
    return sum(count for name, count in node.tables[table].items() if name.startswith(f"{what}_sent_"))


@pytest.mark.parametrize(
    ("text", "nodes", "options"),
    [
        (CTR, 4, [TableOption("static")] * 3),
        (
            CTR,
            2,
            [
                TableOption("static", home=1),
                TableOption("static", home=WHERE_READ),
                TableOption("static", wire="bfloat16"),
            ],
        ),
        ("kge[batch=256]", 3, [TableOption("static", wire="int8"), TableOption("static", wire="float16")]),
    ],
)
def test_rows_that_stay_cost_exactly_what_is_simulated(
    text: str, nodes: int, options: list[TableOption]
) -> None:
    model, found = simulated(text, nodes, options)
    for number, table in enumerate(model.tables):
        expected = model.traffic_of(number, options[number])
        for rank, node in enumerate(found.nodes):
            steps = float(model.accesses.steps[rank])
            if table.dense:
                continue
            assert node.tables[table.table]["pulled_remote"] == pytest.approx(steps * expected.remote[rank])
            assert sent(node, table.table, "bytes") == pytest.approx(steps * expected.sent[rank])
            received = steps * expected.messages[rank] - sent(node, table.table, "messages")
            assert received == pytest.approx(sent(node, table.table, "messages"))  # each has its answer
    assert found.steps == model.accesses.steps.sum()


def test_dense_blocks_that_stay_are_off_by_the_pull_that_the_first_step_leaves_out() -> None:
    options = [TableOption("static")] * 3
    model, found = simulated(CTR, 4, options)
    expected = model.traffic_of(2, options[2])
    for rank, node in enumerate(found.nodes):
        steps = float(model.accesses.steps[rank])
        assert node.tables["dense.0"]["pulled_remote"] == pytest.approx(
            (2 * steps - 1) * expected.remote[rank]
        )


@pytest.mark.parametrize("technique", ["replication", "adaptive", "full_replication", "relocation"])
def test_what_depends_on_time_is_within_its_bound(technique: str) -> None:
    ahead = None if technique == "full_replication" else 20
    options = [TableOption(technique, lookahead=ahead)] * 2 + [TableOption("replication")]
    model, found = simulated(CTR, 2, options)
    for number, table in enumerate(model.tables[:2]):
        ran = sum(sent(node, table.table, "bytes") for node in found.nodes)
        expected = float((model.traffic_of(number, options[number]).sent * model.accesses.steps).sum())
        assert 0.6 < expected / ran < 1.67, table.table
    held = max(node.counters["resident_bytes"] for node in found.nodes)
    assert 0.6 < float(model.prediction(options).memory.max()) / held < 1.67


def test_hot_rows_cost_what_their_technique_does_and_the_rest_what_its_own() -> None:
    model, _ = simulated(CTR, 2, [TableOption("static")] * 3)
    split = TableOption("static", "full_replication", 0.1)
    whole, part = model.traffic_of(1, TableOption("static")), model.traffic_of(1, split)
    assert part.pulled == pytest.approx(whole.pulled)
    counts = model.accesses.counts["deep.weight"]
    hot = np.argsort(-counts.sum(axis=0), kind="stable")[: round(0.1 * counts.shape[1])]
    cold = np.delete(np.arange(counts.shape[1]), hot)
    assert part.remote.sum() < whole.remote.sum()
    assert part.remote.sum() <= counts[:, cold].sum() / model.accesses.steps[0]
    assert part.memory.sum() > whole.memory.sum()


def test_where_nobody_else_is_nothing_is_sent() -> None:
    rates = Accesses(1, 1, np.array([10]), {"rows": np.array([[10, 5, 0, 1]])})
    table = Served("rows", ("rows",), False, 0, 4, 8, 16)
    model = CostModel([table], rates, Situation(Resources.alike(1), 1, COMPUTE), Space())
    for option in model.options(0):
        assert model.traffic_of(0, option).sent.sum() == 0, option
        assert model.prediction([option]).seconds > COMPUTE


def test_slower_nodes_and_links_and_remote_rows_take_longer() -> None:
    usecase, tables = use_case(CTR)
    accesses = accesses_of(usecase, tables, 2, 1)
    even = Resources.alike(2)
    resources = {
        "even": even,
        "slow node": Resources(node=(even.node[0], type(even.node[0])(speed=0.25)), costs=None),
        "slow link": Resources(node=even.node, links=type(even.links)(latency_ms=5.0)),
    }
    options = [TableOption("static")] * 3
    seconds = {
        name: CostModel(tables, accesses, Situation(one, 1, COMPUTE), Space()).prediction(options).seconds
        for name, one in resources.items()
    }
    assert seconds["slow node"] > 3 * seconds["even"]
    # two tables are pulled and pushed, and dense parameters pulled twice and pushed: seven round trips
    assert seconds["slow link"] - seconds["even"] == pytest.approx(7 * 2 * (5.0 - 0.05) * 1e-3, rel=0.02)


def test_bytes_on_each_wire() -> None:
    assert [bytes_on_wire(wire, 5) for wire in ("float32", "bfloat16", "float16", "int8")] == [20, 12, 12, 12]


def test_policies_of_ways_fit_the_model_that_they_are_for() -> None:
    usecase, tables = use_case(CTR)
    accesses = accesses_of(usecase, tables, 2, 1)
    catalogue: Catalogue = model_parameters_of(usecase)
    options = [
        TableOption("adaptive", "full_replication", 0.01, lookahead=5),
        TableOption("static", home=WHERE_READ),
        TableOption("allreduce"),
    ]
    policy = policy_of("mixed", tables, options, accesses, MadeFor(catalogue.sha256, 2))
    policy.check(catalogue, 2)
    managed = {one.parameter.name: one for one in policy.managed(catalogue)}
    wide = managed["wide.weight"]
    rows = {policy.rules[part.rule - 1].technique: part.count for part in wide.parts}
    assert rows["full_replication"] == round(0.01 * wide.parameter.rows)
    assert {policy.rules[part.rule - 1].home.node for part in managed["deep.weight"].parts} == {0, 1, None}
    assert policy.rules[managed["mlp.0.weight"].parts[0].rule - 1].technique == "allreduce"
