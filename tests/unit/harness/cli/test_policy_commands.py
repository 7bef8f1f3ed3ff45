"""The commands about policies: their output, and one sentence and exit code 2 for mistakes."""

from pathlib import Path
from typing import Any

import pytest

from adabench.backends.policies.resources import Node, Resources
from adabench.harness.machine import measure_cluster
from adabench.harness.machine.link_probe import Probe
from adaps.policy import Policy
from tests.mistakes import mistakes

CTR = ("-u", "ctr[rows=4096,vocabulary=50,batch=64,dim=4]")


def test_a_policy_is_built_shown_checked_explained_and_compared(said: Any) -> None:
    code, out, err = said("accesses", *CTR, "--nodes", "2")
    assert (code, err) == (0, "")
    assert out.startswith("accesses-ctr.npz: ")
    about = (*CTR, "--nodes", "2", "--accesses", "accesses-ctr.npz")
    assert said("policy", "build", "nups[times=1.2]", *about, "-o", "p.toml") == (0, "p.toml\n", "")
    written = Policy.read("p.toml")
    assert said("policy", "build", "nups[times=1.2]", *about)[1] == written.text()

    code, out, err = said("policy", "show", "p.toml", *about)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split()[:2] == ["parameter", "rows"]
    assert sum(line.startswith("deep.weight") for line in lines) == 1
    at = next(number for number, line in enumerate(lines) if line.startswith("deep.weight"))
    hot, others = (line.split()[-5:-2] for line in lines[at : at + 2])
    assert (hot, others) == (["3", "replication", '"hash"'], ["4", "relocation", '"hash"'])
    assert "not executed" not in out

    code, out, err = said("policy", "check", "p.toml", *about)
    assert (code, err) == (0, "")
    assert out.startswith("nups: fits 10 parameters on 2 nodes\n")

    chosen = written.rules[2].rows
    assert chosen is not None
    assert chosen.ranges is not None
    first = chosen.ranges[0][0]
    code, out, err = said("policy", "explain", "p.toml", "deep.weight", str(first), *about)
    assert (code, err) == (0, "")
    assert out.splitlines()[:3] == [
        "rule 1: dense does not name deep.weight, which is a table of rows",
        "rule 2: wide.weight does not name deep.weight, which is a table of rows",
        f"rule 3: deep.weight names deep.weight, rows of which {first} is one: this is the one",
    ]
    outside = next(row for row in range(1300) if written.rule_number(_catalogue(), "deep.weight", row) == 4)
    out = said("policy", "explain", "p.toml", "deep.weight", str(outside), *about)[1]
    assert f"rule 3: deep.weight names deep.weight, but row {outside} is not one of the rule's rows" in out
    assert "rule 4: * names deep.weight, all rows: this is the one" in out

    assert said("policy", "diff", "p.toml", "p.toml") == (0, "", "")
    assert said("policy", "build", "lapse", *about, "-o", "q.toml")[0] == 0
    code, out, _ = said("policy", "diff", "p.toml", "q.toml")
    assert code == 1
    assert '-technique = "replication"' in out
    code, out, _ = said("policy", "diff", "p.toml", "lapse", *about)
    assert code == 1
    assert 'mlp.0.bias, all rows: replication, home "hash" → relocation, home "hash"' in out
    assert f"deep.weight, rows {first}–" in out
    assert said("policy", "diff", "lapse", "q.toml", *about) == (0, "", "")


def _catalogue() -> Any:
    from adabench.harness.study.model_parameters import model_parameters_of, usecase_from

    return model_parameters_of(usecase_from(CTR[1], None, 0))


def write_mine(text: str) -> tuple[str, ...]:
    """Write a policy with this additional text; returns it as arguments of `check` and `show`."""
    rest = '[[rule]]\nparameters = "*"\n'
    Path("mine.toml").write_text(f'format = 1\nname = "mine"\n{text}\n{rest}')
    return ("mine.toml", *CTR, "--nodes", "2")


@pytest.mark.parametrize(
    ("parameters", "more", "sentence"),
    [
        ("deep.weights", "", "unknown parameter 'deep.weights' (did you mean 'deep.weight'?); there are "),
        ("deep.weight", "rows = { ranges = [[0, 99999]] }", "rows names row 99998; deep.weight has "),
        ("deep.weight", "home = { shares = [0.5, 0.4] }", "home shares add up to 0.9; they must add up"),
        (
            "tables",
            'technique = "allreduce"',
            "technique 'allreduce' is for dense parameters; wide.weight is",
        ),
        ("deep.weight", "rows = { hottest = 0.1 }", "rows hottest needs access counts of deep.weight: `adab"),
    ],
)
def test_a_mistake_in_a_rule_is_one_sentence(refused: Any, parameters: str, more: str, sentence: str) -> None:
    mine = write_mine(f'[[rule]]\nparameters = "{parameters}"\n{more}')
    for command in ("check", "show"):
        assert refused("policy", command, *mine).startswith(f"mine.toml: rule 1: {sentence}")


