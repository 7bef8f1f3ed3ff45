"""An embedding for ids of any value, whose rows are created at their first use."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import adaps
from adaps.initializers import Initializer

__all__ = ["HashEmbedding", "IdRows", "LocalIdMap", "initial_rows", "int64_ids", "row_numbers"]


class IdRows(NamedTuple):
    """Ids, int64 (n,), and the row of each of them, (n, length)."""

    ids: Tensor
    rows: Tensor


class IdMap(Protocol):
    """Numbers the rows of the ids of a `HashEmbedding`."""

    def rows_of(self, ids: Tensor) -> Tensor:
        """Return the number of each id's row, int64, of the shape of `ids`. New ids get rows."""
        ...

    def find(self, ids: Tensor) -> Tensor:
        """Return the number of each id's row, or -1 for an id without a row. Creates no row."""
        ...

    def saved(self, weight: nn.Parameter) -> IdRows:
        """Return all ids with their rows of `weight`, in the order of a state dictionary."""
        ...

    def load(self, state: IdRows) -> None:
        """Replace all ids and rows; ValueError if they can only be loaded with the whole model."""
        ...


class LocalIdMap(dict[int, int]):
    """Row numbers of ids in this process: the position of each id in the order of first use.

    Parameters
    ----------
    capacity : int
        Maximum number of ids.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.initialized = 0
        """Number of rows that contain values. Later rows have been numbered only."""

    def __missing__(self, number: int) -> int:
        row = self[number] = len(self)
        return row

    def rows_of(self, ids: Tensor) -> Tensor:
        """Return the number of each id's row; RuntimeError if there are more ids than rows."""
        before = len(self)
        rows = list(map(self.__getitem__, int64_ids(ids).tolist()))
        if len(self) > self.capacity:
            needed = len(self)
            while len(self) > before:
                self.popitem()
            raise RuntimeError(
                f"HashEmbedding has a capacity of {self.capacity} rows, and the ids so far need {needed}: "
                "give it a larger capacity"
            )
        return torch.tensor(rows, dtype=torch.int64, device=ids.device).view(ids.shape)

    def find(self, ids: Tensor) -> Tensor:
        """Return the number of each id's row, or -1 for an id without a row."""
        rows = [self.get(each, -1) for each in int64_ids(ids).tolist()]
        return torch.tensor(rows, dtype=torch.int64, device=ids.device).view(ids.shape)

    def saved(self, weight: nn.Parameter) -> IdRows:
        """Return the ids in the order of their rows."""
        ids = list(self)[: self.initialized]
        return IdRows(torch.tensor(ids, dtype=torch.int64, device="cpu"), weight[: len(ids)])

    def load(self, state: IdRows) -> None:
        """Number the ids in their order."""
        self.clear()
        self.update({each: row for row, each in enumerate(state.ids.tolist())})
        self.initialized = len(self)


