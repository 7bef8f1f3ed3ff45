"""Plug-ins that import the interfaces by their old names still work, and are warned."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import adabench.backends.interface
import adabench.backends.policies.interface
import adabench.usecases.interface
import adaps.policy
import adaps.policy.limits
from adabench.backends.interface import WorkerContext
from adabench.backends.policies import resources
from adabench.backends.strategies import manual
from adabench.harness.plugins.registry import names


@pytest.mark.parametrize(
    ("old", "name", "new"),
    [
        ("adabench.backends.protocol", "ServerOptions", adabench.backends.interface.ServerOptions),
        ("adabench.backends.protocol", "Cluster", adabench.backends.interface.WorkerContext),
        ("adabench.backends.protocol", "Session", adabench.backends.interface.TrainingSession),
        ("adabench.backends.protocol", "Straggler", adaps.Straggler),
        ("adabench.backends.manual", "ManualSession", manual.ManualSession),
        ("adabench.backends.policies.protocol", "Builder", adabench.backends.policies.interface.Builder),
        ("adabench.backends.policies.protocol", "Node", resources.Node),
        ("adabench.backends.policies.protocol", "Rule", adaps.policy.Rule),
        ("adabench.backends.policies.protocol", "not_executed", adaps.policy.limits.not_executed),
        ("adabench.usecases.protocol", "Loaders", adabench.usecases.interface.Loaders),
    ],
)
def test_old_name_forwards_with_a_warning(old: str, name: str, new: object) -> None:
    module = importlib.import_module(old)
    with pytest.warns(DeprecationWarning, match=rf"{old}\.{name} is now .*; the old name will") as warned:
        assert getattr(module, name) is new
    assert Path(warned[0].filename) == Path(__file__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = module.nothing


def test_context_still_shares_objects_by_its_old_method() -> None:
    context = WorkerContext(0, 1, 0, 1, 1, "loopback", lambda make: make())
    with pytest.warns(DeprecationWarning, match="share is now called per_process"):
        assert context.share(lambda: "made") == "made"


def test_old_names_are_no_plugins() -> None:
    assert not {"protocol", "interface"} & {*names("backend"), *names("policy"), *names("usecase")}
