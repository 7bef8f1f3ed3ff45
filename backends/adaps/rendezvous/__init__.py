"""The rendezvous of a cluster's nodes, with torchrun's environment and a `torch.distributed.TCPStore`."""

from __future__ import annotations

from adaps.rendezvous.environment import Place, integer_variable, place_in_environment, variable
from adaps.rendezvous.node_rendezvous import Clock, Rendezvous, RendezvousResult, rendezvous_at
from adaps.rendezvous.timed_store import open_store, wait_for

__all__ = [
    "Clock",
    "Place",
    "Rendezvous",
    "RendezvousResult",
    "integer_variable",
    "open_store",
    "place_in_environment",
    "rendezvous_at",
    "variable",
    "wait_for",
]
