"""Models of many makes for access prediction, each with batches and the call of its training loop."""

from . import corners, graphs, recommenders, sequences
from .specimen import Observer, Specimen

ZOO: tuple[Specimen, ...] = (
    *recommenders.SPECIMENS,
    *graphs.SPECIMENS,
    *sequences.SPECIMENS,
    *corners.SPECIMENS,
)

__all__ = ["ZOO", "Observer", "Specimen"]
