"""A specimen of the zoo, and an observer of its real forward that shares no code with prediction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten


@dataclass(frozen=True)
class Specimen:
    """A model with batches for it.

    `call` returns the scalar loss. `unpredictable` names the tables whose rows depend on parameters, and
    `full` those that are also read in full; `draws` tells whether rows depend on random draws inside forward.
    """

    name: str
    model: Callable[[], nn.Module]
    batch: Callable[[torch.Generator], Any]
    call: Callable[[nn.Module, Any], Tensor]
    tables: tuple[str, ...] | None = None
    unpredictable: tuple[str, ...] = ()
    full: tuple[str, ...] = ()
    draws: bool = False
    data_dependent: bool = False

    def batches(self, count: int, seed: int = 0) -> list[Any]:
        generator = torch.Generator().manual_seed(seed)
        return [self.batch(generator) for _ in range(count)]

    def build(self) -> nn.Module:
        torch.manual_seed(7)
        return self.model()


class Observer(TorchDispatchMode):
    """Counts the rows that kernels read from tables, known by the address of their storage."""

    _HARMLESS: ClassVar[set[Any]] = {
        aten.detach, aten.t, aten.transpose, aten.view, aten._unsafe_view, aten.alias, aten.as_strided,
        aten.embedding_renorm_, aten.expand, aten.unsqueeze, aten.permute,
    }  # fmt: skip

    def __init__(self, tables: Mapping[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = {table.untyped_storage().data_ptr(): name for name, table in tables.items()}
        self._sizes = {name: table.numel() for name, table in tables.items()}
        self.rows: dict[str, Counter[int]] = {name: Counter() for name in tables}
        self.full: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        packet = func.overloadpacket
        if packet is aten.embedding:
            self._read(args[0], args[1])
        elif packet in (aten._embedding_bag, aten._embedding_bag_forward_only):
            padding = args[8] if len(args) > 8 else kwargs.get("padding_idx", -1)
            self._read(args[0], args[1], skipped=padding)
        elif packet is aten.index_select and args[1] == 0:
            self._read(args[0], args[2])
        elif packet is aten.index and args[1][0] is not None:
            first = args[1][0]
            self._read(args[0], first.nonzero()[:, 0] if first.dtype is torch.bool else first)
        elif packet is aten.select and args[1] == 0:
            self._read(args[0], torch.tensor([args[2]]))
        elif packet is aten.slice and args[0].shape != func(*args, **kwargs).shape:
            self._read(args[0], torch.arange(len(args[0]))[slice(*args[2:])])
        elif packet not in self._HARMLESS:
            for leaf in tree_leaves((args, kwargs)):
                name = self._name(leaf) if isinstance(leaf, Tensor) else None
                if name is not None and leaf.numel() == self._sizes[name]:
                    self.full.add(name)
        return func(*args, **kwargs)

    def _name(self, tensor: Tensor) -> str | None:
        if tensor.is_meta or tensor.layout is not torch.strided or tensor.numel() == 0:
            return None
        return self._names.get(tensor.untyped_storage().data_ptr())

    def _read(self, table: Tensor, ids: Tensor, skipped: int | None = None) -> None:
        name = self._name(table)
        if name is not None and table.numel() == self._sizes[name]:
            wanted = (row % table.shape[0] for row in ids.reshape(-1).tolist() if row != skipped)
            self.rows[name].update(wanted)
