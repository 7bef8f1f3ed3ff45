"""The simulation matches reality: counters of simulated nodes equal those of real ones."""

import pytest

import adaps
from adabench.backends.interface import ServerOptions, SimulatedRun
from adabench.backends.strategies.autoada_automatic import AutoAdaAutomatic
from adabench.harness.study.model_parameters import usecase_from
from adaps.policy import Home, Policy, Rule
from tests.conftest import Launch

from .autoada_ranks.sessions import counted_epoch

USECASE = "ctr[rows=800,batch=64,vocabulary=50,hidden=8,epochs=1]"
HASHED = Policy("hashed", [Rule("*", technique="static")])
PLACED = Policy(
    "placed",
    [
        Rule("wide.weight", technique="static", home=Home("node", node=1)),
        Rule("deep.weight", technique="static", home=Home("blocks"), wire="bfloat16"),
        Rule("*", technique="static"),
    ],
)


@pytest.mark.parametrize(("nodes", "policy"), [(2, PLACED), (4, HASHED)])
def test_counts_and_bytes_of_what_does_not_depend_on_time_are_those_of_a_real_run(
    launch: Launch, nodes: int, policy: Policy
) -> None:
    real = launch(counted_epoch, nodes, usecase=USECASE, backend="autoada-automatic", policy=policy.text())
    cluster = adaps.Cluster.alike(nodes, line=adaps.NetworkLink(0.25, 10.0))
    found = AutoAdaAutomatic().simulate(
        usecase_from(USECASE, None, 0), ServerOptions(), SimulatedRun(cluster, policy)
    )
    for rank, node in enumerate(found.nodes):
        assert node.tables == real[rank]["tables"], f"node {rank}"
    assert found.nodes[0].tables["deep.weight"]["messages_sent_answer"] > 0
