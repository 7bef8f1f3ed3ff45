"""Layout of a model's parameters in the tables of the parameter server."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, prod
from typing import Any

import torch
from torch import Tensor, nn

import adaps
from adaps.optimizers import Optimizer as Rule
from autoada.hash_embedding import HashEmbedding
from autoada.optimizer.rules import (
    FOR_TABLES,
    Optimizers,
    RuleGroup,
    check_state,
    rule_groups,
    rule_of_defaults,
)
from autoada.parameters.negative_sampler import sampling_of
from autoada.parameters.table_parameter import TableParameter
from autoada.prediction.tables import find_tables, hash_embeddings

BLOCK_LENGTHS = (1024, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1)
DEVICES = ("cpu", "cuda")
"""Types of devices that a model can be on."""
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
"""Dtypes that parameters can have. The server keeps all of them as float32."""
TURNS = 3
"""Number of places for sums of gradients: one in use, one that may still be read, one being cleared."""
PADDING = 0.25
"""Maximum padding of blocks, as a share of the dense parameters. The longest possible block is used."""


@dataclass(frozen=True)
class DenseLayout:
    """Place of the dense parameters of one rule and dtype: each starts at a block.

    A block has `length` floats.
    """

    table: str
    length: int
    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    first_blocks: tuple[int, ...]
    blocks: tuple[int, ...]
    dtype: torch.dtype

    @property
    def rows(self) -> int:
        """Number of blocks."""
        return self.first_blocks[-1] + self.blocks[-1]

    @staticmethod
    def of(
        table: str, parameters: Mapping[str, nn.Parameter], dtype: torch.dtype, length: int
    ) -> DenseLayout:
        """Place parameters one after the other in blocks of `length` floats."""
        shapes = tuple(parameter.shape for parameter in parameters.values())
        blocks = [ceil(max(1, shape.numel()) / length) for shape in shapes]
        starts = accumulate(blocks[:-1], initial=0)
        return DenseLayout(table, length, tuple(parameters), shapes, tuple(starts), tuple(blocks), dtype)

    def views(self, buffer: Tensor) -> list[Tensor]:
        """Return the parameters' views of a buffer of shape ``(rows, length)``."""
        return [
            buffer[first : first + count].view(-1)[: shape.numel()].view(shape)
            for shape, first, count in zip(self.shapes, self.first_blocks, self.blocks, strict=True)
        ]

    @property
    def summed_rows(self) -> int:
        """Number of blocks, with one more float per parameter for the number of workers with a gradient."""
        return self.rows + ceil(len(self.names) / self.length)


@dataclass(frozen=True)
class AllReducedLayout:
    """Dense parameters of one optimizer that stay on each node, and whose gradients are all-reduced."""

    name: str
    names: tuple[str, ...]
    optimizer: torch.optim.Optimizer


@dataclass(frozen=True)
class Layout:
    """Place of all parameters of a model: in the server's tables, or all-reduced."""

    tables: dict[str, nn.Parameter]
    """Parameters that have separate tables, by qualified name."""
    hashed: dict[str, HashEmbedding]
    """Modules of the tables whose rows are found by ids."""
    dense: tuple[DenseLayout, ...]
    """Other parameters that the server's rules change."""
    summed: tuple[DenseLayout, ...]
    """Other parameters, which the user's own optimizer changes with sums of the server."""
    allreduced: tuple[AllReducedLayout, ...]
    """Dense parameters that have no place in the server."""
    groups: list[RuleGroup]
    """Rules of the parameters. The last group has the parameters without an optimizer, if there are any,
    because a group that is added later may train them."""
    rules: dict[str, int]
    """Index of the group of each server table."""
    device: torch.device
    """Device of the dense parameters and of the pulled rows."""
    obstacles: dict[str, str]
    """Reasons why parameters that should have separate tables have none, by qualified name."""

    def group_of(self, table: str) -> RuleGroup:
        """Return the rule of a server table."""
        return self.groups[self.rules[table]]

    def optimizer_of(self, table: str) -> torch.optim.Optimizer:
        """Return the user's optimizer, which changes the parameters of a table of sums."""
        return _stepping_optimizer(self.groups, self.rules[table], table)

    def server_tables(self, row_dtype: str = "float32") -> list[adaps.Table]:
        """Return the tables of the server.

        Parameters
        ----------
        row_dtype : {"float32", "bfloat16"}
            Type of the values of the model's tables in the server's memory. All other tables are float32.
        """
        result = []
        for name, parameter in self.tables.items():
            rule = self.group_of(name).server_rule
            rows, length = parameter.shape[0], prod(parameter.shape[1:])
            place: dict[str, Any] = {"rows": rows, "init": adaps.Constant(0.0)}
            if name in self.hashed:
                place = {"keys": "int64", "capacity": rows, "init": self.hashed[name].init}
            elif parameter.is_meta:  # as nn.Embedding draws, row by row when it is first touched
                place["init"] = adaps.Normal(0.0, 1.0, seed=torch.initial_seed())
            place["sampling"] = sampling_of(parameter)
            result.append(adaps.Table(name, length=length, optimizer=rule, dtype=row_dtype, **place))
        for dense in self.dense:
            rule = self.group_of(dense.table).server_rule
            result.append(adaps.Table(dense.table, rows=dense.rows, length=dense.length, optimizer=rule))
        return result + [
            adaps.Table(summed.table, rows=TURNS * summed.summed_rows, length=summed.length)
            for summed in self.summed
        ]


