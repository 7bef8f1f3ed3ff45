"""Descriptions of tables."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from adaps import _argument_checks, _core
from adaps import sampling as _sampling
from adaps.initializers import Constant, Initializer
from adaps.optimizers import SGD, Optimizer
from adaps.policy import Catalogue, Parameter, Policy
from adaps.policy.eviction import Admission, Eviction
from adaps.policy.executed import BY_HASH, UNMANAGED, Management, management_of
from adaps.policy.fields import WIRES
from adaps.policy.validation import PolicyError

__all__ = ["DTYPES", "Table", "managed_specs"]

DTYPES = ("float32", "bfloat16")
"""Formats of a table's values in memory."""
KEYS = ("int64",)
"""Kinds of ids that rows can be assigned to."""
_OWN_KEYS = -1
"""Replaces a table's index if the table's own keys are hashed."""


@dataclass(frozen=True)
class Table:
    """A table: rows of numbers with consecutive keys, which calls read and write as float32.

    Parameters
    ----------
    name : str
        Name of the table, for ``node.table(name)``.
    rows, length : int
        Number of rows, and number of floats of each row. A row with its optimizer's state must fit into one
        message of 64 MiB, so it has at most 16,777,200 floats. If `keys` is given, `rows` is the capacity and
        is not given.
    keys : {"int64"}, optional
        Kind of ids to which rows are assigned at their first use, by `Worker.rows_of`: any 64-bit ids. The
        initial values of a row then depend on its id, not on its number. Default: rows have no ids, and their
        numbers are the keys. Keyword only.
    capacity : int, optional
        Number of rows of a table with `keys`, which is the maximum number of ids. Keyword only. Each node
        assigns an equal share of the rows, and a hash of an id determines its node. The numbers of ids per
        node vary by about their square root, so choose a capacity for n ids on several nodes a few times
        ``sqrt(n * nodes)`` above n.
    evict : {"intent", "lru", "lfu"} or {"ttl": clocks}, optional
        Order in which the rows of a full table with `keys` are retired, that is, given to other ids: see
        `adaps.policy.Eviction`. A row that is in use or announced keeps its id. Default: all rows keep their
        ids, and a full table refuses new ids. Keyword only. If the node has a policy with ``evict``, the
        policy's is used instead.
    admit : {"seen": requests}, optional
        Number of requests of an id, from 1 to 8, after which it has a row of a table with `keys`: see
        `adaps.policy.Admission`. Default: 1. Keyword only. If the node has a policy with ``admit``, the
        policy's is used instead.
    sampling : Sampling, Uniform, LogUniform or Weighted, optional
        Settings for samples of its rows, see `Worker.prepare_sample`. A distribution alone uses the scheme
        ``local``. Keyword only.
    optimizer : SGD, Adagrad, RowAdagrad, Adam, AdamW, SparseAdam or RMSprop
        Update rule of ``push_gradients``. Its state is stored with the row.
    init : Constant, Uniform or Normal
        Initial values of the rows.
    wire : {"float32", "bfloat16", "float16", "int8"}, optional
        Format of values and changes in messages to other nodes, independent of `dtype`. float32 does not
        round. The other formats round values that a node reads from other nodes. The rounding errors of
        changes stay at the sender and are sent with the next change, so they do not accumulate. Default:
        `dtype`. If the node has a policy, the policy's ``wire`` is used instead.
    dtype : {"float32", "bfloat16"}
        Format of values in memory, with 4 or 2 bytes each. Optimizer state is always float32. bfloat16 has
        the range of float32 and 8 bits of precision. Written values are rounded randomly to one of the two
        adjacent numbers, with probabilities that keep the mean, so that small updates are not lost on
        average. This also applies to ``set`` and to initial values.
    memory : int or str, optional
        Maximum memory for the table's rows on this node, in bytes or as text such as ``"2GiB"``. Rows that do
        not fit are written to a file in `path`. They come back before they are used if a worker signals
        intent for them, and otherwise when they are used. In addition to `memory`, each row of the table
        takes up to 21 bytes, and a table with `keys` has its map from ids to rows. Default: all rows are in
        memory. Keyword only. If the node has a policy with ``memory``, the policy's is used instead.
    path : str or os.PathLike, optional
        Existing folder on a local disk for this file, which is deleted when the process ends. Each row takes
        32 bytes more than its value and optimizer state, rounded up to a multiple of 512. Keyword only. If a
        policy gives `memory`, the default is the `path` of the node.
    """

    name: str
    rows: int = 0
    length: int = 0
    sampling: _sampling.Sampling | _sampling.RowDistribution | None = field(default=None, kw_only=True)
    optimizer: Optimizer = field(default_factory=SGD)
    init: Initializer = field(default_factory=Constant)
    wire: str | None = None
    dtype: str = field(default="float32", kw_only=True)
    keys: str | None = field(default=None, kw_only=True)
    capacity: int | None = field(default=None, kw_only=True)
    evict: Eviction | str | Mapping[str, int] | None = field(default=None, kw_only=True)
    admit: Admission | Mapping[str, int] | None = field(default=None, kw_only=True)
    memory: int | str | None = field(default=None, kw_only=True)
    path: str | os.PathLike[str] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(f"table name {self.name!r}: it must be a string that is not empty")
        self._check_keys()
        _argument_checks.count(f"rows of table {self.name!r}", self.rows, most=_core.MAX_KEYS)
        _argument_checks.count(f"length of table {self.name!r}", self.length, most=_core.MAX_ROW_FLOATS)
        if not isinstance(self.optimizer, Optimizer):
            raise TypeError(
                f"optimizer of table {self.name!r} is {self.optimizer!r}; "
                "it must be an adaps.SGD, Adagrad, RowAdagrad, Adam, AdamW, SparseAdam or RMSprop"
            )
        if isinstance(self.sampling, _sampling.RowDistribution):
            object.__setattr__(self, "sampling", _sampling.Sampling(self.sampling))
        if self.sampling is not None and not isinstance(self.sampling, _sampling.Sampling):
            raise TypeError(
                f"sampling of table {self.name!r} is {self.sampling!r}; "
                "it must be an adaps.Sampling, Uniform, LogUniform or Weighted"
            )
        if not isinstance(self.init, Initializer):
            raise TypeError(
                f"init of table {self.name!r} is {self.init!r}; "
                "it must be an adaps.Constant, Uniform or Normal"
            )
        if self.wire is not None:
            _argument_checks.one_of(f"wire of table {self.name!r}:", self.wire, WIRES)
        _argument_checks.one_of(f"dtype of table {self.name!r}:", self.dtype, DTYPES)
        self._check_memory()
        self.spec()  # raises an error if a row with its optimizer state is too long

    def _check_keys(self) -> None:
        if self.keys is None:
            for name in ("capacity", "evict", "admit"):
                if (value := getattr(self, name)) is not None:
                    instead = "rows instead of capacity" if name == "capacity" else f"no {name}"
                    raise ValueError(
                        f"table {self.name!r} has {name}={value!r} without keys; "
                        f'give keys="int64", or {instead}'
                    )
            return
        _argument_checks.one_of(f"keys of table {self.name!r}:", self.keys, KEYS)
        if self.capacity is None:
            raise ValueError(f"table {self.name!r} has keys and no capacity; give its maximum number of ids")
        most = _core.MAX_CAPACITY
        capacity = _argument_checks.count(f"capacity of table {self.name!r}", self.capacity, most=most)
        if self.rows not in (0, capacity):
            raise ValueError(
                f"table {self.name!r} has both keys and rows={self.rows!r}; give only its capacity"
            )
        if self.sampling is not None:
            raise ValueError(f"table {self.name!r} has both keys and sampling; rows of ids cannot be sampled")
        object.__setattr__(self, "rows", capacity)
        try:
            if self.evict is not None:
                object.__setattr__(self, "evict", Eviction.of(self.evict))
            if self.admit is not None:
                object.__setattr__(self, "admit", Admission.of(self.admit))
        except PolicyError as error:
            raise ValueError(f"table {self.name!r}: {error}") from error

    def _check_memory(self) -> None:
        if (self.memory is None) != (self.path is None):
            given, missing = ("path", "memory") if self.memory is None else ("memory", "path")
            raise ValueError(f"table {self.name!r} has {given} and no {missing}; give both or neither")
        if self.memory is None or self.path is None:
            return
        memory = _argument_checks.byte_count(f"memory of table {self.name!r}", self.memory)
        object.__setattr__(self, "memory", memory)
        object.__setattr__(self, "path", os.fspath(self.path))

    def spec(
        self,
        management: Management = UNMANAGED,
        numbers: Mapping[str, int] = MappingProxyType({}),
        path: str | None = None,
    ) -> _core.TableSpec:
        """Return the table for the core.

        Parameters
        ----------
        management : Management
            Management of its rows by a policy. By default, the node determines the management.
        numbers : mapping of str to int
            Index of each table of the node, by name. It must contain the tables whose homes these rows share.
        path : str, optional
            Folder of the node for rows that do not fit into memory, if the table has none.
        """
        managed = [
            (end, _core.Technique[technique.upper()], _core.Wire[wire.upper()], exchange)
            for end, (technique, wire, exchange) in management.managed
        ]
        spec = _core.TableSpec(
            *(self.name, self.rows, self.length, self.optimizer.rule(), self.init.distribution()),
            managed=managed or [(self.rows, None, _core.Wire[(self.wire or self.dtype).upper()], 0)],
            homes=[
                (end, BY_HASH, numbers[where]) if isinstance(where, str) else (end, where, _OWN_KEYS)
                for end, where in management.homes
            ],
        )
        if self.keys is not None and (management.homes or len(management.managed) > 1):
            raise PolicyError(
                f"the table {self.name!r} has ids as keys, so a policy cannot choose homes or divide its "
                'rows; give all its rows one rule with home "hash"'
            )
        spec.has_ids = self.keys is not None
        evict, admit = management.evict or self.evict, management.admit or self.admit
        if isinstance(evict, Eviction):
            spec.evict, spec.ttl = _core.Evict[evict.order.upper()], evict.ttl or 0
        if isinstance(admit, Admission):
            spec.admit_seen = admit.seen
        spec.dtype = _core.Dtype[self.dtype.upper()]
        memory = self.memory if management.memory is None else management.memory.size
        if isinstance(memory, int):
            spec.memory, spec.path = memory, os.fspath(self.path or path or "")
            spec.validate()
        if isinstance(self.sampling, _sampling.Sampling):
            spec.sampling = self.sampling.spec(self.rows)
        return spec


