"""How a model's parameters lie in the tables of the parameter server."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

import torch
from torch import nn

import adaps
from autoada.access.tables import find_tables
from autoada.optimizers import Optimizers, RuleGroup, rule_groups
from autoada.parameter import TableParameter

BLOCK_LENGTHS = (1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1)
DEVICES = ("cpu", "cuda")
"""Where a model can be."""
PADDING = 0.25
"""The longest block is used whose padding costs at most this share of the dense parameters."""


@dataclass(frozen=True)
class DenseLayout:
    """Where the dense parameters of one rule lie: each starts at a block.

    Attributes
    ----------
    table : str
        The server's table of blocks.
    length : int
        Floats in a block.
    names : tuple of str
        Qualified parameter names.
    first_blocks, blocks : tuple of int
        First block and number of blocks of each.
    """

    table: str
    length: int
    names: tuple[str, ...]
    first_blocks: tuple[int, ...]
    blocks: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Number of blocks."""
        return self.first_blocks[-1] + self.blocks[-1]


@dataclass(frozen=True)
class Layout:
    """All of a model's parameters in the server's tables.

    Attributes
    ----------
    tables : dict of str to nn.Parameter
        Parameters that are tables of their own, by qualified name.
    dense : tuple of DenseLayout
        All others.
    groups : list of RuleGroup
        The rules; `rules` gives the number of the group of each server table.
    device : torch.device
        Where the dense parameters are and rows are wanted.
    """

    tables: dict[str, nn.Parameter]
    dense: tuple[DenseLayout, ...]
    groups: list[RuleGroup]
    rules: dict[str, int]
    device: torch.device

    def server_tables(self) -> list[adaps.Table]:
        """What the server has to be made with."""
        result = []
        for name, parameter in self.tables.items():
            shape = parameter.shape
            # a weight without memory starts at what nn.Embedding draws, row by row when it is first touched
            init: Any = (
                adaps.Normal(0.0, 1.0, seed=torch.initial_seed())
                if parameter.is_meta
                else adaps.Constant(0.0)
            )
            rule = self.groups[self.rules[name]].rule
            result.append(adaps.Table(name, rows=shape[0], length=prod(shape[1:]), optimizer=rule, init=init))
        for dense in self.dense:
            rule = self.groups[self.rules[dense.table]].rule
            result.append(adaps.Table(dense.table, rows=dense.rows, length=dense.length, optimizer=rule))
        return result


def layout_of(
    model: nn.Module, optimizer: Optimizers | None = None, tables: Iterable[str] | None = None
) -> Layout:
    """Lay out the parameters of `model`; equal models have equal layouts.

    Raises
    ------
    ValueError
        If the model is wrapped already, a parameter is not float32, parameters are not on one device, or the
        optimizer leaves one out or has no rule in the server.
    """
    for name, parameter in model.named_parameters():
        if isinstance(parameter, TableParameter):
            raise ValueError(f"the model is wrapped already: {name!r} is in a parameter server")
    groups = rule_groups(optimizer)
    sparse = find_tables(model, tables)
    device = _device_of(model, sparse)
    rules: dict[str, int] = {}
    members: list[dict[str, nn.Parameter]] = [{} for _ in groups]
    for name, parameter in model.named_parameters():
        if parameter.dtype is not torch.float32:
            raise ValueError(
                f"the parameter {name!r} is {parameter.dtype}: the parameter server holds torch.float32"
            )
        group = next((i for i, g in enumerate(groups) if g.holds(parameter)), None)
        if group is None and parameter.requires_grad:
            raise ValueError(
                f"the optimizer does not have the parameter {name!r}: build it on all of the model's"
            )
        if name in sparse:
            rules[name] = group or 0
        else:
            members[group or 0][name] = parameter
    dense = tuple(_dense_layout(f"dense.{i}", group) for i, group in enumerate(members) if group)
    rules |= {f"dense.{i}": i for i, group in enumerate(members) if group}
    return Layout(sparse, dense, groups, rules, device)


def create_node(
    model: nn.Module,
    optimizer: Optimizers | None = None,
    *,
    tables: Iterable[str] | None = None,
    **options: Any,
) -> adaps.Node:
    """The node for `AdaModel`s of `model`, shared by this process's worker threads.

    Parameters
    ----------
    model, optimizer, tables
        As for `AdaModel`. Only shapes and rules are taken; the model is not changed.
    **options
        Further arguments of `adaps.Node`, such as ``workers``.
    """
    return adaps.Node(layout_of(model, optimizer, tables).server_tables(), **options)


def _device_of(model: nn.Module, tables: Container[str]) -> torch.device:
    """The one device of the dense parameters; a table may also be on the CPU or without memory."""
    named = list(model.named_parameters())
    dense = [(name, p.device) for name, p in named if name not in tables]
    of_tables = [(name, p.device) for name, p in named if name in tables and not p.is_meta]
    elsewhere = [(name, device) for name, device in of_tables if device.type != "cpu"]
    first = next(iter([*dense, *elsewhere]), ("", torch.device("cpu")))
    for name, device in [*dense, *elsewhere]:
        if device.type not in DEVICES:
            raise ValueError(
                f"the parameter {name!r} is on {device}: AdaModel takes models on the CPU or a CUDA device"
            )
        if device != first[1]:
            raise ValueError(
                f"the parameter {first[0]!r} is on {first[1]} and {name!r} on {device}: AdaModel takes "
                "models on one device"
            )
    return first[1]


def _dense_layout(table: str, parameters: dict[str, nn.Parameter]) -> DenseLayout:
    sizes = [max(1, parameter.numel()) for parameter in parameters.values()]
    length = next(length for length in BLOCK_LENGTHS if _padded(sizes, length) <= (1 + PADDING) * sum(sizes))
    blocks = [ceil(size / length) for size in sizes]
    starts = [sum(blocks[:i]) for i in range(len(blocks))]
    return DenseLayout(table, length, tuple(parameters), tuple(starts), tuple(blocks))


def _padded(sizes: Sequence[int], length: int) -> int:
    return sum(ceil(size / length) * length for size in sizes)
