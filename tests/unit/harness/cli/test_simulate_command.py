"""``adabench simulate``: its table, figure and trace, where its figures come from, and mistakes."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from adabench.backends.policies import cost_model
from adabench.backends.policies.cost_model import Done, costs_of
from adabench.backends.policies.resources import Link, LinkBetween, Node, Resources
from adabench.harness.cli.estimate_options import TrainingOptions
from adabench.harness.estimate.simulate import clusters_of
from adabench.harness.estimate.simulation_report import draw_simulated, node_table, save_figure, table_of
from adaps import Costs
from adaps.simulation import NodeSimulation, Simulation
from tests.mistakes import mistakes
from tests.records import COSTS

CTR = ("simulate", "-u", "ctr[rows=1000,vocabulary=50,batch=64,dim=4,hidden=8]", "--steps", "6")
GIVEN = ("--step", "2")
SHARES = ("compute", "visits", "rows", "network")


def node_of(steps: int, seconds: float, **fields: Any) -> NodeSimulation:
    """A node that computes for half of its time, and waits for rows for a quarter."""
    times = {"computing": seconds / 2, "visiting": seconds / 4, "waiting": seconds / 4, "on_network": 0.0}
    given = {"working": seconds, "channels": 0.0, "lost_at": None, "peer_lost": None, "peer_lost_at": None}
    counted: dict[str, Any] = {"counters": {"bytes_sent": 1234e3}, "tables": {}}
    return NodeSimulation(steps=steps, seconds=seconds, **{**times, **given, **counted, **fields})


def found_for(nodes: int = 2, seconds: float = 0.0125) -> Simulation:
    return Simulation(seconds, 1, (node_of(1, seconds),) * nodes)


def test_policies_are_simulated_on_clusters_and_drawn(said: Any, tmp_path: Path) -> None:
    options = ("--policy", "adaptive,static", "--nodes", "2,3", "--network", "slow")
    code, out, err = said(*CTR, *GIVEN, *options, "-o", "f.svg", "--trace", "t.json")
    assert (code, err) == (0, "")
    first, head, *lines = out.splitlines()
    assert first.endswith("a step computes for 2 ms, as given")
    assert head.split() == ["policy", "nodes", "ms/step", *SHARES, "local", "kB/step"]
    assert [line.split()[:2] for line in lines[:4]] == [
        *(["adaptive", "2"], ["adaptive", "3"]),
        *(["static", "2"], ["static", "3"]),
    ]
    times = [float(line.split()[2]) for line in lines[:4]]
    assert max(times[:2]) < min(times[2:])  # static waits, at two milliseconds and more a time
    assert lines[4:] == ["f.svg", "t.json"]
    assert "prefers-color-scheme: dark" in (tmp_path / "f.svg").read_text()
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert said(*CTR, *GIVEN, *options)[1].splitlines()[1:] == out.splitlines()[1:6]  # it can be repeated


def test_what_befalls_nodes_is_in_a_table_of_nodes(said: Any) -> None:
    incidents = "slow[node=1,speed=0.25,begin=1,end=5],stall[node=2,step=2,ms=40],lost[node=3,step=4]"
    options = ("--policy", "static", "--nodes", "5", "--peer-timeout", "0.5")
    code, out, err = said(*CTR, *GIVEN, *options, "--incidents", incidents)
    assert (code, err) == (0, "")
    *_, name, head, slow, stalled, lost, others, loss, end = out.splitlines()
    assert name == "static, 5 nodes"
    assert head.split() == ["node", "steps", "seconds", "ms/step", *SHARES]
    assert [line.split()[0] for line in (slow, stalled, lost)] == ["1", "2", "3"]
    assert others.startswith("2 others ")
    assert lost.split()[1] == "4"
    assert loss.startswith("node 3 is lost after 0.")
    assert end.startswith("PeerLost(3) ends 4 nodes after 0.")


def test_what_was_measured_is_taken_from_a_file(said: Any, tmp_path: Path) -> None:
    resources = Resources(node=(Node(cores=2, speed=4.0),) * 2, costs=COSTS, steps={CTR[2]: 3.0})
    (tmp_path / "r.toml").write_text(resources.text())
    code, out, _ = said(*CTR, "--resources", "r.toml", "-b", "manual[policy=static]")
    assert code == 0
    assert "a step computes for 3 ms, as given in r.toml" in out
    assert "static" in out
    code, out, _ = said(*CTR, "--nodes", "2")
    assert (code, "measured now; --step" in out) == (0, True)


def test_resources_with_costs_are_read_as_they_were_written(tmp_path: Path) -> None:
    node = Node(cores=3, speed=2.0, gbit_per_second=25.0)
    far = LinkBetween(between=(1, 0), latency_ms=3.0, gbit_per_second=1.0)
    resources = Resources(node=(node, Node()), link=(far,), costs=COSTS, steps={"ctr[dim=8]": 1.5})
    file = tmp_path / "r.toml"
    file.write_text(resources.text())
    assert Resources.read(file) == resources
    cluster = resources.cluster()
    assert [machine.cores for machine in cluster.machines] == [3, 1]
    assert [machine.gbit_per_second for machine in cluster.machines] == [25.0, None]
    assert (cluster.between(0, 1).latency_ms, cluster.costs.frame, cluster.costs.speed) == (3.0, 5.0, 4.0)
    assert Resources.alike(2).cluster().costs.speed == 1.0


def test_costs_of_an_earlier_version_have_to_be_measured_again(refused: Any, tmp_path: Path) -> None:
    text = Resources(node=(Node(), Node()), costs=COSTS).text()
    (tmp_path / "r.toml").write_text(text.replace("wake = 6.0\n", "").replace("upkeep = 0.4\n", ""))
    err = refused(*CTR, *GIVEN, "--resources", "r.toml", quiet=False)
    assert "r.toml: [costs] has no wake, upkeep: measure all of them with adabench resources --costs" in err


def test_clusters_are_those_of_the_file_or_like_its_first_node() -> None:
    far = LinkBetween(between=(0, 1), latency_ms=3.0, gbit_per_second=1.0)
    resources = Resources(node=(Node(speed=2.0), Node()), link=(far,), costs=COSTS)
    assert clusters_of(resources, None, None) == [resources]
    three, four = clusters_of(resources, [3, 4], "0.5ms,200mbit")
    assert three.node == (Node(speed=2.0),) * 3
    assert (four.nodes, four.link, four.costs) == (4, (), COSTS)
    assert four.links == Link(latency_ms=0.5, gbit_per_second=0.2)
    (lan,) = clusters_of(None, [2], "lan")
    assert (lan.links.latency_ms, lan.links.gbit_per_second, lan.node[0].cores) == (0.25, 10.0, 2)


@pytest.mark.parametrize(
    ("workers", "backend", "cores"),
    [
        (1, "manual", 2),
        (4, "manual", 5),
        (8, "manual", 10),
        (8, "manual[channels=4,policy=adaptive,static]", 12),
    ],
)
def test_a_node_has_a_core_for_each_worker_and_channel(workers: int, backend: str, cores: int) -> None:
    options = TrainingOptions(usecase="ctr", backend=backend, network="lan", workers=workers)
    (cluster,) = options.clusters([2], "2")
    assert [node.cores for node in cluster.node] == [cores, cores]


WORKED = {16: 50.0, 128: 250.0}
"""Microseconds of a worker whose rows are all local, by the floats of a row."""


def done(load: cost_model.Load, number: int, byte: float = COSTS.byte) -> Done:
    """The work of a node in a step that costs exactly what `COSTS` predicts."""
    copies, elsewhere = 100.0 * (load.technique == "replication"), 500.0 * (load.technique == "static")
    upkeep, size = (0.0, 0.0) if load.apart else (1000.0 + 500.0 * number, 1000.0 * load.length)
    channel = COSTS.intent * 900.0 + (COSTS.call + COSTS.wake) * 2.0 + COSTS.message * 20.0
    waits = 2 if load.technique == "static" else 0
    return Done(
        worked=WORKED[load.length] + COSTS.copy * copies + COSTS.elsewhere * elsewhere + COSTS.wake * waits,
        copies=copies,
        elsewhere=elsewhere,
        micros=channel + COSTS.frame * 3.0 + COSTS.upkeep * upkeep + byte * size,
        turns=2.0,
        intents=900.0,
        messages=20.0,
        upkeep=upkeep,
        frames=3.0,
        bytes=size,
    )


def under_all_loads(byte: float = COSTS.byte) -> list[list[Done]]:
    return [[done(load, number, byte) for number in (0, 1)] for load in cost_model.LOADS]


def test_costs_follow_from_calls_of_some_sizes_and_from_what_nodes_did() -> None:
    def visit(keys: int, length: int) -> float:
        return COSTS.call + COSTS.key * keys + COSTS.value * 4 * keys * length

    cases = cost_model._CASES
    visits = [visit(*case) for case in cases]
    remote = [
        visit(keys, length)
        + 3 * COSTS.call
        + 4 * keys * COSTS.message
        + 4 * COSTS.frame
        + 4 * COSTS.wake
        + 2 * keys * (32 + 4 * length) * COSTS.byte
        for keys, length in cases
    ]
    found = costs_of(visits, visits, remote, COSTS.frame, under_all_loads(), COSTS.resume, 4.0)
    for name in (one.name for one in fields(Costs)):
        assert getattr(found, name) == pytest.approx(getattr(COSTS, name), rel=1e-6), name


def test_bytes_cost_what_they_cost_where_nothing_is_in_caches() -> None:
    calls = [1.0, 2.0, 3.0]
    remote = [pull + 3 * 1.0 + 4 * 11.0 for pull in calls]
    found = costs_of(calls, calls, remote, COSTS.frame, under_all_loads(0.01), 0.0, 1.0)
    assert found.byte == pytest.approx(0.01, rel=0.01)


def test_a_table_fits_80_columns_and_a_figure_has_a_line_per_policy(tmp_path: Path) -> None:
    several = [("adaptive", found_for()), ("adaptive", found_for(4096, 12.34567))]
    several.append(("uniform[technique=full_replication]", found_for()))
    lines = table_of(several)
    assert max(map(len, lines)) <= 80
    assert lines[3].startswith("uniform[technique=ful… ")
    figure = draw_simulated(several)
    assert [len(axes.lines) for axes in figure.axes] == [2, 2]
    save_figure(figure, tmp_path / "f.png")
    assert (tmp_path / "f.png").stat().st_size > 1000


def test_nodes_are_summed_up_but_for_some() -> None:
    usual, lost = node_of(100, 2.0), node_of(50, 3.0, lost_at=3.0)
    lines = node_table(Simulation(3.0, 1, (usual, lost, usual, usual)), [1])
    assert lines[1].split()[:4] == ["1", "50", "3.000", "60.00"]
    assert lines[2].split()[:5] == ["3", "others", "300", "2.000", "20.00"]
    assert lines[3:] == ["node 1 is lost after 3.000 s"]
    ended = node_of(0, 0.0, peer_lost=1, peer_lost_at=7.5)
    lines = node_table(Simulation(0.0, 1, (ended, ended)), [0])
    assert lines[2].split()[:5] == ["1", "other", "0", "0.000", "-"]
    assert lines[3:] == ["PeerLost(1) ends 2 nodes after 7.500 s"]


@pytest.mark.parametrize(
    ("extra", "what"),
    [
        ("[synchronization]\nevery = 2", "synchronization every n steps"),
        ("[data]\nshares = [0.75, 0.25]", "shares of the data"),
    ],
)
def test_what_is_not_simulated_of_a_policy_is_refused(
    refused: Any, tmp_path: Path, extra: str, what: str
) -> None:
    rule = '[[rule]]\nparameters = "*"\n'
    (tmp_path / "p.toml").write_text(f'format = 1\nname = "p"\n\n{rule}\n{extra}\n')
    err = refused(*CTR, *GIVEN, "--nodes", "2", "--policy", "p.toml", quiet=False)
    assert err == f"backend 'autoada-automatic': p.toml: {what} is not simulated; leave it out"


@mistakes(
    """
