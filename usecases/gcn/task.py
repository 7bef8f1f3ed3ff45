"""The use case `gcn`: node classification with neighbor sampling, with accuracy as its quality metric."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from adabench.usecases.common.batches import DealsBatches, evaluating
from adabench.usecases.common.rank_statistics import auc
from adabench.usecases.common.validation import require_choice, require_positive, require_sizes
from adabench.usecases.gcn.graph import random_split
from adabench.usecases.gcn.load import load
from adabench.usecases.gcn.partition import METHODS, Method, Partition, partition
from adabench.usecases.interface import EVALUATION_BATCH, Loaders, Params

# Methods import PyG, because its import takes longer than commands that train nothing.
if TYPE_CHECKING:
    from torch_geometric.data import Data
    from torch_geometric.loader import NodeLoader
    from torch_geometric.sampler import BaseSampler

HOPS = 2  # one hop for each convolution


class GcnParams(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of `gcn`.

    Attributes
    ----------
    epochs : int
        Number of passes over the training split.
    batch : int
        Number of training nodes per step and worker.
    dim : int
        Number of floats of a node's embedding.
    lr : float
        Learning rate of the optimizer.
    graph : str
        Name of the graph; see `adabench.usecases.gcn.load.load`.
    vertices : int
        Number of nodes of a generated graph.
    hidden : int
        Width of the first convolution's output.
    fanout : int
        Number of sampled neighbors per node in each of the two hops; -1 means all.
    sampler : "native" or "pyg"
        Sampler: the project's C++ sampler, or PyG's, which needs pyg-lib.
    partition : "metis", "random" or "contiguous"
        Division of training nodes among workers.
    features : bool
        Whether the model reads the node features of an npz file in addition to the embeddings.
    """

    epochs: int = 8
    batch: int = 128
    dim: int = 64
    lr: float = 0.02
    graph: str = "generated"
    vertices: int = 10_000
    hidden: int = 64
    fanout: int = 16
    sampler: Literal["native", "pyg"] = "native"
    partition: Method = "metis"
    features: bool = False

    def __post_init__(self) -> None:
        require_sizes(self, ("epochs", "batch", "dim", "hidden", "vertices"))
        if self.fanout < 1 and self.fanout != -1:
            raise ValueError(f"fanout is {self.fanout}: it must be 1 or more, or -1 for all neighbours")
        require_positive(self, ("lr",))
        require_choice(self, {"sampler": ("native", "pyg"), "partition": METHODS})


