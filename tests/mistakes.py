"""Tables of commands that are refused."""

import shlex
from collections.abc import Iterator

import pytest


def mistakes(table: str) -> pytest.MarkDecorator:
    """Parametrize a test by ``arguments`` and ``sentence``: one pair per line, separated by ``=>``."""
    return pytest.mark.parametrize(("arguments", "sentence"), list(_rows(table)))


def _rows(table: str) -> Iterator[object]:
    for line in filter(None, map(str.strip, table.splitlines())):
        arguments, _, sentence = line.partition("=>")
        yield pytest.param(tuple(shlex.split(arguments)), sentence.strip(), id=arguments.strip())
