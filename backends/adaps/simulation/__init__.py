"""Simulates a training on a cluster, with the server's real code on simulated machines and links.

Examples
--------
>>> import numpy as np
>>> import adaps
>>> table = adaps.Table("emb", rows=100, length=8)
>>> random = np.random.default_rng(0)
>>> steps = [[{"emb": random.choice(100, 5, replace=False)} for _ in range(30)] for _ in range(4)]
>>> streams = [adaps.Stream(own) for own in steps]
>>> found = adaps.simulate(streams, "static", tables=[table])
>>> found.steps, round(found.local_share("emb"), 2)
(120, 0.24)
"""

from __future__ import annotations

from adaps._core import MESSAGE_BYTES
from adaps.simulation.cluster import Cluster, Machine, NetworkLink
from adaps.simulation.costs import Costs
from adaps.simulation.incidents import Incident, LostNode, Stall, Straggler
from adaps.simulation.replay import SimulationOptions, simulate
from adaps.simulation.result import NodeSimulation, Simulation
from adaps.simulation.row_replay import RowReplay, replay_rows
from adaps.simulation.streams import Stream

__all__ = [
    "MESSAGE_BYTES",
    "Cluster",
    "Costs",
    "Incident",
    "LostNode",
    "Machine",
    "NetworkLink",
    "NodeSimulation",
    "RowReplay",
    "Simulation",
    "SimulationOptions",
    "Stall",
    "Straggler",
    "Stream",
    "replay_rows",
    "simulate",
]