=> for how many nodes? Give --nodes 2,4, or --resources
--nodes 2,many => --nodes 2,many: 'many' is no number of nodes from 1 to 4096
--nodes 2 --workers 0 => --workers 0: give 1 or more
--nodes 2 --network wan => unknown network 'wan'
--nodes 2 --network 1ms,0gbit => --network 1ms,0gbit: a link that carries nothing
--nodes 2 --peer-timeout 0 => --peer-timeout 0.0: give seconds, more than 0
--nodes 2 --incidents slwo[node=1] => unknown incident 'slwo': did you mean 'slow'?
--nodes 2 --incidents lost[node=1] => incident 'lost': missing required argument 'step'
--nodes 2 --incidents lost[node=1,stp=3] => unknown parameter 'stp' of incident 'lost': did you mean 'step'?
--nodes 2 --incidents lost[node=1,step=1,2] => parameter step of incident 'lost' has 2 values; give one
--nodes 4,2 --incidents lost[node=2,step=1] => --incidents: incident 'lost' is at node 2; nodes of 2 are
--nodes 2 --incidents slow[node=1,speed=-1,end=3] => --incidents: speed of a straggler is -1.0; it must be
--nodes 2 --incidents stall[node=1,step=6,ms=1] => BACKEND: an incident is at step 6 of node 1; it must be
--nodes 2 -o f.txt => --out f.txt: give a name that ends in .svg, .png, .pdf
--nodes 2 --resources no.toml => no.toml: no such file or directory
--nodes 2 -b ddp => backend 'ddp' does not use the parameter server
--nodes 2 -b manual,prefetch => --backend manual,prefetch: give one
--nodes 2 -b manual[lookahead=1,2] => --backend manual[lookahead=1,2]: give one value
--nodes 2 --policy statics => unknown policy 'statics', neither a file nor a builder
--nodes 2 -b manual[policy=static] --policy nups => --policy nups: the backend manual[policy=static] has one
--nodes 2 --policy allreduce => BACKEND: allreduce:
""".replace("BACKEND", "backend 'autoada-automatic'")
)
def test_wrong_arguments_are_one_sentence(refused: Any, arguments: tuple[str, ...], sentence: str) -> None:
    assert refused(*CTR, *GIVEN, *arguments, quiet=False).startswith(sentence)


@pytest.mark.parametrize(("option", "file"), [("--out", "no/f.svg"), ("--trace", "no/f.json")])
def test_a_file_in_a_missing_folder_is_refused_before_the_simulation(
    refused: Any, option: str, file: str
) -> None:
    err = refused(*CTR, *GIVEN, "--nodes", "2", option, file)
    assert err == f"{file} cannot be written: there is no folder no"
