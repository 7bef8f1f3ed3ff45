"""Rows of an embedding table that are drawn for a batch, such as negatives."""

from __future__ import annotations

from collections import deque
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.data import get_worker_info

import adaps
from adaps.sampling import RowDistribution
from autoada.hash_embedding import HashEmbedding
from autoada.parameters.table_parameter import TableParameter

__all__ = ["NegativeSampler", "sampling_of"]

AHEAD = 2
"""Number of steps between the announcement of a sample and its use, if the scheme announces samples."""

_samplings: WeakKeyDictionary[nn.Module, adaps.Sampling] = WeakKeyDictionary()
"""Sampling of each module's rows."""


class NegativeSampler:
    """Draws rows of an embedding table at each call, for a data set or a collate function.

    Without a server, and in the processes of a `torch.utils.data.DataLoader`, it draws with torch's global
    generator. After `AdaModel` has moved the table into the parameter server, the server of this node draws;
    with the scheme ``local``, it draws local rows. Drawn rows in the batches of an `AdaDataLoader` are
    announced like all other rows. If the training loop itself draws rows, they cannot be predicted:
    `AdaDataLoader` then announces all rows of the table, with a warning.

    Parameters
    ----------
    table : nn.Module
        Embedding module whose ``weight`` contains the rows. Create the sampler before `AdaModel` or
        `create_node`, equally on every node.
    n : int
        Number of rows of each call.
    sampling : adaps.Sampling, Uniform, LogUniform or Weighted, optional
        Distribution and scheme of the draws. A distribution alone uses the scheme ``local``. Draws of the
        server use its seed; draws of torch use the seed of ``torch.manual_seed``.

    Raises
    ------
    ValueError
        If `n` rows cannot be drawn, the table is in a server already, or another sampler of it draws
        otherwise.

    Examples
    --------
    >>> negatives = aa.NegativeSampler(model.entities, 256)
    >>> loader = DataLoader(triples, 512, collate_fn=lambda items: (torch.stack(items), negatives()))
    >>> model = aa.AdaModel(model, optimizer)
    >>> for batch, drawn in aa.AdaDataLoader(loader):
    ...     loss = criterion(model(batch, drawn))
    """

    def __init__(
        self, table: nn.Module, n: int, sampling: adaps.Sampling | RowDistribution | None = None
    ) -> None:
        weight = getattr(table, "weight", None)
        if not isinstance(table, nn.Module) or not isinstance(weight, Tensor) or weight.dim() == 0:
            raise TypeError(f"table is a {type(table).__name__}; it must be a module with rows in its weight")
        if isinstance(table, HashEmbedding):
            raise TypeError("table is a HashEmbedding, whose ids cannot be drawn: draw ids in the data set")
        if isinstance(weight, TableParameter):
            raise ValueError("the table is in a parameter server already: make its sampler before AdaModel")
        if not isinstance(n, int) or n < 1:
            raise ValueError(f"n is {n!r}; it must be a positive integer")
        given = adaps.Uniform() if sampling is None else sampling
        self.n = n
        self.sampling = given if isinstance(given, adaps.Sampling) else adaps.Sampling(given)
        self._table = table
        self._rows = len(weight)
        self._sums: Tensor | None = None  # of the weights up to each row
        self._prepared: deque[int] = deque()
        self.sampling.spec(self._rows)  # refuses weights of another number
        possible = int(self._weights().count_nonzero())
        most = min(possible, self.sampling.pool_size) if self.sampling.scheme == "pool" else possible
        if not self.sampling.replacement and n > most:
            raise ValueError(f"n is {n}; at most {most} rows can be drawn without replacement")
        known = sampling_of(weight) or _samplings.setdefault(table, self.sampling)
        if known != self.sampling:
            raise ValueError(f"sampling is {self.sampling}; another sampler of the table has {known}")

    def __call__(self) -> Tensor:
        """Draw rows.

        Returns
        -------
        Tensor
            Row ids, int64, of shape ``(n,)``, on the CPU.
        """
        weight = self._table.weight
        if not isinstance(weight, TableParameter) or get_worker_info() is not None:
            return self._draw()
        announces = self.sampling.scheme in ("preloc", "pool")
        rows = weight.store.rows
        worker, drawn = rows.worker, torch.empty(self.n, dtype=torch.int64, device="cpu")
        with torch._C.DisableTorchFunction():  # drawing is no part of the loop's use of its batch
            while len(self._prepared) <= AHEAD * announces:
                clock = worker.current_clock + len(self._prepared)
                self._prepared.append(worker.prepare_sample(rows.table, self.n, clock))
            worker.pull_sample(self._prepared.popleft(), drawn)
        return drawn

    def _draw(self) -> Tensor:
        distribution = self.sampling.distribution
        if not self.sampling.replacement:
            # as if one by one: the earliest of exponential times (Efraimidis and Spirakis 2006)
            times = (
                torch.empty(self._rows, dtype=torch.float64, device="cpu").exponential_() / self._weights()
            )
            return times.topk(self.n, largest=False).indices
        if isinstance(distribution, adaps.Uniform):
            return torch.randint(self._rows, (self.n,), device="cpu")
        if self._sums is None:
            self._sums = self._weights().cumsum(0)
        at = torch.rand(self.n, dtype=torch.float64, device="cpu")
        return torch.searchsorted(self._sums, at * self._sums[-1], right=True)

    def _weights(self) -> Tensor:
        distribution = self.sampling.distribution
        if isinstance(distribution, adaps.Weighted):
            return torch.tensor(distribution.weights, device="cpu")
        if isinstance(distribution, adaps.LogUniform):
            return torch.arange(1, self._rows + 1, dtype=torch.float64, device="cpu").reciprocal_().log1p_()
        return torch.ones(self._rows, dtype=torch.float64, device="cpu")


def sampling_of(parameter: Tensor) -> adaps.Sampling | None:
    """Return the sampling of the parameter's rows, if a sampler was created for it."""
    drawn = (sampling for module, sampling in _samplings.items() if module.weight is parameter)
    return next(drawn, None)
