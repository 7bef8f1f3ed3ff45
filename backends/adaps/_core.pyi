"""The adaptive parameter server's C++ core."""

import enum
from collections.abc import Sequence
from typing import overload

import numpy as np
import numpy.typing as npt
from torch import Tensor

from adaps._typing import Float32Like, Int64Like

MAX_KEYS: int
MAX_ADMIT_SEEN: int
MAX_TTL: int
MAX_CAPACITY: int
MAX_ROW_FLOATS: int
MAX_WORKERS: int
MAX_CHANNELS: int

class RuleKind(enum.Enum):
    SGD = 0
    MOMENTUM = 1
    ADAGRAD = 2
    ROW_ADAGRAD = 3
    ADAM = 4
    SPARSE_ADAM = 5
    RMSPROP = 6

class InitKind(enum.Enum):
    CONSTANT = 0
    UNIFORM = 1
    NORMAL = 2

class Technique(enum.Enum):
    ADAPTIVE = 0
    REPLICATION = 1
    RELOCATION = 2
    STATIC = 3
    FULL_REPLICATION = 4

class Wire(enum.Enum):
    FLOAT32 = 0
    BFLOAT16 = 1
    FLOAT16 = 2
    INT8 = 3

class Dtype(enum.Enum):
    FLOAT32 = 0
    BFLOAT16 = 1

class NonFinite(enum.Enum):
    RAISE = 0
    SKIP = 1
    PASS = 2

class UpdateRule:
    def __init__(
        self,
        kind: RuleKind,
        *,
        lr: float,
        momentum: float = 0.0,
        eps: float = ...,
        beta1: float = ...,
        beta2: float = ...,
        initial_accumulator: float = 0.0,
        weight_decay: float = 0.0,
        decoupled: bool = False,
        nesterov: bool = False,
        centered: bool = False,
    ) -> None: ...
    @property
    def moves_idle_rows(self) -> bool: ...

class Initializer:
    def __init__(self, kind: InitKind, *, a: float, b: float = 0.0, seed: int = 0) -> None: ...
    def fill(self, ids: Int64Like, rows: Float32Like) -> None: ...

class DistributionKind(enum.Enum):
    UNIFORM = 0
    LOG_UNIFORM = 1
    WEIGHTED = 2

class Evict(enum.Enum):
    NONE = 0
    INTENT = 1
    LRU = 2
    LFU = 3
    TTL = 4

class SamplingScheme(enum.Enum):
    NAIVE = 0
    PRELOC = 1
    POOL = 2
    LOCAL = 3

class Distribution:
    def __init__(self, kind: DistributionKind, rows: int) -> None: ...
    @staticmethod
    def weighted(weights: npt.NDArray[np.float64]) -> Distribution: ...
    @property
    def rows(self) -> int: ...
    @property
    def possible(self) -> int: ...
    def probability(self, row: int) -> float: ...

class SamplingSpec:
    def __init__(
        self,
        distribution: Distribution,
        *,
        scheme: SamplingScheme,
        replacement: bool,
        seed: int,
        pool_size: int,
        reuse: int,
    ) -> None: ...

class TableSpec:
    sampling: SamplingSpec | None
    dtype: Dtype
    has_ids: bool
    evict: Evict
    ttl: int
    admit_seen: int
    memory: int
    path: str
    def validate(self) -> None: ...
    def __init__(
        self,
        name: str,
        rows: int,
        length: int,
        rule: UpdateRule,
        init: Initializer,
        managed: Sequence[tuple[int, Technique | None, Wire, int]],
        homes: Sequence[tuple[int, int, int]] = ...,
    ) -> None: ...
    @property
    def width(self) -> int: ...