def managed_specs(
    tables: Sequence[Table], policy: Policy, nodes: int, path: str | None = None
) -> list[_core.TableSpec]:
    """Return tables for the core, as managed by a policy on a number of nodes.

    Parameters
    ----------
    tables : sequence of Table
        Tables of the cluster.
    policy : Policy
        Policy of the tables.
    nodes : int
        Number of nodes.
    path : str, optional
        Folder of the node for rows that do not fit into memory.

    Raises
    ------
    PolicyError
        If the policy does not fit, or has a setting that the server does not execute.
    """
    catalogue = Catalogue(
        [Parameter(table.name, table.rows, table.length, "table", table.keys is not None) for table in tables]
    )
    managed = management_of(policy, catalogue, nodes)
    numbers = {table.name: number for number, table in enumerate(tables)}
    for table, one in zip(tables, managed, strict=True):
        if one.memory is not None and not (table.path or path):
            raise PolicyError(
                f"{policy.source}: memory = {one.memory.text()} of {table.name} needs a folder for the other "
                "rows: give adaps.Node a path, or set the environment variable ADAPS_PATH"
            )
    try:
        return [table.spec(one, numbers, path) for table, one in zip(tables, managed, strict=True)]
    except PolicyError:
        raise
    except ValueError as error:  # the memory is too small
        raise PolicyError(f"{policy.source}: {error}") from error
