"""Simulated clusters: counters, effects of machines and links, and refusals."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adaps
from adaps.policy import Home, Policy, PolicyError, Rule, Synchronization
from adaps.simulation import Simulation

ROWS, STEPS, NODES = 100, 20, 4
TABLES = [adaps.Table("emb", rows=ROWS, length=8), adaps.Table("dense", rows=3, length=4)]


def streams(nodes: int = NODES, steps: int = STEPS) -> list[adaps.Stream]:
    random = np.random.default_rng(1)
    return [
        adaps.Stream([{"emb": random.choice(ROWS, 5, replace=False)} for _ in range(steps)])
        for _ in range(nodes)
    ]


def simulated(policy: Any = "static", cluster: adaps.Cluster | None = None, **options: Any) -> Simulation:
    options = {"tables": TABLES, "dense": ["dense"], "lookahead": 5, **options}
    return adaps.simulate(options.pop("streams", streams()), policy, cluster, **options)


def test_copies_are_renewed_less_often_in_a_long_training() -> None:
    def marks(steps_before: int) -> list[float]:
        found = simulated("replication", steps_before=steps_before)
        return [node.counters["bytes_sent_mark"] / 8 / (NODES - 1) for node in found.nodes]

    assert marks(0) == [STEPS] * NODES  # after every step
    assert marks(100) == [STEPS // 2] * NODES  # a limit of 5 steps
    assert all(sent <= 1 for sent in marks(16_384))  # a limit of 64 steps
    with pytest.raises(ValueError, match="steps_before is -1"):
        simulated(steps_before=-1)


def test_equal_arguments_give_equal_results_and_other_seeds_other_times() -> None:
    assert simulated("adaptive") == simulated("adaptive")
    assert simulated("adaptive") != simulated("adaptive", seed=1)


def test_all_steps_are_counted_without_a_warm_up() -> None:
    found = simulated()
    assert found.steps == NODES * STEPS
    pulled = sum(
        node.tables["emb"][f"pulled_{how}"] for node in found.nodes for how in ("local", "replica", "remote")
    )
    assert pulled == NODES * STEPS * 5
    assert found.messages_per_step * found.steps == sum(node.messages_sent for node in found.nodes)
    assert sum(found.shares().values()) == pytest.approx(1)
    steady = simulated(warm_up=5)
    assert NODES * (STEPS - 11) <= steady.steps <= NODES * (STEPS - 5)


def test_workers_wait_for_each_other_behind_each_epoch() -> None:
    machine = adaps.Machine(cores=2)
    cluster = adaps.Cluster((machine, machine, machine, replace(machine, speed=0.5)))
    apart = simulated("adaptive", cluster)
    together = simulated("adaptive", cluster, epoch=STEPS // 2)
    assert together.nodes[0].waiting > apart.nodes[0].waiting + 0.3 * apart.seconds
    assert together.nodes[3].waiting < 0.2 * together.seconds
    assert together.steps == apart.steps


def test_rows_elsewhere_and_copies_cost_their_workers_more() -> None:
    for technique, cost in (("static", "elsewhere"), ("full_replication", "copy")):
        cluster = adaps.Cluster.alike(NODES)
        dear = replace(cluster, costs=replace(cluster.costs, **{cost: 1000.0}))
        found = simulated(technique, dear)
        assert found.seconds_per_step > simulated(technique, cluster).seconds_per_step + 2e-3


def test_intent_makes_rows_local() -> None:
    assert simulated("static").local_share("emb") < 0.5
    assert simulated("adaptive").local_share("emb") == 1
    assert simulated("adaptive", lookahead=0).local_share("emb") < 0.5


def test_a_policy_manages_each_table() -> None:
    policy = Policy("here", [Rule("emb", technique="static", home=Home("node", node=2)), Rule("*")])
    found = simulated(policy)
    assert [node.local_share("emb") for node in found.nodes] == [0, 0, 1, 0]
    assert found.local_share("dense") == 1
    assert 0.25 < found.local_share() < 1  # of both tables


def test_a_slow_machine_and_a_slow_line_slow_down_whom_they_concern() -> None:
    machine = adaps.Machine(cores=2)
    even = adaps.Cluster((machine,) * NODES)
    usual = simulated(cluster=even)
    slow = replace(even, machines=(machine, machine, replace(machine, speed=0.25), machine))
    uneven = simulated(cluster=slow)
    assert uneven.nodes[2].computing == pytest.approx(4 * usual.nodes[2].computing, rel=0.01)
    assert uneven.nodes[1].computing == pytest.approx(usual.nodes[1].computing, rel=0.01)
    far = simulated(cluster=replace(even, lines={(0, 3): adaps.NetworkLink(latency_ms=30.0)}))
    for rank in (0, 3):
        assert far.nodes[rank].waiting > usual.nodes[rank].waiting + STEPS * 0.06
        assert far.nodes[rank].on_network > 0.9 * far.nodes[rank].waiting
    for node in (1, 2):
        assert far.nodes[node].waiting < usual.nodes[node].waiting + 0.06
    narrow = replace(even, line=adaps.NetworkLink(gbit_per_second=0.001))
    assert simulated(cluster=narrow).seconds > 1.2 * usual.seconds
    card = replace(even, machines=(replace(machine, gbit_per_second=0.001), machine, machine, machine))
    assert simulated(cluster=card).nodes[0].waiting > 2 * usual.nodes[0].waiting
    for other in (uneven, far, simulated(cluster=narrow)):
        assert other.bytes_per_step == pytest.approx(usual.bytes_per_step)


def test_what_befalls_a_node_is_met_by_it_and_by_whom_it_serves() -> None:
    usual = simulated()
    slow = simulated(incidents=[adaps.Straggler(2, speed=0.25, begin=5, end=15)])
    # Ten of twenty steps compute four times as long.
    assert slow.nodes[2].computing == pytest.approx(2.5 * usual.nodes[2].computing, rel=0.01)
    assert slow.nodes[2].seconds == slow.seconds > usual.nodes[2].seconds + 0.29
    assert slow.nodes[1].computing == pytest.approx(usual.nodes[1].computing, rel=0.01)
    stalled = simulated(incidents=[adaps.Stall(1, step=10, seconds=0.3)])
    assert stalled.nodes[1].seconds > usual.nodes[1].seconds + 0.29
    for rank in (0, 2, 3):  # the steps of all these nodes read rows of node 1
        assert stalled.nodes[rank].waiting > usual.nodes[rank].waiting + 0.25
    assert stalled.bytes_per_step == usual.bytes_per_step == slow.bytes_per_step
    assert {node.peer_lost for node in (*slow.nodes, *stalled.nodes)} == {None}


@pytest.mark.parametrize("technique", adaps.TECHNIQUES)
def test_a_lost_node_ends_the_training_of_all_within_the_timeout(technique: Any) -> None:
    found = simulated(technique, incidents=[adaps.LostNode(3, step=7)], peer_timeout=2.0)
    lost = found.nodes[3]
    assert (lost.steps, lost.lost_at, lost.peer_lost) == (7, lost.seconds, None)
    assert lost.lost_at is not None
    for node in found.nodes[:3]:
        assert (node.peer_lost, node.lost_at) == (3, None)
        assert node.peer_lost_at is not None
        assert 1.7 < node.peer_lost_at - lost.lost_at < 2.0
        assert node.seconds < node.peer_lost_at
        assert node.waiting < node.seconds  # calls that raise are no part of it
    assert found.seconds == max(node.seconds for node in found.nodes)


def test_nodes_of_one_host_share_its_cores() -> None:
    alone = simulated(compute=0.02)
    machine = adaps.Machine(cores=2, host="one")
    here = simulated(cluster=adaps.Cluster((machine,) * NODES), compute=0.02)
    assert here.seconds == pytest.approx(2 * alone.seconds, rel=0.1)  # four nodes on two cores
    pairs = [replace(machine, host=host) for host in ("one", "two", "one", "two")]
    on_two = simulated(cluster=adaps.Cluster(pairs), compute=0.02)
    assert on_two.seconds == pytest.approx(alone.seconds, rel=0.1)
    for found in (here, on_two):
        assert sum(node.working for node in found.nodes) == pytest.approx(
            sum(node.working for node in alone.nodes)
        )
    assert on_two.bytes_per_step == here.bytes_per_step == alone.bytes_per_step
    lost = simulated(cluster=adaps.Cluster((machine,) * NODES), incidents=[adaps.LostNode(0, step=10)])
    assert [node.peer_lost for node in lost.nodes] == [None, 0, 0, 0]


def test_channels_follow_from_workers_without_a_number() -> None:
    def of(**channels: Any) -> Simulation:
        return simulated("adaptive", streams=streams(2 * 8), workers=8, **channels)

    assert of() == of(channels=2) == of(channels=None)
    assert of() != of(channels=1)


def test_costs_are_those_of_a_machine_of_a_speed() -> None:
    costs = adaps.Costs(message=50.0)
    machines = (adaps.Machine(cores=2, speed=10.0),) * NODES
    slow = simulated(cluster=adaps.Cluster(machines, costs=replace(costs, speed=10.0)))
    fast = simulated(cluster=adaps.Cluster(machines, costs=replace(costs, speed=1.0)))
    assert slow.nodes[0].channels == pytest.approx(10 * fast.nodes[0].channels, rel=0.2)
    assert slow.nodes[0].computing == pytest.approx(10 * fast.nodes[0].computing, rel=0.01)


def test_traced_steps_are_written_for_chrome(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    simulated(traced_steps=2).write_chrome_trace(file)
    events = json.loads(file.read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["name"] for event in spans} >= {"pull", "compute", "push", "wait", "channel", "frame"}
    assert all(event["dur"] >= 0 for event in spans)
    computed = sum(event["name"] == "compute" for event in spans)
    assert 2 <= computed <= 2 * NODES
    named = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert named == {f"node {rank}" for rank in range(NODES)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"streams": []}, "0 streams for nodes of 1 workers; give one per worker"),
        ({"workers": 3}, "4 streams for nodes of 3 workers; give one per worker"),
        ({"cluster": adaps.Cluster.alike(2)}, "4 streams are those of 4 nodes; the cluster has 2"),
        ({"dense": ["none"]}, "dense table 'none' does not exist; valid are emb, dense"),
        ({"lookahead": -1}, "lookahead is -1; it must be 0 or more batches"),
        ({"lookahead": True}, "lookahead is True; it must be 0 or more batches"),
        ({"lookahead": {"emb": -1}}, "lookahead of table 'emb' is -1; it must be 0 or more batches"),
        ({"lookahead": {"em": 1}}, "table with a lookahead 'em' does not exist (did you mean 'emb'?)"),
        ({"policy": "statics"}, "technique 'statics' does not exist (did you mean 'static'?)"),
        ({"warm_up": 19}, "the stream of worker 0 has 20 steps; lookahead and warm-up need 25"),
        ({"warm_up": -1}, "warm_up is -1; it must be 0 or more steps"),
        ({"streams": streams(steps=0)}, "the stream of worker 0 has 0 steps"),
        (
            {"streams": [adaps.Stream([{"emb": [ROWS]}])]},
            "the stream of worker 0 names row 100 of 'emb', which has 100",
        ),
        (
            {"streams": [adaps.Stream([{"dense": [0]}])]},
            "names rows of 'dense', which is dense: leave it out",
        ),
        (
            {"tables": [adaps.Table("emb", rows=ROWS, length=1, memory=99, path="/tmp")]},
            "the table 'emb' has memory=99, and a simulation has no disks; give simulate a table without",
        ),
        ({"peer_timeout": 0}, "peer_timeout is 0; it must be more than 0 seconds"),
        ({"incidents": [adaps.LostNode(4, 1)]}, "an incident is at node 4; it must be at a node from 0 to 3"),
        ({"incidents": [adaps.LostNode(-1, 1)]}, "node of an incident is -1; it must be 0 or more nodes"),
        (
            {"incidents": [adaps.Stall(1, STEPS, 0.1)]},
            "an incident is at step 20 of node 1; it must be at a step from 0 to 19",
        ),
        (
            {"incidents": [adaps.Straggler(1, 0.5, 3, 9), adaps.Straggler(1, 0.3, 8, 10)]},
            "node 1 straggles from step 3 to 9 and from 8 to 10: give steps that do not overlap",
        ),
        (
            {"incidents": [adaps.Stall(1, 2, 3.0)]},
            "node 1 stalls for 3 s, but other nodes may report it as lost after 2.5 s, half of peer_timeout: "
            "use a shorter stall, or a LostNode",
        ),
        (
            {"incidents": [adaps.Stall(1, 2, 0.1), adaps.Stall(1, 2, 0.2)]},
            "node 1 stalls twice at step 2: give one stall with the sum of the durations",
        ),
        (
            {"incidents": [adaps.LostNode(1, 2), adaps.LostNode(1, 3)]},
            "node 1 is lost twice, at steps 2 and 3: give one loss",
        ),
        (
            {"incidents": [adaps.LostNode(1, 2)], "warm_up": 5},
            "node 1 is lost after 2 steps, before all nodes are warm: let it be lost later",
        ),
        ({"streams": [adaps.Stream([{"e": [0]}])]}, "table in the stream of worker 0 'e' does not exist"),
    ],
)
def test_mistakes_are_one_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        simulated(**options)


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(TypeError, match=r"simulate has no option 'lokahead' \(did you mean 'lookahead'\?\)"):
        simulated(lokahead=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lookahead": 2.5}, "lookahead is 2.5; it must be 0 or more batches"),
        ({"lookahead": {"emb": "2"}}, "lookahead of table 'emb' is '2'; it must be 0 or more batches"),
        ({"warm_up": 2.5}, "warm_up is 2.5; it must be 0 or more steps"),
    ],
)
def test_numbers_of_another_kind_are_one_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        simulated(**options)


def test_what_the_server_does_not_execute_is_refused() -> None:
    policy = Policy("often", [Rule("*")], synchronization=Synchronization(every=1))
    with pytest.raises(PolicyError, match="every"):
        simulated(policy)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: adaps.Costs(byte=-1.0), "cost of a byte is -1.0; it must be at least 0"),
        (lambda: adaps.Costs(speed=0.0), "speed of the machine of the costs is 0.0; it must be more than 0"),
        (lambda: adaps.Machine(cores=0), "cores of a machine is 0; it must be a positive integer"),
        (
            lambda: adaps.NetworkLink(gbit_per_second=0.0),
            "gbit_per_second of a link is 0.0; it must be more than 0",
        ),
        (
            lambda: adaps.Cluster((adaps.Machine(2, host="one"), adaps.Machine(1, host="one"))),
            "nodes of host 'one' have 2 and 1 cores of speed 1 and 1: they share them, so give equal ones",
        ),
        (lambda: adaps.Straggler(1, 0.0, 0, 5), "speed of a straggler is 0.0; it must be more than 0"),
        (
            lambda: adaps.Straggler(1, 0.5, 5, 5),
            "node 1 straggles from step 5 to 5: its end must be after its begin",
        ),
        (lambda: adaps.Stall(1, 3, 0.0), "duration of a stall is 0.0; it must be more than 0 seconds"),
        (lambda: adaps.LostNode(1, -3), "step of a lost node is -3; it must be 0 or more steps"),
        (
            lambda: adaps.Cluster((adaps.Machine(),) * 2, lines={(1, 0): adaps.NetworkLink()}),
            "a link between nodes 1 and 0 of 2: give the lesser first",
        ),
    ],
)
def test_what_cannot_be_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make()
