"""Builders of policies, the resources that they read, and the predicted costs of a policy."""

import random
import sys
from pathlib import Path

import numpy as np
import pytest

from adabench import backends
from adabench.backends import policies
from adabench.backends.policies.resources import Link, LinkBetween, Node, Resources, ResourcesError
from adabench.harness.errors import UsageError
from adabench.harness.plugins import registry
from adabench.harness.study.model_parameters import (
    count_accesses,
    model_parameters_of,
    read_accesses,
    usecase_from,
    write_accesses,
)
from adabench.harness.study.policies import bytes_per_node, local_share, policy_from, resources_from
from adaps.policy import Catalogue, Home, Policy, PolicyError, RowSelection, Rule
from adaps.policy.limits import not_executed
from tests.unit.policies import CATALOGUE

BUILDERS = sorted(registry.names("policy"))
NODES = Resources(node=(Node(speed=3.0), Node(speed=1.0)))
COUNTS = np.r_[np.full(4, 5000), np.ones(96)].astype(np.int64)
ROW_HOMES = np.zeros(100, dtype=np.int32)
MEASURED = Catalogue(
    CATALOGUE.parameters,
    {"wide.weight": COUNTS, "deep.weight": COUNTS},
    5000,
    {"wide.weight": ROW_HOMES, "deep.weight": ROW_HOMES},
)


def test_there_is_a_builder_for_each_idea() -> None:
    assert {
        *("static", "balanced", "partitioned", "uneven", "allreduce", "parallax"),
        *("lapse", "nups", "petuum", "adaptive", "random", "uniform", "placed", "robust"),
        "limited",
    } == set(BUILDERS)


@pytest.mark.parametrize("name", BUILDERS)
def test_a_builder_makes_a_policy_that_fits_and_is_the_same_every_time(name: str) -> None:
    for nodes in (1, 2, 5):
        resources = Resources.alike(nodes)
        policy = policy_from(name, MEASURED, resources)
        policy.check(MEASURED, nodes)
        assert policy.name == name
        assert policy == policy_from(name, MEASURED, resources)
        assert Policy.parse(policy.text()) == policy
        with pytest.raises(PolicyError, match="made for another model"):
            policy.check(Catalogue(CATALOGUE.parameters[1:]), nodes)
        with pytest.raises(PolicyError, match=f"made for {nodes} nodes"):
            policy.check(MEASURED, nodes + 1)
        kept = bytes_per_node(policy, MEASURED, nodes)
        for one in MEASURED.parameters:
            copies = sum(kept[one.name]) / one.bytes
            assert copies == pytest.approx(1) or copies == pytest.approx(nodes)


def test_what_builders_decide() -> None:
    def rules(name: str) -> list[Rule]:
        return list(policy_from(name, MEASURED, NODES).rules)

    assert rules("static") == [Rule("*", technique="static")]
    assert rules("partitioned") == [Rule("*", technique="static", home=Home("blocks"))]
    assert rules("uneven") == [Rule("*", technique="static", home=Home("shares", shares=(0.75, 0.25)))]
    assert policy_from("uneven", MEASURED, NODES).data.shares == (0.75, 0.25)
    assert rules("lapse") == [Rule("*", technique="relocation")]
    assert rules("uniform[technique=replication]") == [Rule("*", technique="replication")]
    assert rules("adaptive") == [Rule("*", technique="adaptive")]
    assert rules("allreduce") == [
        Rule("dense", technique="allreduce"),
        Rule("*", technique="full_replication"),
    ]
    assert policy_from("parallax", MEASURED, NODES).synchronization.every == 1
    assert policy_from("petuum[staleness=7]", MEASURED, NODES).synchronization.every == 7
    assert rules("random[seed=1]") != rules("random[seed=2]")


def test_balanced_gives_each_parameter_to_the_node_with_least_for_its_speed() -> None:
    # bytes: 400, 6400, 512, 32; node 0 is three times as fast
    policy = policy_from("balanced", CATALOGUE, NODES)
    assert [rule.home.node for rule in policy.rules[:-1]] == [0, 1, 0, 0]
    # each access reads 64 bytes of deep.weight, and each step 4.02 rows of each table
    policy = policy_from("balanced", MEASURED, NODES)
    assert [rule.home.node for rule in policy.rules[:-1]] == [0, 1, 0, 0]
    assert policy.rules[-1] == Rule("*", technique="static")