class NodeTable:
    """A table on a node."""

    @property
    def name(self) -> str: ...
    @property
    def first_key(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def state_length(self) -> int: ...
    @property
    def retires_rows(self) -> bool: ...
    @property
    def learning_rate(self) -> float: ...
    @overload
    def keys(self, ids: Tensor) -> Tensor: ...
    @overload
    def keys(self, ids: npt.NDArray[np.int64] | Sequence[int]) -> npt.NDArray[np.int64]: ...
    def stats(self) -> dict[str, float]: ...
    def set_learning_rate(self, lr: float) -> None: ...
    def set_hyperparameters(self, rule: UpdateRule) -> None: ...
    @property
    def step(self) -> int: ...
    def set_step(self, number: int, idle_rows: bool = True) -> None: ...
    def catch_up(self, keys: Int64Like | None = None) -> None: ...
    def forget_missed(self) -> None: ...
    def forget_used(self) -> None: ...

class Worker:
    """The interface of one worker thread to its node; only one thread at a time may use it."""

    @property
    def current_clock(self) -> int: ...
    def pull(self, keys: Int64Like, out: Float32Like, asynchronous: bool = False) -> int | None: ...
    def push(self, keys: Int64Like, deltas: Float32Like, asynchronous: bool = False) -> int | None: ...
    def push_gradients(
        self, keys: Int64Like, gradients: Float32Like, asynchronous: bool = False
    ) -> int | None: ...
    def set(self, keys: Int64Like, values: Float32Like, asynchronous: bool = False) -> int | None: ...
    def pull_state(self, keys: Int64Like, out: Float32Like, asynchronous: bool = False) -> int | None: ...
    def set_state(self, keys: Int64Like, states: Float32Like, asynchronous: bool = False) -> int | None: ...
    def rows_of(
        self,
        table: NodeTable,
        ids: Int64Like,
        rows_out: Int64Like,
        asynchronous: bool = False,
        create: bool = True,
    ) -> int | None: ...
    def used_ids(self, table: NodeTable) -> npt.NDArray[np.int64]: ...
    def changed(self, keys: Int64Like, seen: Int64Like) -> bool: ...
    def pull_rows(
        self,
        table: NodeTable,
        ids: Int64Like,
        out: Float32Like,
        idle_rows: bool = False,
    ) -> None: ...
    def push_sums(self, parts: Sequence[tuple[NodeTable, Int64Like, Float32Like]]) -> None: ...
    def step_rows(
        self, table: NodeTable, values: Float32Like, parts: Sequence[tuple[int, Float32Like]]
    ) -> None: ...
    def step_copies(
        self,
        table: NodeTable,
        values: Float32Like,
        pulled: Float32Like,
        seen: Int64Like,
        parts: Sequence[tuple[int, Float32Like]],
        scale: float = 1.0,
    ) -> None: ...
    def intent(self, keys: Int64Like, start: int, end: int | None = None) -> None: ...
    def wait_intent(self, keys: Int64Like) -> None: ...
    def prepare_sample(self, table: NodeTable, n: int, start: int, end: int | None = None) -> int: ...
    def pull_sample(
        self,
        sample: int,
        rows_out: Int64Like,
        values_out: Float32Like | None = None,
        asynchronous: bool = False,
    ) -> int | None: ...
    def advance_clock(self) -> None: ...
    def end_uses(self) -> None: ...
    def skip_to_clock(self, clock: int) -> None: ...
    def is_done(self, ticket: int) -> bool: ...
    def wait(self, ticket: int) -> None: ...
    def waitall(self) -> None: ...
    def wait_sync(self, asynchronous: bool = False) -> int | None: ...
    def barrier(self) -> None: ...
    def agree(self, well: bool) -> int | None: ...
    def begin_setup(self) -> None: ...
    def end_setup(self) -> None: ...
    def finalize(self) -> None: ...

class TraceEvent:
    """An event of a traced key on this node."""

    @property
    def time(self) -> int: ...
    @property
    def key(self) -> int: ...
    @property
    def kind(self) -> str: ...

class Node:
    """One process's part of the parameter server."""

    def __init__(
        self,
        tables: Sequence[TableSpec],
        *,
        rank: int,
        world_size: int,
        workers: int,
        channels: int,
        technique: Technique,
        timing: bool,
        max_rounds_per_second: float,
        nonfinite: NonFinite = ...,
        stall_timeout: float = ...,
        max_queued_bytes: int = ...,
        max_unsent_bytes: int = ...,
    ) -> None: ...
    @property
    def num_keys(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def listen(self, host: str, port: int) -> str: ...
    def connect(
        self,
        addresses: Sequence[str],
        *,
        secret: str,
        network: str,
        connect_timeout: float,
        peer_timeout: float,
        frame_mac: bool = ...,
    ) -> None: ...
    def worker(self, index: int) -> Worker: ...
    def tables(self) -> tuple[NodeTable, ...]: ...
    def check(self) -> None: ...
    def stats(self) -> dict[str, float]: ...
    def trace(self, keys: Int64Like) -> None: ...
    def trace_events(self) -> list[TraceEvent]: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...
    def leave_unclosed(self) -> None: ...

class ChangedRows:
    """Copies of the rows that an export must contain."""

    def __init__(self, node: Node, table: int) -> None: ...
    def take(self, all: bool) -> int: ...
    def read(self, first: int, rows: Int64Like, values: Float32Like) -> None: ...
    def deleted(self) -> npt.NDArray[np.int64]: ...
    def settle(self, told: bool) -> None: ...

class TableRestore:
    """Restores a table from a checkpoint."""

    def __init__(self, node: Node, table: int) -> None: ...
    def put(self, rows: Int64Like, values: Float32Like, states: Float32Like) -> int: ...
    def finish(self) -> None: ...

def freeze(node: Node) -> None: ...
def thaw(node: Node) -> None: ...
def state_length(node: Node, table: int) -> int: ...
def count_owned(node: Node, table: int) -> int: ...
def take_owned(
    node: Node, table: int, first: int, rows: Int64Like, values: Float32Like, states: Float32Like
) -> tuple[int, int]: ...
def check_network(network: str) -> None: ...
def end_served_nodes(well: bool) -> None: ...
def use_logging(use: bool) -> None: ...
@overload
def sum_by_key(keys: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]: ...
@overload
def sum_by_key(
    keys: npt.NDArray[np.int64] | Sequence[int], rows: npt.NDArray[np.float32]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]: ...
@overload
def deduplicate(ids: Tensor, first_key: int = 0) -> tuple[Tensor, Tensor]: ...
@overload
def deduplicate(
    ids: npt.NDArray[np.int64] | Sequence[int], first_key: int = 0
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]: ...

MESSAGE_BYTES: dict[str, int]

def homes_by_hash(first_key: int, keys: int, nodes: int) -> npt.NDArray[np.int64]: ...

class NodeReplay:
    @property
    def steps(self) -> int: ...
    @property
    def computing(self) -> int: ...
    @property
    def visiting(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def on_network(self) -> int: ...
    @property
    def working(self) -> float: ...
    @property
    def last_step(self) -> int: ...
    @property
    def lost(self) -> int | None: ...
    @property
    def peer_lost(self) -> int | None: ...
    @property
    def peer_lost_at(self) -> int | None: ...
    @property
    def counters(self) -> dict[str, float]: ...
    @property
    def tables(self) -> list[dict[str, float]]: ...

class ReplayResult:
    @property
    def elapsed(self) -> int: ...
    @property
    def nodes(self) -> list[NodeReplay]: ...
    @property
    def spans(self) -> list[tuple[str, int, int, int, int, int]]: ...

def replay(
    tables: Sequence[TableSpec],
    dense: Sequence[bool],
    streams: Sequence[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]],
    *,
    technique: Technique,
    timing: bool,
    max_rounds_per_second: float,
    workers: int,
    channels: int,
    lookahead: Sequence[int],
    warm_up: int | None,
    epoch: int,
    requests: Sequence[int],
    compute: float,
    costs: Sequence[float],  # as `simulation._COSTS` names them
    machines: Sequence[tuple[int | None, int, float, float]],
    links: Sequence[tuple[float, float]],
    seed: int,
    traced_steps: int,
    incidents: Sequence[tuple[str, int, int, float]],
    peer_timeout: int,
) -> ReplayResult: ...

class RowReplayResult:
    @property
    def hits(self) -> int: ...
    @property
    def created(self) -> int: ...
    @property
    def not_admitted(self) -> int: ...
    @property
    def full(self) -> int: ...

def replay_rows(
    ids: Int64Like, *, rows: int, evict: str, ttl: int, admit_seen: int, batch: int, lookahead: int
) -> RowReplayResult: ...