def layout_of(
    model: nn.Module,
    optimizer: Optimizers | Rule | None = None,
    tables: Iterable[str] | None = None,
    allreduced: Container[str] = (),
) -> Layout:
    """Lay out the parameters of `model`; equal models have equal layouts.

    Raises
    ------
    ValueError
        If the model is wrapped already, the weight of a `HashEmbedding` has another use, a parameter is of a
        dtype that the server cannot keep, parameters are not on one device, the server has no place for an
        optimizer's state or for a table that must be there, or no optimizer can step a parameter outside of
        the server.
    """
    for name, parameter in model.named_parameters():
        if isinstance(parameter, TableParameter):
            raise ValueError(f"the model is wrapped already: {name!r} is in a parameter server")
    groups = rule_groups(optimizer, {id(parameter): name for name, parameter in model.named_parameters()})
    idle = {id(p) for p in model.parameters() if not any(group.holds(p) for group in groups)}
    if idle:
        groups.append(RuleGroup(rule_of_defaults(groups), frozenset(idle)))
    number_of = {
        name: next(i for i, group in enumerate(groups) if group.holds(parameter))
        for name, parameter in model.named_parameters()
    }
    outside = _outside_of_server(model, {name: groups[number] for name, number in number_of.items()})
    sparse, hashed = find_tables(model, tables), hash_embeddings(model)
    obstacles = {name: reason for name, reason in outside.items() if name in sparse}
    for name, reason in obstacles.items():
        if sparse.pop(name).is_meta or name in hashed:
            raise ValueError(f"the rows of {name!r} can only be in the parameter server, but {reason}")
    device = _device_of(model, sparse)
    rules: dict[str, int] = {}
    members: dict[tuple[int, bool, str], dict[str, nn.Parameter]] = {}
    stepped: dict[torch.optim.Optimizer, list[str]] = {}
    for name, parameter in model.named_parameters():
        if parameter.dtype not in DTYPES:
            raise ValueError(
                f"the parameter {name!r} is {parameter.dtype}: it must be float32, float64, float16 or "
                "bfloat16, which the parameter server stores as float32"
            )
        number, own = number_of[name], name in outside
        group = groups[number]
        if name not in allreduced and group.optimizer is not None and not own:
            state = group.optimizer.state.get(parameter, {})
            check_state(name, parameter.shape, state, group.server_rule)
        if name in sparse:
            rules[name] = number
        elif name in allreduced:
            stepped.setdefault(_stepping_optimizer(groups, number, name), []).append(name)
        else:
            if own:
                _stepping_optimizer(groups, number, name)
            dtype = str(parameter.dtype).removeprefix("torch.")
            suffix = "" if dtype == "float32" else f".{dtype}"
            # A parameter without an optimizer may later be added to a separate group.
            place = f"none.{name}" if id(parameter) in idle else f"{number}{suffix}"
            table = f"shared.{place}" if own else f"dense.{place}"
            members.setdefault((number, own, table), {})[name] = parameter
    dense: list[DenseLayout] = []
    summed: list[DenseLayout] = []
    for number, own, table in sorted(members):
        (summed if own else dense).append(_dense_layout(table, members[number, own, table]))
        rules[table] = number
    own_steps = tuple(
        AllReducedLayout(f"allreduce.{number}", tuple(names), owner)
        for number, (owner, names) in enumerate(stepped.items())
    )
    return Layout(sparse, hashed, tuple(dense), tuple(summed), own_steps, groups, rules, device, obstacles)


def _outside_of_server(model: nn.Module, group_of: Mapping[str, RuleGroup]) -> dict[str, str]:
    """Return the parameters that their optimizer has to step itself, with the reasons."""
    sharing = _sharing_memory(model)
    return {
        name: (
            "it shares memory with another parameter or a buffer, as after `a.weight.data = b.weight.data`: "
            "make them one parameter, as in `a.weight = b.weight`, or copy a buffer with `clone()`"
            if name in sharing
            else f"{group.obstacle} is no rule of the parameter server: give tables {FOR_TABLES}, in an "
            "optimizer of their own if need be"
        )
        for name, group in group_of.items()
        if name in sharing or group.rule is None
    }


def _sharing_memory(model: nn.Module) -> set[str]:
    """Return the names of parameters and buffers that share memory with other parameters or buffers."""
    taken: list[tuple[int, int, str]] = []
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if value.is_meta or value.layout is not torch.strided or value.numel() == 0:
            continue
        taken.append((*extent_of(value), name))
    found: set[str] = set()
    last_end, last = 0, ""
    for start, end, name in sorted(taken):
        if start < last_end:
            found |= {last, name}
        if end > last_end:
            last_end, last = end, name
    return found


def extent_of(tensor: Tensor) -> tuple[int, int]:
    """Return the addresses of a tensor's first element and of the end of its last one."""
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size()


def _stepping_optimizer(groups: Sequence[RuleGroup], number: int, name: str) -> torch.optim.Optimizer:
    """Return the optimizer at whose steps the gradients of a parameter outside of the server are summed."""
    optimizer = groups[number].optimizer or groups[0].optimizer
    if optimizer is None:
        raise ValueError(
            f"{name!r} is all-reduced or shares memory with another parameter or a buffer, so it needs an "
            "optimizer of torch.optim that steps on each node: give AdaModel one in place of "
            f"{type(groups[number].rule).__name__}"
        )
    return optimizer


def _device_of(model: nn.Module, tables: Container[str]) -> torch.device:
    """Return the device of the dense parameters. A table may also be on the CPU or without memory."""
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
    """Return a layout of parameters of one dtype, in the longest blocks that need little padding."""
    sizes = [max(1, parameter.numel()) for parameter in parameters.values()]
    length = next(
        length
        for length in BLOCK_LENGTHS
        if sum(ceil(size / length) * length for size in sizes) <= (1 + PADDING) * sum(sizes)
    )
    return DenseLayout.of(table, parameters, next(iter(parameters.values())).dtype, length)
