"""``adabench search``: its table, the policy that it writes, and mistakes."""

from pathlib import Path
from typing import Any

import pytest

from adabench.backends.policies.resources import Node, Resources
from adaps.policy import Catalogue, Parameter, Policy, PolicyError, Rule
from tests.mistakes import mistakes

CTR = "ctr[rows=1500,vocabulary=50,batch=64,dim=4,hidden=8]"
SEARCH = ("search", "-u", CTR, "--step", "2", "--steps", "12", "--effort", "0.1", "--dry-run")
TWO = ("--nodes", "2", "--network", "slow")


def test_candidates_are_listed_and_the_best_is_written_with_its_evidence(said: Any, tmp_path: Path) -> None:
    code, out, err = said(*SEARCH, *TWO, "--builders", "adaptive,static", "-o", "best.toml")
    assert (code, err) == (0, "")
    first, head, *lines = out.splitlines()
    assert first == f"{CTR}, autoada-automatic, 2 nodes: a step computes for 2 ms, as given"
    assert head.split()[:3] == ["candidate", "predicted", "simulated"]
    assert max(map(len, out.splitlines()[1:])) <= 80
    names = [line.split("  ")[0] for line in lines if line and not line.startswith(" ")]
    assert {"found", "tables relocation", "adaptive", "static"} <= set(names)
    assert names.index("found") < names.index("static")  # which waits, a millisecond each way
    assert lines[-1] == "best.toml"
    policy = Policy.read(tmp_path / "best.toml")
    assert policy.evidence["searched_for"] == f"time of {CTR}"
    assert float(policy.evidence["simulated_ms_per_step"]) > 2  # type: ignore[arg-type]
    tried = policy.evidence["tried"]
    assert isinstance(tried, tuple)
    assert tried[0].startswith(f"{policy.evidence['candidate']}: ")
    assert len(tried) == len([name for name in names if not name.endswith((":", "toml"))])
    assert Policy.parse(policy.text()) == policy  # nothing is lost
    assert said("policy", "check", "best.toml", "-u", CTR, "--nodes", "2")[0] == 0
    assert said("policy", "show", "best.toml", "-u", CTR, "--nodes", "2")[0] == 0


def test_bytes_are_least_where_they_are_asked_for(said: Any) -> None:
    sent = {}
    for objective in ("time", "bytes"):
        code, out, _ = said(*SEARCH, *TWO, "--objective", objective, "--builders", "")
        assert code == 0
        sent[objective] = [float(_kilobytes(line)) for line in out.splitlines()[2:] if " ms " in line]
    assert sent["bytes"][0] == min(sent["bytes"])
    assert sent["bytes"][0] <= sent["time"][0]


def test_memory_that_nothing_keeps_is_refused_with_the_least_that_would_do(said: Any, refused: Any) -> None:
    err = refused(*SEARCH, *TWO, "--memory", "0.01", quiet=False)
    sentence = "every policy exceeds the limit of 0.01 MiB per node: the smallest limit that suffices is "
    assert err.startswith(sentence)
    least = float(err.removeprefix(sentence).split()[0])
    assert said(*SEARCH, *TWO, "--memory", str(0.98 * least), "--builders", "")[0] == 2
    code, out, _ = said(*SEARCH, *TWO, "--memory", str(1.02 * least), "--builders", "")
    assert code == 0
    held = [float(line.split()[-1]) for line in out.splitlines()[2:] if " ms " in line]
    assert max(held) <= 1.02 * least + 0.01


def test_what_resources_say_counts(said: Any, tmp_path: Path) -> None:
    small = Resources(node=(Node(cores=2, memory=2000),) * 2, steps={CTR: 2.5})
    (tmp_path / "r.toml").write_text(small.text())
    arguments = [one for one in SEARCH if one not in ("--step", "2")]
    code, _, err = said(*arguments, "--resources", "r.toml")
    assert (code, "every policy exceeds the limit of 0.001907 MiB per node" in err) == (2, True)


@pytest.mark.parametrize("speeds", [(2.0, 1.0, 1.0), (1.0, 1.0, 2.0), (1.0, 0.001)])
def test_trial_runs_are_refused_on_nodes_that_cannot_be_imitated(
    said: Any, tmp_path: Path, speeds: tuple[float, ...]
) -> None:
    (tmp_path / "r.toml").write_text(Resources(node=tuple(Node(speed=speed) for speed in speeds)).text())
    code, out, err = said("search", "-u", CTR, "--step", "2", "--resources", "r.toml")
    assert (code, err.count("\n")) == (2, 1)
    told = ", ".join(f"{speed:g}" for speed in speeds)
    assert err.endswith(f"and not the speeds {told}: give --dry-run\n")
    assert "simulated" not in out


@mistakes(
    """
=> for how many nodes? Give --nodes 4, or --resources
--nodes 0 => --nodes 0: give 1 or more
TWO --solver exakt => unknown solver 'exakt': did you mean 'exact'?
TWO --objective money => --objective money: valid are time, bytes
TWO --wires float32,int4 => --wires int4: valid are float32, bfloat16, float16, int8
TWO --memory -1 => --memory -1.0: give MiB, more than 0
TWO -b ddp => backend 'ddp' does not use the parameter server
TWO --builders nupps => unknown policy 'nupps', neither a file nor a builder
TWO -o no/best.toml => no/best.toml cannot be written: no such file or directory
""".replace("TWO", " ".join(TWO))
)
def test_mistakes_are_one_sentence(refused: Any, arguments: tuple[str, ...], sentence: str) -> None:
    assert refused(*SEARCH, *arguments, quiet=False).startswith(sentence)


def test_a_folder_that_cannot_be_made_is_refused_before_the_search(refused: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    arguments = [one for one in SEARCH if one != "--dry-run"]
    sentence = "file/search-policies cannot be written (Not a directory): make it writable"
    assert refused(*arguments, *TWO, "--results", "file").startswith(sentence)


def test_an_effort_of_nothing_is_refused(refused: Any) -> None:
    sentence = "--effort 0.0: give a number above 0, and at most 1000"
    assert refused("search", "-u", CTR, *TWO, "--effort", "0", "--dry-run") == sentence


@pytest.mark.parametrize(
    ("evidence", "message"),
    [
        ({"a b": "x"}, "'a b' is not a name of letters, digits and underscores"),
        ({"a": True}, "a is True; it must be a text, a finite number or a list of texts"),
        ({"a": float("nan")}, "a is nan; it must be"),
        ({"a": ["x", 1]}, "a is ['x', 1]; it must be"),
    ],
)
def test_evidence_that_could_not_be_read_again_is_refused(evidence: Any, message: str) -> None:
    with pytest.raises(PolicyError) as raised:
        Policy("p", [Rule("*")], evidence=evidence)
    assert message in str(raised.value)


def test_evidence_is_read_as_it_was_written_and_kept_by_what_resolves_a_policy() -> None:
    policy = Policy("p", [Rule("*")], evidence={"why": 'because "so"', "ms": 1.25, "n": 3, "all": ["a", "ü"]})
    assert Policy.parse(policy.text()) == policy
    assert Policy.parse(policy.text()).text() == policy.text()
    assert policy.resolved(Catalogue([Parameter("a", 1, 1, "dense")])).evidence == policy.evidence
    with pytest.raises(PolicyError, match="evidence is 3; it must be a table"):
        Policy.parse('format = 1\nname = "p"\nevidence = 3\n[[rule]]\nparameters = "*"\n')


def _kilobytes(line: str) -> str:
    """The last but one number: kilobytes of the simulation."""
    return line.split()[-2].replace(",", "")