def row_numbers(ids: Tensor, rows_of: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the number of each id's row by the method of an `IdMap`, and create rows for new ids.

    This is a function in the sense of PyTorch's modes, so that access prediction observes it as one operation
    and repeats it for later batches.
    """
    if torch.overrides.has_torch_function((ids,)):
        numbers: Tensor = torch.overrides.handle_torch_function(row_numbers, (ids,), ids, rows_of)
        return numbers
    if ids.is_meta:  # the ids are not known, but their shape is
        return torch.empty_like(ids, dtype=torch.int64)
    if torch._C._get_tracing_state() is not None:
        raise TypeError("HashEmbedding cannot be traced: the rows of this call's ids would become constants")
    return rows_of(ids)


def int64_ids(ids: Tensor) -> Tensor:
    """Return ids in the form in which they are looked up: int64, contiguous, on the CPU, one-dimensional."""
    if ids.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"ids are {ids.dtype}: HashEmbedding takes ids of torch.int64 or torch.int32")
    if ids.is_cpu and ids.dtype is torch.int64 and ids.is_contiguous():  # the usual case, with one operation
        return ids.view(-1)
    return ids.detach().reshape(-1).to("cpu", torch.int64).contiguous()


def initial_rows(init: Initializer, ids: Tensor, length: int) -> Tensor:
    """Return the initial content of the rows of `ids`, float32 (n, length), as the server computes it."""
    rows = torch.empty(len(ids), length, dtype=torch.float32, device="cpu")
    init.distribution().fill(ids, rows)
    return rows


class HashEmbedding(nn.Module):
    """An embedding for ids of any value, such as hashes; a row is created at the first use of its id.

    In plain PyTorch, a dictionary maps ids to rows of `weight`, which any optimizer can train. Rows that do
    not exist yet take no memory, except in the state of optimizers. If `AdaModel` wraps a model with this
    module, the rows are in the parameter server: the same ids have the same initial values and train alike.

    Without gradients, as in an evaluation under `torch.no_grad`, no row is created. An id without a row then
    has its initial values.

    Parameters
    ----------
    length : int
        Number of floats of a row, like ``embedding_dim`` of `torch.nn.Embedding`.
    capacity : int
        Maximum number of rows. On several nodes, each node has an equal share of it for the ids that a hash
        assigns to the node, so leave some percent of the rows free.
    init : adaps.Constant, adaps.Uniform or adaps.Normal, optional
        Initial values of a row, a function of seed, id and column. Default: `adaps.Normal` with mean 0 and
        standard deviation 1, as in `torch.nn.Embedding`.
    seed : int, optional
        Seed of the initial values, in [0, 2^64), instead of the seed of `init`. If neither is given, the seed
        is drawn from PyTorch's global generator.
    sparse : bool
        Whether `weight` gets sparse gradients. They take time and memory for the rows of a batch only, but
        fewer optimizers accept them.
    device : torch.device, optional
        Device of `weight`. Ids are looked up on the CPU.
    dtype : torch.dtype, optional
        Dtype of `weight`; initial values are computed as float32.

    Attributes
    ----------
    weight : nn.Parameter
        Rows, (capacity, length). Only the rows of ids that were used have content. Their order differs in a
        wrapped model, where operations on `weight` other than lookups are refused.

    Notes
    -----
    The state dictionary has the used rows as ``weight``, (n, length), and their ids as ``ids``, int64 (n,).
    It can be loaded into a module with another capacity. An optimizer's state dictionary has a row for each
    row of `weight`, the first n of them in the same order.

    Examples
    --------
    >>> table = aa.HashEmbedding(16, capacity=1_000_000, sparse=True)
    >>> table(torch.tensor([[-7, 2**60], [0, -7]])).shape
    torch.Size([2, 2, 16])
    """

    def __init__(
        self,
        length: int,
        capacity: int,
        *,
        init: Initializer | None = None,
        seed: int | None = None,
        sparse: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.length = _positive("length", length)
        self.capacity = _positive("capacity", capacity)
        if init is not None and not isinstance(init, Initializer):
            raise TypeError(f"init is {init!r}: it must be an adaps.Constant, Uniform or Normal")
        if init is None:
            drawn = int(torch.randint(2**63 - 1, (), device="cpu")) if seed is None else seed
            init = adaps.Normal(seed=drawn)
        elif seed is not None and not isinstance(init, adaps.Constant):
            init = replace(init, seed=seed)
        self.init: Initializer = init
        self.sparse = sparse
        place = torch.get_default_device() if device is None else torch.device(device)
        self.weight = nn.Parameter(
            _zeros(self.capacity, self.length, dtype or torch.get_default_dtype(), place)
        )
        self.id_map: IdMap = LocalIdMap(self.capacity)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows of `ids`, of shape ``(*ids.shape, length)``.

        Parameters
        ----------
        ids : Tensor
            Ids of any value and shape, int64 or int32.

        Raises
        ------
        RuntimeError
            If the ids need more rows than there are. No row is created then.
        """
        if torch.is_grad_enabled() or not hasattr(self.id_map, "find"):  # access prediction creates rows
            return F.embedding(self.rows_of(ids), self.weight, sparse=self.sparse)
        numbers = self.id_map.find(ids)
        is_new = numbers < 0
        if not is_new.any():
            return F.embedding(numbers, self.weight)
        rows = F.embedding(numbers[~is_new], self.weight)
        result = rows.new_empty(*ids.shape, self.length)
        result[~is_new] = rows
        result[is_new] = initial_rows(self.init, int64_ids(ids[is_new]), self.length).to(rows)
        return result

    def rows_of(self, ids: Tensor) -> Tensor:
        """Return the number of each id's row in `weight`, and create rows for new ids.

        Parameters
        ----------
        ids : Tensor
            Ids of any value and shape, int64 or int32.

        Returns
        -------
        Tensor
            Row numbers, int64, of the shape of `ids`. They are indices for lookups in `weight`, such as
            `torch.nn.functional.embedding_bag`.
        """
        rows = row_numbers(ids, self.id_map.rows_of)
        if isinstance(self.id_map, LocalIdMap):
            self._initialize(self.id_map)
        return rows

    def _initialize(self, id_map: LocalIdMap) -> None:
        """Write the initial content of new rows."""
        weight = self._parameters.get("weight")
        if weight is None:
            raise RuntimeError(
                "HashEmbedding's weight is parametrized, so new rows have no place: apply the function to "
                "the rows that forward returns"
            )
        start, end = id_map.initialized, len(id_map)
        if start == end or weight.is_meta:  # the meta model of access prediction has no rows
            return
        ids = torch.tensor(list(id_map)[start:], dtype=torch.int64, device="cpu")
        with torch.no_grad():
            # `data` leaves the version of `weight` unchanged: no earlier forward pass has read these rows.
            weight.data[start:end] = initial_rows(self.init, ids, self.length).to(weight)
        id_map.initialized = end

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        ids, rows = self.id_map.saved(self.weight)
        destination[prefix + "weight"] = rows if keep_vars else rows.detach()
        destination[prefix + "ids"] = ids

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        names = [prefix + "weight", prefix + "ids"]
        missing_keys += [name for name in names if name not in state_dict]
        unexpected_keys += [
            name for name in state_dict if strict and name.startswith(prefix) and name not in names
        ]
        if any(name not in state_dict for name in names):
            return
        try:
            state = checked_rows(names[0], state_dict, self)
            if isinstance(self.id_map, LocalIdMap):
                with torch.no_grad():
                    self.weight[: len(state.ids)] = state.rows.to(self.weight)
                    self.weight[len(state.ids) : self.id_map.initialized] = 0
            self.id_map.load(state)
        except ValueError as error:
            error_msgs.append(str(error))

    def __deepcopy__(self, memo: dict[int, Any]) -> HashEmbedding:
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        if not isinstance(self.id_map, LocalIdMap):  # the copy of a module in the server is a plain module
            state = self.id_map.saved(self.weight)
            place = self.weight.device if self.weight.device.type != "meta" else torch.device("cpu")
            weight = _zeros(self.capacity, self.length, self.weight.dtype, place)
            weight[: len(state.ids)] = state.rows.to(weight)
            memo[id(self.weight)] = nn.Parameter(weight, self.weight.requires_grad)
            memo[id(self.id_map)] = id_map = LocalIdMap(self.capacity)
            id_map.load(state)
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied

    def extra_repr(self) -> str:
        """Return the arguments, for ``repr``."""
        return f"{self.length}, capacity={self.capacity}, init={self.init}" + ", sparse=True" * self.sparse


def checked_rows(name: str, state: Any, module: HashEmbedding) -> IdRows:
    """Return the rows of a state dictionary for `module`, whose weight is called `name` there.

    Raises
    ------
    ValueError
        If they do not fit.
    """
    rows, ids = state[name], state[name.removesuffix("weight") + "ids"]

    def refuse(problem: str) -> NoReturn:
        raise ValueError(f"{name!r} cannot be loaded into a HashEmbedding: {problem}")

    if ids.dim() != 1 or ids.dtype is not torch.int64:
        refuse(f"its ids are {ids.dtype} of shape {tuple(ids.shape)}; they must be int64 of shape (n,)")
    if tuple(rows.shape) != (len(ids), module.length):
        refuse(f"it has the shape {tuple(rows.shape)}; it must be {(len(ids), module.length)}")
    if len(ids) > module.capacity:
        refuse(f"it has {len(ids)} rows, and the capacity is {module.capacity}")
    if len(ids.unique()) < len(ids):
        refuse("an id occurs twice")
    return IdRows(ids.cpu(), rows)


def _positive(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}: it must be a positive whole number")
    return value


def _zeros(rows: int, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros, which take memory of the CPU only where they are overwritten."""
    if device.type != "cpu":
        return torch.zeros(rows, length, dtype=dtype, device=device)
    untouched = torch.from_numpy(np.zeros(rows * length * dtype.itemsize, dtype=np.uint8))
    return untouched.view(dtype).view(rows, length)
