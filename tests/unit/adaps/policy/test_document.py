"""Documents of policies are read and written without loss; errors in them are reported in one sentence."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adaps
from adaps.policy import (
    Admission,
    Catalogue,
    Eviction,
    Home,
    MadeFor,
    Memory,
    Parameter,
    Policy,
    PolicyError,
    RowSelection,
    Rule,
)
from tests.unit.policies import CATALOGUE, random_policy

REST = '\n[[rule]]\nparameters = "*"\n'


def test_a_thousand_random_policies_are_read_and_written_without_loss(tmp_path: Path) -> None:
    for seed in range(1000):
        policy = random_policy(random.Random(seed))
        text = policy.text()
        again = Policy.parse(text)
        assert again == policy, seed
        assert again.text() == text, seed
        file = tmp_path / "policy.toml"
        policy.write(file)
        assert Policy.read(file) == policy, seed
        assert file.read_bytes() == text.encode(), seed


def test_the_example_of_a_document_is_read() -> None:
    policy = Policy.parse(
        """
format = 1
name = "nups"
[[rule]]
parameters = "tables.*"          # qualified names
rows = { ranges = [[0, 10], [20, 30]] }
technique = "replication"
home = { shares = [0.5, 0.3, 0.2] }
lookahead = 20
exchange = 4
wire = "bfloat16"
[[rule]]
parameters = "wide.weight"
home = { with = "deep.weight" }
[[rule]]
parameters = "*"
technique = "relocation"
[synchronization]
every = 3
[data]
shares = "speed"
"""
    )
    first, second, last = policy.rules
    assert first == Rule(
        "tables.*",
        RowSelection(ranges=((0, 10), (20, 30))),
        "replication",
        Home("shares", shares=(0.5, 0.3, 0.2)),
        20,
        4,
        "bfloat16",
    )
    assert second.home == Home("with", table="deep.weight")
    assert last == Rule("*", technique="relocation")
    assert (policy.synchronization.every, policy.data.shares, policy.made_for) == (3, "speed", None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x", "it is not valid TOML"),
        ('name = "a"' + REST, "format is missing; this version reads format = 1"),
        ('format = 2\nname = "a"' + REST, "format is 2; this version reads format 1"),
        ("format = 1" + REST, "name is missing"),
        ("format = 1\nname = 3" + REST, "name is 3; it must be a text"),
        ('format = 1\nname = "a"\nrules = 1' + REST, r"has no field 'rules' \(did you mean 'rule'\?\)"),
        ('format = 1\nname = "a"', 'there is no rule; the last one must match all: parameters = "*"'),
        ('format = 1\nname = "a"\nrule = 1', "write \\[\\[rule\\]\\] above each"),
        (
            'format = 1\nname = "a"\n[[rule]]\nparameters = "b"',
            "rule 1, the last one, has parameters = 'b'; it must match all",
        ),
        (
            'format = 1\nname = "a"\n[[rule]]\nparameter = "b"' + REST,
            r"rule 1: rule has no field 'parameter' \(did you mean 'parameters'\?\)",
        ),
        ('format = 1\nname = "a"\n[[rule]]\ntechnique = "static"', "rule 1: parameters is missing"),
        ('format = 1\nname = "a"\nsynchronization = 3' + REST, "synchronization is 3; it must be a table"),
    ],
)
def test_an_invalid_document_is_refused(text: str, said: str) -> None:
    check_refused(text, said)


def check_refused(text: str, said: str) -> None:
    with pytest.raises(PolicyError, match=said) as raised:
        Policy.parse(text, source="mine.toml")
    assert str(raised.value).startswith("mine.toml: ")
    assert "\n" not in str(raised.value).partition("it is not valid TOML")[0]


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("rows = { hottest = 0.1 }", "rule 1, the last one, has rows; it must match all"),
        (
            "[synchronization]\nevry = 3",
            r"\[synchronization\]: \[synchronization\] has no field 'evry' \(did you mean 'every'\?\)",
        ),
        ("[synchronization]\nevery = -1", "every is -1; it must be an integer"),
        (
            '[synchronization]\naggregation = "median"',
            r"\[synchronization\]: aggregation is 'median' with every = 0; only gradients of the same step",
        ),
        ('[data]\nshares = "sped"', r"shares 'sped' .*did you mean 'speed'"),
        ("[data]\nshares = [0.5, 0.4]", r"\[data\]: shares add up to 0.9; they must add up to 1"),
        ("[data]\nshares = [1.0, 0.0]", r"\[data\]: shares holds 0 for node 1; every node needs samples"),
        ("[data]\nshares = 3", "shares 3 .* or a list of numbers"),
        ('[made_for]\nparameters = "sha256:12"', "64 hexadecimal digits"),
        ("[made_for]\nnodes = 0", "nodes is 0"),
    ],
)
def test_an_invalid_section_is_refused(section: str, said: str) -> None:
    check_refused(f'format = 1\nname = "a"{REST}{section}', said)


@pytest.mark.parametrize(
    ("aggregation", "said"),
    [
        ('"medain"', r"aggregation 'medain' does not exist \(did you mean 'median'\?\); valid are"),
        ("3", r"aggregation 3 does not exist"),
        ('"krum"', r"aggregation 'krum' needs faulty, how many"),
        ("{ faulty = 1 }", r"aggregation has no rule; valid are mean"),
        ('{ rule = "median", faulty = 1 }', r"aggregation 'median' takes no faulty = 1"),
        ('{ rule = "krum", faulty = 0 }', r"aggregation faulty is 0; it must be an integer of 1 or more"),
        (
            '{ rule = "krum", faulty = 1, keep = 0 }',
            r"aggregation keep is 0; it must be an integer of 1 or more",
        ),
        ('{ rule = "suspicion", faulty = 1, keep = 2 }', r"aggregation 'suspicion' takes no keep = 2"),
        ('{ rule = "krum", fualty = 1 }', r"aggregation has no field 'fualty' \(did you mean 'faulty'\?\)"),
    ],
)
def test_an_invalid_aggregation_is_refused(aggregation: str, said: str) -> None:
    section = f"[synchronization]\nevery = 1\naggregation = {aggregation}"
    check_refused(f'format = 1\nname = "a"{REST}{section}', said)


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (
            'technique = "replicaton"',
            r"technique 'replicaton' does not exist \(did you mean 'replication'\?\)",
        ),
        ("technique = 3", "technique 3 does not exist"),
        (
            "technique = 'auto'",
            "technique 'auto' does not exist; valid are adaptive, relocation, replication, static, full_repl",
        ),
        ('home = "hsh"', r"home 'hsh' does not exist \(did you mean 'hash'\?\)"),
        ("home = 3", "home is 3; it must be 'hash', 'blocks'"),
        ("home = { nod = 3 }", "field of home 'nod' does not exist"),
        ("home = { node = -1 }", "home node is -1"),
        ("home = { node = 1, shares = [1.0] }", "it must be 'hash'"),
        ("home = { shares = [0.5, 0.4] }", "home shares add up to 0.9; they must add up to 1"),
        ("home = { shares = [1.5, -0.5] }", "home shares holds -0.5"),
        ("home = { shares = [] }", "add up to 0; they must"),
        ("home = { shares = [nan] }", "home shares holds nan"),
        ("home = { shares = 'half' }", "must be a list of numbers"),
        ("home = { with = '' }", "home with is ''"),
        ("lookahead = -1", "lookahead is -1; it must be an integer of 0 or more"),
        ("lookahead = true", "lookahead is True"),
        ("exchange = 0", "exchange is 0; it must be an integer of 1 or more"),
        ("exchange = 'often'", "exchange 'often' does not exist; valid are auto or a number of clocks"),
        ("wire = 'float8'", "wire 'float8' does not exist .*did you mean"),
        (
            "evict = 'lur'",
            r"evict 'lur' does not exist \(did you mean 'lru'\?\); valid are intent, lru, lfu, {",
        ),
        ("evict = 'ttl'", "evict 'ttl' does not exist"),
        ("evict = 3", "evict 3 does not exist"),
        ("evict = {}", "evict 'ttl' needs its number of clocks"),
        ("evict = { ttl = 0 }", "evict ttl is 0; it must be an integer from 1 to 262144"),
        ("evict = { ttl = true }", "evict ttl is True"),
        ("evict = { ttl = 3, lru = 4 }", "evict has no field 'lru'; it has ttl"),
        ("memory = 2.5", "memory is 2.5; it must be a positive integer"),
        ("memory = 0", "memory is 0; it must be a positive integer"),
        ("memory = '2 gigabytes'", r"memory is '2 gigabytes'; it must be .* text such as \"2GiB\""),
        ("admit = 3", "admit is 3; it must be { seen = … }"),
        ("admit = {}", "admit seen is None; it must be an integer from 1 to 8"),
        ("admit = { seen = 9 }", "admit seen is 9; it must be an integer from 1 to 8"),
        ("admit = { sen = 2 }", r"admit has no field 'sen' \(did you mean 'seen'\?\)"),
        ("rows = 3", "rows is 3; it must be a table with one of ranges, file, hottest"),
        ("rows = {}", "rows gives nothing"),
        ("rows = { file = 'a', hottest = 0.1 }", "rows gives file and hottest"),
        ("rows = { hotest = 0.1 }", r"field of rows 'hotest' .*did you mean 'hottest'"),
        ("rows = { hottest = 0 }", "rows hottest is 0; it must be a share"),
        ("rows = { hottest = 1.1 }", "rows hottest is 1.1"),
        ("rows = { ranges = [[3, 3]] }", r"holds \[3, 3\], which is no range of rows"),
        ("rows = { ranges = [[-1, 3]] }", r"holds \[-1, 3\]"),
        ("rows = { ranges = [[5, 9], [0, 3]] }", r"holds \[0, 3\] behind row 8; they must ascend"),
        ("rows = { ranges = [3] }", "rows ranges holds 3"),
        ("rows = { ranges = [] }", "rows ranges is"),
        ("rows = { ranges = [[0, 1, 2]] }", r"rows ranges holds \[0, 1, 2\]"),
        ("rows = { ranges = [[false, true]] }", r"rows ranges holds \[False, True\]"),
        ("rows = { ranges = '' }", "rows ranges is ''"),
        ("rows = { ranges = '0:3 4-6' }", "rows ranges holds '4-6'; it must be first:end"),
        ("rows = { ranges = '0:3 :6' }", "rows ranges holds ':6'"),
        ("rows = { ranges = '5:9 0:3' }", r"holds \[0, 3\] behind row 8; they must ascend"),
    ],
)
def test_what_is_wrong_with_a_field_is_said_with_its_rule(field: str, said: str) -> None:
    text = (
        f'format = 1\nname = "a"\n[[rule]]\nparameters = "a"\n\n[[rule]]\nparameters = "b"\n{field}\n{REST}'
    )
    with pytest.raises(PolicyError, match=f"^mine.toml: rule 2: .*{said}"):
        Policy.parse(text, source="mine.toml")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"none.toml: no such file"):
        Policy.read(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes('name = "ä"'.encode("latin-1"))
    with pytest.raises(PolicyError, match=r"latin.toml: it is not UTF-8"):
        Policy.read(tmp_path / "latin.toml")
    with pytest.raises(PolicyError, match=r": is a directory"):
        Policy.read(tmp_path)


def fitting(rules: list[Rule], nodes: int = 2, **fields: Any) -> None:
    Policy("a", [*rules, Rule("*")], **fields).check(CATALOGUE, nodes)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (Rule("deep.weights"), r"unknown parameter 'deep.weights' \(did you mean 'deep.weight'\?\)"),
        (Rule("deeper.*"), "parameters 'deeper.\\*' matches no parameter"),
        (
            Rule("deep.weight", RowSelection(ranges=((5, 101),))),
            "rows names row 100; deep.weight has 100, from 0 to 99",
        ),
        (Rule("dense", RowSelection(ranges=((5, 9),))), "rows names row 8; mlp.0.weight has 8"),
        (
            Rule("*.weight", technique="allreduce"),
            "allreduce' is for dense parameters; wide.weight is a table",
        ),
        (Rule("tables", home=Home("node", node=2)), "home node is 2; there are 2 nodes, from 0 to 1"),
        (Rule("tables", home=Home("shares", shares=(1.0,))), "home shares has 1 numbers for 2 nodes"),
        (
            Rule("deep.weight", home=Home("with", table="wide.weights")),
            r"unknown parameter 'wide.weights' \(did you mean 'wide.weight'",
        ),
        (Rule("deep.weight", home=Home("with", table="mlp.0.bias")), "has 100 rows and mlp.0.bias 8"),
        (Rule("deep.weight", home=Home("with", table="deep.weight")), "follows deep.weight, which follows"),
        (
            Rule("deep.weight", evict=Eviction("lru")),
            'evict = "lru" is for tables with ids; deep.weight is a table without ids',
        ),
        (
            Rule("mlp.*", evict=Eviction("ttl", 9)),
            "evict = { ttl = 9 } is for tables with ids; mlp.0.weight is a dense parameter: give evict in",
        ),
        (
            Rule("mlp.*", memory=Memory(2 << 20)),
            'memory = "2MiB" is for tables; mlp.0.weight is a dense parameter: give memory in',
        ),
        (Rule("tables", admit=Admission(3)), "admit = { seen = 3 } is for tables with ids; wide.weight"),
    ],
)
def test_a_policy_that_does_not_fit_is_refused(rule: Rule, said: str) -> None:
    with pytest.raises(PolicyError, match=f"the policy: rule 1: .*{said}"):
        fitting([rule])


def test_all_rows_of_a_table_with_ids_have_one_order_and_one_admission() -> None:
    catalogue = Catalogue.of_shapes([("items", (10, 2)), ("users", (10, 2))], ["items", "users"], ["items"])
    first = Rule("items", RowSelection(ranges=((0, 5),)), evict=Eviction("lru"))
    Policy("a", [replace(first, rows=None), Rule("*")]).check(catalogue, 1)
    for rest in (Rule("items"), Rule("items", evict=Eviction("lfu"))):
        with pytest.raises(PolicyError, match="rules 1 and 2 give rows of items different values of evict"):
            Policy("a", [first, rest, Rule("*")]).check(catalogue, 1)
    Policy("a", [first, Rule("items", evict=Eviction("lru")), Rule("*")]).check(catalogue, 1)
    limited = replace(first, evict=None, memory=Memory(99))
    with pytest.raises(PolicyError, match=r"different values of memory, but the rows share the memory"):
        Policy("a", [limited, Rule("items"), Rule("*")]).check(catalogue, 1)


def test_memory_is_written_in_its_largest_unit() -> None:
    for given, written in (("2048KiB", "2MiB"), ("1.5GiB", "1536MiB"), (1000, "1000B")):
        rule = Rule("tables", memory=Memory.of(given))
        assert f'memory = "{written}"' in rule.text()
        assert Rule("tables", memory=Memory.of(written)) == rule


def test_a_policy_for_another_model_or_cluster_is_refused_or_forced() -> None:
    other = Catalogue(CATALOGUE.parameters[:2])
    policy = Policy("a", [Rule("*")], MadeFor(other.sha256, 2))
    with pytest.raises(PolicyError, match="made for another model"):
        policy.check(CATALOGUE, 2)
    with pytest.raises(PolicyError, match="made for 2 nodes, not 4"):
        policy.check(other, 4)
    policy.check(other, 2)
    policy.check(CATALOGUE, 4, force=True)


def test_kinds_and_patterns_name_parameters_and_the_first_rule_counts() -> None:
    policy = Policy(
        "a",
        [
            Rule("tables.w*", RowSelection(ranges=((0, 10), (50, 60)))),
            Rule("tables", RowSelection(ranges=((5, 20),))),
            Rule("dense.*.bias"),
            Rule("*"),
        ],
    )
    wide, deep, weight, bias = policy.managed(CATALOGUE)
    assert [(part.rule, part.ranges) for part in wide.parts] == [
        (1, ((0, 10), (50, 60))),
        (2, ((10, 20),)),
        (4, ((20, 50), (60, 100))),
    ]
    assert [(part.rule, part.count) for part in deep.parts] == [(2, 15), (4, 85)]
    assert [part.rule for part in weight.parts] == [4]
    assert [part.rule for part in bias.parts] == [3]
    for row, number in ((0, 1), (9, 1), (10, 2), (20, 4), (55, 1), (99, 4)):
        assert policy.rule_number(CATALOGUE, "wide.weight", row) == number
    with pytest.raises(PolicyError, match=r"wide\.weight has no row 100; it has 100, from 0 to 99"):
        policy.rule_number(CATALOGUE, "wide.weight", 100)


def test_parts_are_all_rows_once_and_those_that_a_search_row_by_row_finds() -> None:
    for seed in range(100):
        random_ = random.Random(seed)
        rules = []
        for _ in range(random_.randrange(4)):
            ends = sorted(random_.sample(range(101), 2 * random_.randrange(1, 6)))
            ranges = tuple(zip(ends[::2], ends[1::2], strict=True))
            name = random_.choice(["tables", "*", "deep.weight", "wide.weight"])
            rules.append(Rule(name, random_.choice([None, RowSelection(ranges=ranges)])))
        policy = Policy("a", [*rules, Rule("*")])
        for one in policy.managed(CATALOGUE):
            found = np.zeros(one.parameter.rows, dtype=int)
            for part in one.parts:
                for start, end in part.ranges:
                    assert (found[start:end] == 0).all(), seed
                    found[start:end] = part.rule
            row_by_row = [policy.rule_number(CATALOGUE, one.parameter.name, row) for row in range(len(found))]
            assert found.tolist() == row_by_row, seed


def test_many_ranges_are_written_as_a_text() -> None:
    few, many = (tuple((2 * i, 2 * i + 1) for i in range(count)) for count in (20, 21))
    for ranges, text in ((few, "ranges = [[0, 1], [2, 3], "), (many, "ranges = '0:1 2:3 ")):
        policy = Policy("a", [Rule("deep.weight", RowSelection(ranges=ranges)), Rule("*")])
        assert text in policy.text()
        assert Policy.parse(policy.text()) == policy
    assert RowSelection.of({"ranges": "0:1 2:3"}) == RowSelection(ranges=((0, 1), (2, 3)))


def test_what_a_policy_leads_to_is_that_of_the_model_that_is_asked_about() -> None:
    policy = Policy("a", [Rule("deep.weight", RowSelection(ranges=((3, 5),)), "static"), Rule("*")])
    other = Catalogue([Parameter("deep.weight", 7, 4, "table"), Parameter("b", 2, 4, "table")])
    found = policy.managed(CATALOGUE)
    assert [part.ranges for part in policy.managed(other)[0].parts] == [((3, 5),), ((0, 3), (5, 7))]
    assert policy.managed(CATALOGUE) == found
    found.clear()  # the caller's own list
    assert [one.parameter for one in policy.managed(CATALOGUE)] == list(CATALOGUE.parameters)


def test_rows_of_a_file_are_looked_for_beside_the_policy(tmp_path: Path) -> None:
    np.save(tmp_path / "hot.npy", np.array([7, 3, 4, 3]))
    Policy("a", [Rule("deep.weight", RowSelection(file="hot.npy")), Rule("*")]).write(tmp_path / "p.toml")
    policy = Policy.read(tmp_path / "p.toml")
    deep = policy.managed(CATALOGUE)[1]
    assert (deep.parts[0].rule, deep.parts[0].ranges) == (1, ((3, 5), (7, 8)))
    np.save(tmp_path / "hot.npy", np.array([100]))
    with pytest.raises(PolicyError, match="rule 1: rows names row 100"):
        policy.check(CATALOGUE, 2)
    for wrong, said in (
        (np.array([0.5]), r"holds float64 of shape \(1,\); it must hold one dimension of integers"),
        (np.array([[1, 2]]), r"holds int64 of shape \(1, 2\); it must hold one dimension of integers"),
        (np.array([], dtype=np.int64), r"holds int64 of shape \(0,\); .*at least one"),
        (np.array([-2]), "holds -2"),
    ):
        np.save(tmp_path / "hot.npy", wrong)
        with pytest.raises(PolicyError, match=said):
            policy.check(CATALOGUE, 2)
    (tmp_path / "hot.npy").write_bytes(b"no array")
    with pytest.raises(PolicyError, match=r"p.toml: rule 1: rows file .*hot.npy cannot be read"):
        policy.check(CATALOGUE, 2)


def test_the_hottest_rows_become_ranges_where_counts_are_known() -> None:
    counts = np.zeros(100, dtype=np.int64)
    counts[[3, 4, 90]] = [5, 9, 7]
    measured = Catalogue(CATALOGUE.parameters, {"deep.weight": counts}, 10)
    policy = Policy("a", [Rule("deep.*", RowSelection(hottest=0.03), "replication"), Rule("*")])
    resolved = policy.resolved(measured)
    assert resolved.rules[0] == Rule("deep.weight", RowSelection(ranges=((3, 5), (90, 91))), "replication")
    assert resolved.made_for == MadeFor(CATALOGUE.sha256, None)
    with pytest.raises(PolicyError, match=r"rule 1: rows hottest needs access counts of wide\.weight"):
        Policy("a", [Rule("tables", RowSelection(hottest=0.5)), Rule("*")]).resolved(measured)
    with pytest.raises(PolicyError, match="rows hottest needs access counts"):
        policy.managed(measured)


def test_a_catalogue_is_known_by_names_rows_lengths_and_kinds() -> None:
    shapes = [("a", (3, 2)), ("b", ())]
    base = Catalogue.of_shapes(shapes, ["a"])
    assert base.sha256 == Catalogue.of_shapes(shapes, ["a"]).sha256
    others = [
        Catalogue.of_shapes([("a", (3, 2)), ("c", ())], ["a"]),
        Catalogue.of_shapes([("a", (2, 3)), ("b", ())], ["a"]),
        Catalogue.of_shapes(shapes, []),
    ]
    assert len({base.sha256, *(other.sha256 for other in others)}) == 4
    assert base.parameters[1].rows == base.parameters[1].length == 1
    with pytest.raises(PolicyError, match="there is no parameter 'aa'"):
        Catalogue.of_shapes(shapes, ["aa"])
    with pytest.raises(PolicyError, match="access counts of a are of 2 rows; it has 3"):
        Catalogue(base.parameters, {"a": np.zeros(2, np.int64)})


def test_names_of_the_package() -> None:
    assert adaps.Policy is Policy
    assert issubclass(adaps.PolicyError, ValueError)
    assert Policy.uniform("static").rules == (Rule("*", technique="static"),)