def test_parallax_copies_tables_of_which_copies_send_less() -> None:
    def copied(nodes: int, option: str, wide: int, deep: int) -> list[str]:
        counts = {"wide.weight": np.full(100, wide), "deep.weight": np.full(100, deep)}
        catalogue = Catalogue(CATALOGUE.parameters, counts, 1000)
        policy = policy_from(f"parallax[{option}]", catalogue, Resources.alike(nodes))
        assert policy.rules[0] == Rule("dense", technique="allreduce")
        assert policy.rules[-1] == Rule("*", technique="static")
        assert {rule.technique for rule in policy.rules[1:-1]} <= {"full_replication"}
        return [rule.parameters for rule in policy.rules[1:-1]]

    # Each access to a remote row costs 64 bytes for messages and twice its floats. A copy costs 28 bytes and
    # the floats of a change, and 16 bytes and the floats of a refresh, which include the optimizer state.
    assert copied(2, "state=0", 10, 10) == ["wide.weight", "deep.weight"]
    assert copied(2, "state=1", 10, 10) == ["wide.weight"]
    assert copied(2, "state=1", 1000, 1000) == ["wide.weight"]
    # With more nodes, a change is sent to more of them, unless all of them read the row anyway.
    assert copied(4, "state=0", 10, 10) == []
    assert copied(4, "state=0", 10, 1000) == ["deep.weight"]
    assert copied(4, "state=0", 1000, 10) == ["wide.weight"]
    with pytest.raises(UsageError, match=r"parallax needs access counts of wide\.weight, deep\.weight: `ada"):
        policy_from("parallax", CATALOGUE, NODES)
    with pytest.raises(UsageError, match="state is -1: it must be 0 or more"):
        policy_from("parallax[state=-1]", MEASURED, NODES)


def test_nups_replicates_rows_that_are_far_hotter_than_the_mean() -> None:
    # the mean is 200.96
    policy = policy_from("nups[times=20]", MEASURED, NODES)
    hot = RowSelection(ranges=((0, 4),))
    assert list(policy.rules) == [
        Rule("dense", technique="replication"),
        Rule("wide.weight", hot, "replication"),
        Rule("deep.weight", hot, "replication"),
        Rule("*", technique="relocation"),
    ]
    assert len(policy_from("nups[times=25]", MEASURED, NODES).rules) == 2
    with pytest.raises(
        UsageError, match=r"nups needs access counts of wide\.weight, deep\.weight: `adabench acc"
    ):
        policy_from("nups", CATALOGUE, NODES)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("staic", "unknown policy 'staic', neither a file nor a builder: did you mean 'static'"),
        ("none.toml", "none.toml: no such file"),
        ("nups[time=3]", "unknown parameter 'time' of builder 'nups': did you mean 'times'"),
        ("nups[times=0]", "times is 0.0: it must be a positive number"),
        ("nups[times=1,2]", "is not one policy"),
        ("petuum[staleness=0]", "staleness is 0: it must be 1 or more"),
    ],
)
def test_a_policy_that_is_none_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said.replace("[", r"\[")):
        policy_from(text, MEASURED, NODES)


def test_a_builder_that_is_dropped_in_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "class B:\n    name = 'mine'; Options = int; build = None\n\nBUILDER = B\n"
    (tmp_path / "mine.py").write_text(source)
    (tmp_path / "broken.py").write_text("BUILDER = 3\n")
    monkeypatch.setattr(policies, "__path__", [*policies.__path__, str(tmp_path)])
    assert {"mine", "broken", "static"} <= set(registry.names("policy"))
    assert registry.load_builder("mine").name == "mine"
    with pytest.raises(UsageError, match="builder of policies 'staticc': did you mean 'static'"):
        registry.load_builder("staticc")
    with pytest.raises(UsageError, match="lacks name, Options, build of the policy protocol"):
        registry.load_builder("broken")
    for name in ("mine", "broken"):
        sys.modules.pop(f"adabench.backends.policies.{name}", None)
    assert not {"policies", "mine"} & set(registry.names("backend"))
    assert backends.__path__


