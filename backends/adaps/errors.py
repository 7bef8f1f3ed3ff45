"""Errors except invalid arguments, which raise TypeError, ValueError, IndexError or KeyError."""

from __future__ import annotations

__all__ = ["AdapsError", "CheckpointError", "PeerLost", "RendezvousError"]


class AdapsError(RuntimeError):
    """A call that the node cannot serve."""


class RendezvousError(AdapsError):
    """The nodes of a cluster did not find each other."""


class CheckpointError(AdapsError):
    """A checkpoint cannot be written, or cannot be restored."""


class PeerLost(AdapsError):
    """A node of the cluster was lost; this call and every later call on every other node fails.

    Attributes
    ----------
    rank : int
        Rank of the lost node.
    """

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(rank, reason)
        self.rank = rank
        self._reason = reason

    def __str__(self) -> str:
        return self._reason
