"""Each operation of PyTorch with a table in place of a tensor is equal to PyTorch, or refused."""

import pytest

from tests.operations.cases import OPERATIONS, cases_of
from tests.operations.page import PAGE, listed, outcomes
from tests.operations.trials import try_cases


@pytest.fixture(scope="module")
def page() -> dict[str, dict[str, str]]:
    return listed(PAGE.read_text(encoding="utf-8"))


@pytest.mark.filterwarnings("ignore")  # PyTorch's samples use what PyTorch deprecates
@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_on_a_table_is_equal_or_refused(
    name: str, full: bool, page: dict[str, dict[str, str]]
) -> None:
    trials = try_cases(list(cases_of(name, everything=full)))
    different = [
        f"{one.case.use}: {one.case.label}: {one.text}" for one in trials if one.outcome == "different"
    ]
    assert not different
    if not full:
        assert page.get(name, {}) == outcomes(name, trials)


def test_page_lists_no_other_operations(page: dict[str, dict[str, str]]) -> None:
    assert page.keys() <= OPERATIONS.keys()
