"""Each worker's part of the data, selected by a sampler, with a warning if all workers get the same data."""

from __future__ import annotations

import copy
import hashlib
import logging
import time
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

import adaps
from autoada.parameters.server_access import ServerAccess
from autoada.prediction.batch_structure import leaves
from autoada.sync.process_group import number_of

DIGESTED_BYTES = 1 << 20
"""Number of bytes of each tensor of a batch that are compared."""
_PATIENCE = 0.01
"""Seconds between two looks for the seed of worker 0."""

_log = logging.getLogger("autoada")


def check_shardable(loader: Any) -> None:
    """Raise TypeError or ValueError unless `shard_loader` can share the batches of `loader`."""
    by_hand = "give each node its part of the data yourself, by model.node.rank and model.node.world_size"
    if not isinstance(loader, DataLoader):
        raise TypeError(f"shard=True takes a torch.utils.data.DataLoader, not a {_name(loader)}: {by_hand}")
    if isinstance(loader.dataset, IterableDataset):
        raise ValueError(f"shard=True cannot share {_name(loader.dataset)}, an iterable data set: {by_hand}")
    if not hasattr(loader.dataset, "__len__"):
        raise ValueError(f"shard=True cannot share {_name(loader.dataset)}, which has no length: {by_hand}")
    sampler = item_sampler(loader)
    if isinstance(sampler, DistributedSampler):
        raise ValueError("the loader has a DistributedSampler, which shares its data: leave out shard=True")
    known = type(sampler) is SequentialSampler or (type(sampler) is RandomSampler and not sampler.replacement)
    if not known:
        kind = "a batch sampler" if sampler is loader.batch_sampler else "a sampler"
        raise ValueError(f"shard=True cannot share what {_name(sampler)} gives, {kind}: {by_hand}")
    if len(sampler) != len(loader.dataset):
        raise ValueError(
            f"shard=True cannot share what {_name(sampler)} gives, {len(sampler)} of "
            f"{len(loader.dataset)} items: {by_hand}"
        )


def shard_loader(loader: DataLoader[Any], access: ServerAccess) -> DataLoader[Any]:
    """Return `loader` with this worker's part of its data set. Collective.

    A shuffled loader is shuffled again in each epoch. Its seed is the seed of the sampler's generator, or of
    PyTorch, at worker 0, plus the number of this loader among the worker's sharded loaders.

    Raises
    ------
    adaps.AdapsError
        If worker 0 does not make this call within the stall timeout.
    """
    if access.num_workers == 1:
        return loader
    given = item_sampler(loader)
    sampler: DistributedSampler[Any] = DistributedSampler(
        loader.dataset,
        access.num_workers,
        access.worker_index,
        shuffle=isinstance(given, RandomSampler),
        seed=_seed(getattr(given, "generator", None), access),
    )
    own = copy.copy(loader)
    # A DataLoader refuses assignments to these, because it has derived other attributes from them.
    own.__dict__.update(sampler=_with_items(loader.sampler, sampler), _iterator=None)
    if loader.batch_sampler is not None:
        own.__dict__.update(sampler=sampler, batch_sampler=_with_items(loader.batch_sampler, sampler))
    return own


def item_sampler(loader: Any) -> Any:
    """Return the sampler that gives the order of the items, below samplers that make batches of indices.

    A loader that was made with ``batch_sampler`` has a ``sampler`` that it does not use.
    """
    sampler: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    while type(sampler) is BatchSampler:
        sampler = sampler.sampler
    return sampler


def warn_of_equal_data(access: ServerAccess, batch: Any) -> None:
    """Warn if another worker has begun with an equal batch, as both then train on the same data."""
    own = _digest(batch)
    if own is None:
        return
    try:
        access.node.post(f"first batch of {access.worker_index}", own)
        others = [other for other in range(access.num_workers) if other != access.worker_index]
        same = [other for other in others if access.node.posted(f"first batch of {other}") == own]
    except RuntimeError as error:  # The store has ended with its node, which had no data left.
        _log.debug("first batches cannot be compared: %s", error)
        return
    if same:
        _log.warning(
            "workers %d and %d begin with equal batches, so both train on the same data: "
            "AdaDataLoader(loader, shard=True) gives each of them its part",
            *sorted((same[0], access.worker_index)),
        )


def _seed(generator: torch.Generator | None, access: ServerAccess) -> int:
    number = number_of(access.node, "sharded loader", access.local_index)
    name = f"seed of loader {number}"
    if access.worker_index == 0:
        seed = torch.initial_seed() if generator is None else generator.initial_seed()
        access.node.post(name, str((seed + number) % 2**62))
    deadline = time.monotonic() + access.node.stall_timeout
    while (text := access.node.posted(name)) is None:
        access.node.check()
        if time.monotonic() >= deadline:
            raise adaps.AdapsError(
                f"worker 0 has not iterated its sharded loader {number} within {access.node.stall_timeout:g} "
                "s: let all workers iterate loaders with shard=True in the same order"
            )
        time.sleep(_PATIENCE)
    return int(text)


def _digest(batch: Any) -> str | None:
    """Return a digest that is equal for equal batches; None for a batch without tensors."""
    result = hashlib.blake2b(digest_size=16)
    tensors = 0
    for path, leaf in leaves(batch):
        if not isinstance(leaf, Tensor) or leaf.layout is not torch.strided or leaf.is_meta:
            continue
        tensors += 1
        result.update(repr((path, leaf.dtype, leaf.shape)).encode())
        flat = leaf.detach().reshape(-1)[: DIGESTED_BYTES // leaf.element_size()]
        result.update(flat.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return result.hexdigest() if tensors else None


def _with_items(sampler: Any, items: DistributedSampler[Any]) -> Any:
    """Return a sampler like `sampler` that makes batches of the items in `items`."""
    if type(sampler) is not BatchSampler:
        return items
    return BatchSampler(_with_items(sampler.sampler, items), sampler.batch_size, sampler.drop_last)


def _name(value: object) -> str:
    return type(value).__name__