class GcnUseCase(DealsBatches[GcnParams]):
    """Predicts the class of a node from its neighborhood, by learned embeddings and perhaps features.

    The seed determines the initial weights, the order of the data, the sampled neighbors and METIS's choices.
    For data without a split, it also determines the split: 54 / 18 / 28 % of the labelled nodes at random.
    """

    name: ClassVar[str] = "gcn"
    Params: ClassVar[type[Params]] = GcnParams
    metric: ClassVar[str] = "accuracy"
    maximize: ClassVar[bool] = True
    tolerance: ClassVar[float] = 0.015

    def __init__(self, params: GcnParams, data: Path | None, seed: int) -> None:
        from torch_geometric.data import Data

        super().__init__(params, seed)
        self._graph = load(params.graph, data, params.features, params.vertices)
        self._fingerprint = self._graph.fingerprint
        self._split = self._graph.split or random_split(self._graph.labels, seed)
        self._partitions: dict[tuple[int, ...], Partition] = {}  # by the sizes of the workers' batches
        # The native sampler reads the arcs from the graph, so that memory contains no copy of them.
        arcs = self._graph.edge_index if params.sampler == "pyg" else np.empty((2, 0), dtype=np.int64)
        self._data = Data(
            edge_index=torch.from_numpy(arcs),
            y=torch.from_numpy(self._graph.labels),
            num_nodes=self._graph.num_nodes,
        )
        if self._graph.features is not None:
            self._data.x = torch.from_numpy(self._graph.features)

    def model(self) -> nn.Module:
        from adabench.usecases.gcn.model import Gcn

        generator = torch.Generator().manual_seed(self._seed)
        sizes = (self._graph.num_nodes, self._params.dim, self._params.hidden, self._graph.num_classes)
        features = 0 if self._graph.features is None else self._graph.features.shape[1]
        return Gcn(*sizes, generator, features)

    def loaders(self, rank: int, world: int) -> Loaders:
        training = torch.from_numpy(self._partition(rank, world).training[rank])
        shuffle, batch = torch.Generator().manual_seed(self._seed * world + rank), self._params.batch
        own = self._sizes(rank, world)[rank]
        return Loaders(
            self._loader(training, own, shuffle=True, generator=shuffle),
            self._loader(torch.from_numpy(self._split.valid), max(batch, EVALUATION_BATCH)),
            self._loader(torch.from_numpy(self._split.test), max(batch, EVALUATION_BATCH)),
        )

    def loss(self, model: nn.Module, batch: Data) -> Tensor:
        logits = _logits(model, batch)
        return cross_entropy(logits, batch.y[: batch.batch_size])

    def evaluate(self, model: nn.Module, loader: Iterable[Data]) -> dict[str, float]:
        """Return accuracy and mean cross-entropy of the loader's nodes, and with two classes the AUC.

        Neighbors are sampled as in training. The AUC is left out if all nodes are of one class.
        """
        samples, correct, loss = 0, 0, 0.0
        classes: list[Tensor] = []
        margins: list[Tensor] = []
        with evaluating(model):
            for batch in loader:
                logits = _logits(model, batch)
                labels = batch.y[: batch.batch_size]
                samples += batch.batch_size
                correct += int((logits.argmax(dim=1) == labels).sum())
                loss += float(cross_entropy(logits, labels, reduction="sum"))
                if logits.shape[1] == 2:
                    classes.append(labels)
                    margins.append((logits[:, 1] - logits[:, 0]).double())
        if samples == 0:
            raise ValueError("the loader to evaluate over is empty: it must hold at least one node")
        found = {"accuracy": correct / samples, "loss": loss / samples}
        if classes and len(torch.cat(classes).unique()) == 2:
            found["auc"] = auc(torch.cat(classes).numpy(), torch.cat(margins).numpy())
        return found

    def keys(self, batch: Data) -> dict[str, Tensor]:
        return {"embedding.weight": batch.n_id}

    def samples(self, batch: Data) -> int:
        return int(batch.batch_size)

    def home_rows(self, rank: int, world: int) -> dict[str, Tensor]:
        """Return the rows in worker `rank`'s part of the graph: ascending int64 ids by parameter name.

        A parameter server may place them on the worker's node at the start. The rows of all workers are
        disjoint and complete.
        """
        part = torch.from_numpy(self._partition(rank, world).part)
        return {"embedding.weight": (part == rank).nonzero().flatten()}

    def _partition(self, rank: int, world: int) -> Partition:
        sizes = self._sizes(rank, world)
        if sizes not in self._partitions:
            self._partitions[sizes] = partition(
                self._graph, self._split.train, sizes, self._params.partition, self._seed
            )
        return self._partitions[sizes]

    def _loader(self, nodes: Tensor, batch: int, **order: Any) -> NodeLoader:
        from torch_geometric.loader import NodeLoader

        return NodeLoader(self._data, self._sampler(), input_nodes=nodes, batch_size=batch, **order)

    def _sampler(self) -> BaseSampler:
        from adabench.usecases.gcn.sampling import UniformSampler, pyg_sampler

        fanouts = [self._params.fanout] * HOPS
        if self._params.sampler == "pyg":
            return pyg_sampler(self._data, fanouts)
        return UniformSampler(self._graph, fanouts, self._seed)


def _logits(model: nn.Module, batch: Data) -> Tensor:
    """Return the logits of the nodes around which the batch is sampled."""
    features = () if batch.x is None else (batch.x,)
    logits: Tensor = model(batch.n_id, batch.edge_index, *features)[: batch.batch_size]
    return logits
