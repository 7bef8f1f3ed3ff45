"""Types of a training loop's values: batches, and arguments of the model's calls."""

from __future__ import annotations

from typing import Any, NamedTuple

Batch = Any
"""Batch from a data loader: a tensor, a container of tensors, a graph, or any other object."""


class CallArguments(NamedTuple):
    """Positional and keyword arguments of a call of the model."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
