"""Fixtures for unit tests."""

from __future__ import annotations

from pathlib import Path

import pytest

import adaps
from autoada import adoption

from .checkpoints import table, train


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said once per process counts as said: messages do not depend on the tests before."""
    monkeypatch.setattr(adoption, "_told", _Everything())


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The directory of a checkpoint after four steps."""
    with adaps.Node([table()]) as node:
        train(node, 0, 4)
        node.checkpoint(tmp_path / "saved", extra={"step": 4})
    return tmp_path / "saved"


class _Everything(set[str]):
    def __contains__(self, sentence: object) -> bool:
        return True
