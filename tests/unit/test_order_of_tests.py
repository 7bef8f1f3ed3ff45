"""Tests that take long come before the others, so that several processes are done at the same time."""

from types import SimpleNamespace
from typing import Any

from tests.conftest import LONG, ROOT, pytest_collection_modifyitems


def test_every_name_is_that_of_some_tests() -> None:
    files = [file.relative_to(ROOT).as_posix() for file in (ROOT / "tests").rglob("test_*.py")]
    assert [begin for begin in LONG if not any(file.startswith(begin) for file in files)] == []


def test_the_order_is_that_of_the_names_and_else_stays() -> None:
    given = ["tests/unit/test_b.py::one", f"{LONG[1]}::two", "tests/unit/test_a.py::one", f"{LONG[1]}::one"]
    items: Any = [SimpleNamespace(nodeid=name) for name in [*given, f"{LONG[0]}::one"]]
    pytest_collection_modifyitems(items)
    assert [item.nodeid for item in items] == [f"{LONG[0]}::one", given[1], given[3], given[0], given[2]]
