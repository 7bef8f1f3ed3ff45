"""Models of other libraries train as without the parameter server, and their reads are announced."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adabench.harness.launch.fork_server import ForkServer
from tests.conftest import reports_of_ranks

from .case import Case
from .suite import LIBRARIES
from .trial import observe

RANKS = 2
MISSING = [name for name, library in LIBRARIES.items() if not library.installed]
LEFT_OUT = f"models of {', '.join(MISSING)} are left out: `make models` installs these libraries"
ALL = [
    pytest.param(
        name, case, id=f"{name}: {case.name}", marks=[pytest.mark.skip(LEFT_OUT)] if name in MISSING else []
    )
    for name, library in LIBRARIES.items()
    for case in library.cases()
]
THIRD_PARTY = sum(len(library.cases()) for library in LIBRARIES.values() if library.package is not None)
BEFORE_IT_GROWS = 3
"""Steps for which even sensitive models show no rounding differences."""
PLACE = re.compile(r"\.py:\d+")
"""The place that every message names."""
REMEDY = re.compile("look up these rows|all are announced|give AdaDataLoader")
"""The advice in a message, or the remark that no action is needed."""

Trials = Callable[[str, str], tuple[dict[str, Any], list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def trials(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, warm: ForkServer
) -> Trials:
    """The observations of a case, alone and on both nodes; trains all selected cases of its library."""
    selected: dict[str, list[str]] = defaultdict(list)
    for item in request.session.items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if "case" in parameters:
            selected[parameters["library"]].append(parameters["case"].name)
    done: dict[str, list[dict[str, Any]]] = {}

    def of_case(library: str, case: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        if library not in done:
            folder: Path = tmp_path_factory.mktemp(library)
            arguments = {
                "library": library,
                "cases": selected[library],
                "device": request.config.getoption("device"),
            }
            done[library], _ = reports_of_ranks(warm, folder, observe, RANKS, 600.0, arguments)
        reports = done[library]
        alone = next(report["alone"][case] for report in reports if case in report["alone"])
        return alone, [report["together"][case] for report in reports]

    return of_case


@pytest.mark.parametrize(("library", "case"), ALL)
def test_losses_are_those_of_plain_pytorch_and_rows_are_announced(
    library: str, case: Case, trials: Trials
) -> None:
    alone, together = trials(library, case.name)
    for seen in (alone, *together):
        assert "failed" not in seen, seen["failed"]
    for losses in ("wrapped", "unpredicted"):
        if case.sensitive:
            assert_no_more_than_rounding(alone, losses)
        else:
            assert alone[losses] == pytest.approx(alone["plain"], abs=1e-5, rel=1e-5)
    assert alone["other_rows"] == {}
    for seen in together:
        assert {name: seen[name] for name in ("exact_from", "kept", "on_demand")} == {
            "exact_from": case.expected.exact_from,
            "kept": list(case.expected.kept),
            "on_demand": list(case.expected.on_demand),
        }
        if case.expected.told is not None:
            assert_told(seen["told"], case.expected.told)


def assert_no_more_than_rounding(seen: dict[str, Any], losses: str) -> None:
    """Losses are the same before differences grow, and then not further off than from the next floats."""
    plain, wrapped = seen["plain"], seen[losses]
    assert wrapped[:BEFORE_IT_GROWS] == pytest.approx(plain[:BEFORE_IT_GROWS], abs=1e-5, rel=1e-5)
    reach = max(abs(a - b) for a, b in zip(plain, seen["nearby"], strict=True))
    assert wrapped == pytest.approx(plain, abs=4 * reach)


def assert_told(told: list[str], expected: tuple[str, ...]) -> None:
    """Check that each message is expected, names a place and gives advice, and that none is missing."""
    told = [message for message in told if "also has one of this name" not in message]
    unmatched = list(told)
    for pattern in expected:
        found = [message for message in unmatched if re.search(pattern, message)]
        assert found, f"nothing like {pattern!r} was said, but {told}"
        unmatched.remove(found[0])
    assert unmatched == []
    for message in told:
        assert PLACE.search(message), f"no place: {message}"
        assert REMEDY.search(message), f"no remedy: {message}"


def test_the_suite_is_as_large_as_it_says() -> None:
    assert len(ALL) >= 60
    assert THIRD_PARTY >= 40


def test_messages_that_were_not_expected_or_say_too_little_are_found() -> None:
    useful = "'w' is read in full, at model.py:3: all are announced"
    assert_told([useful], ("read in full",))
    for told, expected in (([useful], ()), ([], ("read in full",)), (["it is read in full"], ("in full",))):
        with pytest.raises(AssertionError):
            assert_told(told, expected)


def test_library_models_can_be_listed_without_the_libraries() -> None:
    names = [(parameter.values[0], parameter.values[1].name) for parameter in ALL]  # type: ignore[union-attr]
    assert len(set(names)) == len(names)
    json.dumps(names)
