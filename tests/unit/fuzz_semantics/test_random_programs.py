"""Random programs are equal to plain PyTorch when they are wrapped, or refused; and they find mistakes."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz_semantics.grammar import random_program
from tests.fuzz_semantics.mutants import MUTANTS, programs_until_found
from tests.fuzz_semantics.outcome import judge, quiet, run
from tests.fuzz_semantics.program import Program, Statement, compiled
from tests.fuzz_semantics.shrink import shrunk
from tests.fuzz_semantics.two_nodes import Pair

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = 300
CHUNKS = 6
QUICK = ("padding_trains", "writes_are_lost", "view_is_a_row_off", "rows_are_stale", "gradient_counts_twice",
         "gradient_rows_are_added", "hooks_are_not_called", "random_number_is_consumed", "last_batch_is_lost",
         "schedules_are_ignored", "state_is_not_loaded", "copies_are_of_zeros")  # fmt: skip


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    logger = logging.getLogger("autoada")
    level = logger.level
    quiet()
    yield
    logger.setLevel(level)  # later tests of the process examine the log


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_programs_are_equal_or_refused(chunk: int) -> None:
    bugs = {}
    for seed in range(chunk, PROGRAMS, CHUNKS):
        outcome = judge(random_program(seed))
        if outcome.is_bug:
            bugs[seed] = f"{outcome.kind}: {outcome.detail}"
    assert not bugs, f"python -m tests.fuzz_semantics --seed {min(bugs)} --programs 1 shows one of {bugs}"


def test_programs_on_two_nodes_are_equal_or_refused() -> None:
    pair = Pair()
    try:
        outcomes = {seed: pair.judge(random_program(seed, 2)) for seed in range(20)}
    finally:
        pair.end()
    bugs = {seed: f"{one.kind}: {one.detail}" for seed, one in outcomes.items() if one.is_bug}
    assert not bugs, f"python -m tests.fuzz_semantics --nodes 2 --seed {min(bugs)} --programs 1: {bugs}"


def test_mistakes_are_found() -> None:
    mutants = {name: MUTANTS[name] for name in QUICK}
    found = {name for name, *_ in programs_until_found(mutants, iter(range(200)))}
    assert found == set(QUICK)


def test_a_program_of_a_seed_is_always_the_same() -> None:
    assert [random_program(seed).source() for seed in range(20)] == [
        random_program(seed).source() for seed in range(20)
    ]
    assert len({random_program(seed).source() for seed in range(20)}) == 20


def test_most_programs_are_valid_in_plain_pytorch() -> None:
    errors = [run(compiled(random_program(seed).source()), wrapped=False).error for seed in range(100)]
    assert sum(error is not None for error in errors) < 20


def test_a_failing_program_is_shrunk_to_its_cause() -> None:
    program = random_program(0)
    cause = Statement("bottom", "see({'cause': 1.0 if wrapped else 2.0})")
    program = program.with_statements((*program.statements, cause))

    outcome = judge(program)
    small = shrunk(program, outcome, lambda candidate: judge(candidate, trusted=True))
    assert outcome.kind == "DIFFERENT"
    assert [one.text for one in small.statements if one.section == "bottom"] == [cause.text]
    assert len(small.statements) <= 5


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("raise ValueError('sparse' if wrapped else 'plain')", "invalid"),
        ("see(1.0 if wrapped else 1.1)", "DIFFERENT"),
        ("see(1.0 if wrapped else 1.0 + 1e-7)", "equal"),
        ("if wrapped:\n    torch.zeros(2) + torch.zeros(3)", "OBSCURE ERROR"),
        ("if wrapped:\n    aa.AdaDataLoader([], -1)", "refused"),
        ("if wrapped:\n    aa.unwrap(net)", "refused"),
        ("if wrapped:\n    aa.AdaDataLoader()", "OBSCURE ERROR"),
    ],
)
def test_outcomes_are_told_apart(statement: str, kind: str) -> None:
    small = [
        Statement("data", "inputs, targets = torch.randint(0, 10, (4, 4)), torch.rand(4, 1)"),
        Statement("optimizers", "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)", "optimizer"),
        Statement("loader", "loader = [(inputs, targets)]"),
        Statement("bottom", statement),
    ]
    assert judge(Program(0, tuple(small))).kind == kind


def test_the_command_prints_counts_and_ends_with_an_exit_code() -> None:
    command = [sys.executable, "-m", "tests.fuzz_semantics", "--programs", "3", "--jobs", "1", "--bugs", "0"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.stdout.startswith("3 programs in ")
    assert result.returncode == (1 if " DIFFERENT" in result.stdout or " OBSCURE" in result.stdout else 0)


def test_every_mutant_describes_its_mistake() -> None:
    assert len(MUTANTS) >= 20
    assert all(make.__doc__ and make.__doc__.endswith(".") for make in MUTANTS.values())
    assert len({make.__doc__ for make in MUTANTS.values()}) == len(MUTANTS)