def test_resources_are_read_as_they_are_written(tmp_path: Path) -> None:
    file = tmp_path / "r.toml"
    for seed in range(100):
        random_ = random.Random(seed)
        count = random_.randrange(1, 5)
        nodes = tuple(
            Node(
                address=random_.choice(["10.0.0.1", 'a"b\n', "::1"]),
                cores=random_.randrange(1, 99),
                speed=random_.random() + 0.01,
                memory=random_.randrange(2**40),
                accelerators=("NVIDIA H100",) * random_.randrange(3),
            )
            for _ in range(count)
        )
        pairs = [(a, b) for a in range(count) for b in range(a + 1, count) if random_.random() < 0.5]
        links = tuple(LinkBetween(between=pair, latency_ms=0.25, gbit_per_second=2.0) for pair in pairs)
        default = Link(latency_ms=random_.random(), gbit_per_second=1e-3 + random_.random())
        resources = Resources(node=nodes, links=default, link=links)
        file.write_text(resources.text())
        assert Resources.read(file) == resources, seed
        for pair in pairs:
            assert resources.between(*pair[::-1]).latency_ms == 0.25
    assert resources_from(file, None) == resources
    with pytest.raises(UsageError, match=f"describes {count}; leave one"):
        resources_from(file, count + 1)
    with pytest.raises(UsageError, match="for how many nodes"):
        resources_from(None, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "format is missing"),
        ("format = 2\n[[node]]", "format is 2; this version reads format 1"),
        ("format = 1", "missing required field `node`"),
        ("format = 1\nnode = []", "length >= 1"),
        ("format = 1\n[[node]]\nspeed = 0", "> 0"),
        ("format = 1\n[[node]]\nsped = 1", "unknown field `sped`"),
        ("format = 1\n[[node]]\n[[link]]\nbetween=[0,1]\nlatency_ms=1\ngbit_per_second=1", "names node 1"),
        ("format = 1\n[[node]]\n[[link]]\nbetween=[0,0]\nlatency_ms=1\ngbit_per_second=1", "and itself"),
        ("format = 1\n[[node]]\n[costs]\ncals = 1", "has unknown cals; its fields are call, wake"),
        ("x", "it is not valid TOML"),
        pytest.param("x = " + 10_000 * "[", "it is nested too deeply", id="nested"),
    ],
)
def test_resources_that_are_wrong_are_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "r.toml"
    file.write_text(text)
    with pytest.raises(ResourcesError, match=f"r.toml: .*{said}"):
        Resources.read(file)
    with pytest.raises(ResourcesError, match=r"none.toml: no such file"):
        Resources.read(tmp_path / "none.toml")


def test_accesses_are_those_of_the_batches(tmp_path: Path) -> None:
    usecase = usecase_from("ctr[rows=4096,vocabulary=50,batch=64]", None, 3)
    measured = count_accesses(usecase, 2, 2)
    found = np.zeros_like(measured.accesses["deep.weight"])
    batches = 0
    for worker in range(2):
        # the epochs of one loader, as training has them
        train = usecase_from("ctr[rows=4096,vocabulary=50,batch=64]", None, 3).loaders(worker, 2).train
        for _ in range(2):
            for batch in train:
                batches += 1
                for row in set(batch.ids.flatten().tolist()):
                    found[row] += 1
    assert batches == measured.batches > 0
    for name in ("wide.weight", "deep.weight"):
        assert (measured.accesses[name] == found).all()
    file = tmp_path / "a.npz"
    write_accesses(file, measured)
    again = read_accesses(file, model_parameters_of(usecase))
    assert again.batches == batches
    assert {name: counts.tolist() for name, counts in again.accesses.items()} == {
        name: counts.tolist() for name, counts in measured.accesses.items()
    }
    assert {name: homes.tolist() for name, homes in again.homes.items()} == {
        name: homes.tolist() for name, homes in measured.homes.items()
    }
    before = file.read_bytes()
    write_accesses(file, measured)
    assert file.read_bytes() == before
    with pytest.raises(UsageError, match="access counts of another model"):
        read_accesses(file, CATALOGUE)
    file.write_bytes(before[:200])
    with pytest.raises(UsageError, match="holds no access counts"):
        read_accesses(file, CATALOGUE)
    file.write_bytes(b"")
    with pytest.raises(UsageError, match="holds no access counts"):
        read_accesses(file, CATALOGUE)
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_accesses(tmp_path / "none", CATALOGUE)


@pytest.mark.parametrize(
    ("usecase", "tables"), [("ctr", {"wide.weight", "deep.weight"}), ("gcn", {"embedding.weight"})]
)
def test_the_catalogue_of_a_use_case_names_the_tables_that_autoada_finds(
    usecase: str, tables: set[str]
) -> None:
    from autoada.parameters.layout import layout_of

    found = usecase_from(usecase, None, 1)
    catalogue = model_parameters_of(found)
    assert {one.name for one in catalogue.parameters if one.kind == "table"} == tables
    model = found.model()
    assert set(layout_of(model, found.optimizer(model)).tables) == tables
    assert [one.name for one in catalogue.parameters] == [name for name, _ in model.named_parameters()]


