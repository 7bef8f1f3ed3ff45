"""Each worker's part of the data: made by a sampler, with a warning if it was forgotten."""

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

from autoada.prediction.batch_structure import leaves
from autoada.training.training_state import WorkerIdentity

DIGESTED_BYTES = 1 << 20
"""Bytes of each tensor of a batch that are compared."""
_PATIENCE = 0.01

_log = logging.getLogger("autoada")


def check_shardable(loader: Any) -> None:
    """Raise TypeError or ValueError unless `shard_loader` can share the batches of `loader`."""
    by_hand = "give each node its part of the data yourself, by model.node.rank and model.node.world_size"
    if not isinstance(loader, DataLoader):
        raise TypeError(f"shard=True takes a torch.utils.data.DataLoader, not a {_name(loader)}: {by_hand}")
    if isinstance(loader.dataset, IterableDataset):
        raise ValueError(f"shard=True cannot share {_name(loader.dataset)}, an iterable data set: {by_hand}")
    if loader.batch_sampler is not None and type(loader.batch_sampler) is not BatchSampler:
        raise ValueError(
            f"shard=True cannot share what {_name(loader.batch_sampler)} gives, a batch sampler: {by_hand}"
        )
    sampler = loader.sampler
    if isinstance(sampler, DistributedSampler):
        raise ValueError("the loader has a DistributedSampler, which shares its data: leave out shard=True")
    whole = type(sampler) is RandomSampler and not sampler.replacement and len(sampler) == _length(loader)
    if type(sampler) is not SequentialSampler and not whole:
        raise ValueError(f"shard=True cannot share what {_name(sampler)} gives, a sampler: {by_hand}")


def shard_loader(loader: DataLoader[Any], identity: WorkerIdentity, number: int) -> DataLoader[Any]:
    """Return `loader` with this worker's part of its data set. Collective.

    A shuffled loader is shuffled again in each epoch. Its seed is that of the loader's generator, or of
    PyTorch, at worker 0, plus `number`, the number of this loader among all that are shared.
    """
    if identity.num_workers == 1:
        return loader
    shuffle = isinstance(loader.sampler, RandomSampler)
    sampler: DistributedSampler[Any] = DistributedSampler(
        loader.dataset,
        identity.num_workers,
        identity.worker_index,
        shuffle=shuffle,
        seed=_seed(loader, identity, number),
    )
    own = copy.copy(loader)
    # a DataLoader refuses assignments to these, because it would keep what it has made of them
    own.__dict__.update(sampler=sampler, _iterator=None)
    if loader.batch_sampler is not None:
        own.__dict__["batch_sampler"] = BatchSampler(sampler, loader.batch_size or 1, loader.drop_last)
    return own


def warn_of_equal_data(identity: WorkerIdentity, batch: Any) -> None:
    """Warn if another worker has begun with an equal batch, as both then train on the same data."""
    own = _digest(batch)
    if own is None:
        return
    try:
        identity.node.post(f"first batch of {identity.worker_index}", own)
        others = [other for other in range(identity.num_workers) if other != identity.worker_index]
        same = [other for other in others if identity.node.posted(f"first batch of {other}") == own]
    except RuntimeError as error:  # the store has ended, with a node that has nothing left to train on
        _log.debug("first batches cannot be compared: %s", error)
        return
    if same:
        _log.warning(
            "workers %d and %d begin with equal batches, so both train on the same data: "
            "AdaDataLoader(loader, shard=True) gives each of them its part",
            *sorted((same[0], identity.worker_index)),
        )


def _seed(loader: DataLoader[Any], identity: WorkerIdentity, number: int) -> int:
    name = f"seed of loader {number}"
    if identity.worker_index == 0:
        generator = loader.generator
        seed = torch.initial_seed() if generator is None else generator.initial_seed()
        identity.node.post(name, str((seed + number) % 2**62))
    while (text := identity.node.posted(name)) is None:
        identity.node.check()
        time.sleep(_PATIENCE)
    return int(text)


def _digest(batch: Any) -> str | None:
    """Equal for equal batches; None for one without a tensor in it."""
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


def _length(loader: DataLoader[Any]) -> int:
    return len(loader.dataset)  # type: ignore[arg-type]


def _name(value: object) -> str:
    return type(value).__name__