@pytest.mark.parametrize(
    ("made_for", "sentence"),
    [
        (f'parameters = "sha256:{"0" * 64}"', "it was made for another model"),
        ("nodes = 3", "it was made for 3 nodes, not 2"),
    ],
)
def test_a_policy_for_another_job_is_only_taken_by_force(
    said: Any, refused: Any, made_for: str, sentence: str
) -> None:
    mine = write_mine(f"[made_for]\n{made_for}")
    for command in ("check", "show"):
        assert refused("policy", command, *mine).startswith(f"mine.toml: {sentence}")
    assert said("policy", "check", *mine, "--force")[0] == 0


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("policy", "network"),
    [
        ("adaptive", "loopback"),
        ("petuum", "loopback"),
        ("allreduce", "lan"),
        ("robust[aggregation=krum,faulty=1]", "loopback"),
        ("robust[aggregation=median,faulty=1]", "loopback"),
        ("random[seed=3]", "loopback"),
        ("random[seed=4]", "loopback"),
        ("mine.toml", "loopback"),
    ],
)
def test_a_check_refuses_the_policies_that_a_run_refuses(
    said: Any, policy: str, network: str, workers: int
) -> None:
    write_mine("[data]\nshares = [0.999, 0.001]")
    settings = ("--nodes", "2", "--workers", f"{workers}", "--network", network)
    checked, _, complaint = said("policy", "check", policy, *CTR[:2], *settings[:4], "--network", network)
    planned, _, refusal = said("plan", *CTR, "-b", f"autoada-automatic[policy={policy}]", *settings)
    assert checked == planned
    assert (checked, refusal) == (0, "") or complaint.removeprefix("error: ") in refusal


@mistakes(
    """
policy check static CTR => for how many nodes? Give --nodes 2
policy check static CTR --nodes 0 => --nodes 0: give 1 or more
policy check staic CTR --nodes 2 => unknown policy 'staic', neither a file nor a builder
policy check static -u ctrr --nodes 2 => unknown use case 'ctrr'
policy check static -u ctr,gcn --nodes 2 => 'ctr,gcn' is not one use case
policy check static CTR --resources none.toml => none.toml: no such file
policy check nups CTR --nodes 2 => nups needs access counts of wide.weight
policy check nups CTR --nodes 2 --accesses no.npz => no.npz cannot be read
policy explain static deep.weights 3 CTR --nodes 2 => unknown parameter 'deep.weights'
policy explain static mlp.4.bias 1 CTR --nodes 2 => mlp.4.bias has no row 1
policy diff static lapse => static is no file: a builder needs --usecase
policy build static CTR --nodes 2 -o no/p.toml => no/p.toml cannot be written
accesses CTR --workers 0 => --workers 0: give 1 or more
accesses CTR -o no/a.npz => no/a.npz cannot be written
resources --nodes 0 => --nodes 0: give 1 or more
resources --network lan => --network lan: only the parameter server delays its messages like this
resources --network wan => unknown network 'wan'
""".replace("CTR", " ".join(CTR))
)
def test_wrong_arguments_are_one_sentence(refused: Any, arguments: tuple[str, ...], sentence: str) -> None:
    assert refused(*arguments).startswith(sentence)


def test_resources_are_measured_here(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_cluster, "_SECONDS", 0.01)
    code, out, err = said("resources", "--nodes", "3", "-o", "r.toml")
    assert (code, out, err) == (0, "r.toml: 3 nodes\n", "")
    found = Resources.read("r.toml")
    assert found.nodes == 3
    assert found.node[0].cores >= 1
    assert found.node[0].memory > 0
    assert found.links.latency_ms > 0
    assert found.link == ()
    assert said("policy", "check", "uneven", *CTR, "--resources", "r.toml")[0] == 0
    assert said("resources")[1].count("[[node]]") == 1


def test_links_that_differ_are_exceptions() -> None:
    node = Node()
    like, unlike = Probe(0.2, 10.0), Probe(2.0, 9.5)
    found = measure_cluster.resources_of([node] * 3, {(0, 1): like, (0, 2): unlike, (1, 2): like})
    assert (found.links.latency_ms, found.links.gbit_per_second) == (0.1, 10.0)
    assert [one.between for one in found.link] == [(0, 2)]
    assert found.between(2, 0).latency_ms == 1.0