def test_local_shares() -> None:
    policy = Policy(
        "a", [Rule("wide.weight", technique="static"), Rule("deep.weight", technique="relocation"), Rule("*")]
    )
    wide, deep, dense, _ = MEASURED.parameters
    assert local_share(policy, 1, wide, MEASURED, 4) == 0.25
    assert local_share(policy, 2, deep, CATALOGUE, 4) is None
    assert local_share(policy, 2, dense, MEASURED, 4) == 0.25
    assert local_share(policy, 3, deep, MEASURED, 4) == 1
    assert local_share(policy, 1, wide, MEASURED, 1) == 1
    placed = [
        Rule("deep.weight", RowSelection(ranges=((0, 4),)), "static", Home("node", node=1)),
        Rule("deep.weight", technique="static", home=Home("node", node=0)),
        Rule("wide.weight", technique="static", home=Home("with", table="deep.weight")),
        Rule("*", technique="static"),
    ]
    shares = [
        local_share(Policy("b", placed), rule, one, MEASURED, 4)
        for rule, one in ((1, deep), (2, deep), (3, wide), (4, dense))
    ]
    assert shares == [None, 0.25, None, 0.25]
    # four rows that every batch of both nodes reads, and 96 that nearly no other does
    share = local_share(policy, 2, deep, MEASURED, 2)
    assert share == pytest.approx((20000 * 0.5 + 96 * (1 - 0.5 * 20 / 5000)) / 20096, abs=1e-4)


def test_what_the_server_does_not_execute_is_said() -> None:
    assert not_executed(policy_from("balanced", MEASURED, NODES), MEASURED) == []
    text = """
format = 1
name = "much"
[[rule]]
parameters = "deep.weight"
rows = { ranges = [[0, 3]] }
technique = "static"
lookahead = 3
exchange = 2
wire = "int8"
[[rule]]
parameters = "dense"
technique = "allreduce"
wire = "int8"
[[rule]]
parameters = "*"
[synchronization]
every = 4
[data]
shares = "speed"
"""
    said = not_executed(Policy.parse(text), CATALOGUE)
    expected = (
        *(
            "exchange of deep.weight has no effect",
            "wire of mlp.0.weight has no effect with technique 'allreduce'",
            "shares = 'speed' needs the speed of each node",
        ),
    )
    assert len(said) == len(expected)
    for words in expected:
        assert sum(words in sentence for sentence in said) == 1, words


def test_placed_rows_are_at_home_where_they_are_read_most() -> None:
    usecase = usecase_from("kge[triples=2000,batch=32,negatives=1,placement=greedy]", None, 3)
    measured = count_accesses(usecase, 4, 1, nodes=2)
    apart = [np.zeros_like(measured.accesses["entities.weight"]) for _ in range(2)]
    for worker in range(4):
        for batch in usecase.loaders(worker, 4).train:
            rows = set(usecase.keys(batch)["entities.weight"].flatten().tolist())
            apart[worker // 2][list(rows)] += 1
    expected = np.where(apart[1] > apart[0], 1, np.where(apart[0] > 0, 0, -1))
    homes = measured.homes["entities.weight"]
    assert np.array_equal(homes, expected)
    policy = policy_from("placed", measured, Resources.alike(2))
    for row in range(0, len(homes), 7):
        rule = policy.rules[policy.rule_number(measured, "entities.weight", row) - 1]
        said = rule.home.node if rule.home.scheme == "node" else -1
        assert (said, rule.technique) == (homes[row], "static")
    assert not_executed(policy, measured) == []
    few = policy_from("placed[rows=5,technique=adaptive]", measured, Resources.alike(2))
    named = [rule for rule in few.rules if rule.rows is not None and rule.parameters == "entities.weight"]
    ranges = [span for rule in named if rule.rows is not None for span in rule.rows.ranges or ()]
    assert sum(end - start for start, end in ranges) == 5
    assert {rule.technique for rule in named} == {"adaptive"}
    with pytest.raises(UsageError, match="counted for more nodes, with a number 1; there are 1"):
        policy_from("placed", measured, Resources.alike(1))
    with pytest.raises(UsageError, match="placed needs to know which node reads rows of ent"):
        policy_from("placed", Catalogue(measured.parameters), Resources.alike(2))
    with pytest.raises(UsageError, match="rows is 0: it must be 1 or more"):
        policy_from("placed[rows=0]", measured, Resources.alike(2))
    with pytest.raises(PolicyError, match=r"homes of entities\.weight are of 3 rows; it has"):
        Catalogue(measured.parameters, measured.accesses, 1, {"entities.weight": homes[:3]})
