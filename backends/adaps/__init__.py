"""An adaptive parameter server: float32 values under integer keys, moved and replicated by signalled intent.

Examples
--------
>>> import numpy as np
>>> import adaps
>>> table = adaps.Table("emb", rows=1000, length=4, optimizer=adaps.SGD(lr=0.5))
>>> with adaps.Node([table]) as node:
...     kv = node.worker(0)
...     keys = node.table("emb").keys([3, 5])
...     kv.push_gradients(keys, np.ones((2, 4), dtype=np.float32))
...     out = np.empty((2, 4), dtype=np.float32)
...     kv.pull(keys, out)
>>> out[0]
array([-0.5, -0.5, -0.5, -0.5], dtype=float32)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from adaps._core import NodeTable, TraceEvent, Worker, deduplicate, sum_by_key
from adaps.errors import AdapsError, CheckpointError, PeerLost, RendezvousError
from adaps.export import load_export, load_export_ids
from adaps.initializers import Constant, Normal, Uniform
from adaps.node import TECHNIQUES, Node
from adaps.node_options import NodeOptions
from adaps.optimizers import SGD, Adagrad, Adam, AdamW, RMSprop, RowAdagrad, SparseAdam
from adaps.policy import Policy, PolicyError
from adaps.sampling import SAMPLING_SCHEMES, LogUniform, Sampling, Weighted
from adaps.simulation import (
    Cluster,
    Costs,
    LostNode,
    Machine,
    NetworkLink,
    RowReplay,
    Simulation,
    SimulationOptions,
    Stall,
    Straggler,
    Stream,
    replay_rows,
    simulate,
)
from adaps.tables import Table
from adaps.trace import trace_frame, write_chrome_trace

if TYPE_CHECKING:
    from adaps import checkpoint as checkpoint

__all__ = [
    "SAMPLING_SCHEMES",
    "SGD",
    "TECHNIQUES",
    "Adagrad",
    "Adam",
    "AdamW",
    "AdapsError",
    "CheckpointError",
    "Cluster",
    "Constant",
    "Costs",
    "LogUniform",
    "LostNode",
    "Machine",
    "NetworkLink",
    "Node",
    "NodeOptions",
    "NodeTable",
    "Normal",
    "PeerLost",
    "Policy",
    "PolicyError",
    "RMSprop",
    "RendezvousError",
    "RowAdagrad",
    "RowReplay",
    "Sampling",
    "Simulation",
    "SimulationOptions",
    "SparseAdam",
    "Stall",
    "Straggler",
    "Stream",
    "Table",
    "TraceEvent",
    "Uniform",
    "Weighted",
    "Worker",
    "deduplicate",
    "load_export",
    "load_export_ids",
    "replay_rows",
    "simulate",
    "sum_by_key",
    "trace_frame",
    "write_chrome_trace",
]


def __getattr__(name: str) -> Any:
    if name == "checkpoint":  # It loads NumPy, which nothing else here needs.
        return importlib.import_module("adaps.checkpoint")
    raise AttributeError(f"module 'adaps' has no attribute {name!r}")
