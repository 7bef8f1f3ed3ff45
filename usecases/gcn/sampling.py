"""Neighbor sampling for PyG's `NodeLoader`."""

import zlib
from collections.abc import Sequence
from typing import Any

import torch
import torch_geometric.typing
from torch_geometric.data import Data
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    NegativeSampling,
    NodeSamplerInput,
    SamplerOutput,
)
from torch_geometric.sampler import NeighborSampler as PygNeighborSampler

from adabench.usecases.gcn._sampler import NeighborSampler
from adabench.usecases.gcn.graph import Graph


class UniformSampler(BaseSampler):  # type: ignore[misc]
    """Draws neighbors uniformly, without replacement, in C++.

    The draws for a batch depend only on `seed` and on the batch's nodes in their order. They are equal in
    every process and thread, no matter how early batches are fetched. A loader that shuffles draws new
    neighborhoods in each epoch. A loader that does not, such as the validation loader, gets equal
    neighborhoods each time.

    Parameters
    ----------
    graph : Graph
        Graph to sample from. Its arrays are shared, not copied.
    fanouts : sequence of int
        Number of neighbors drawn per node in each hop; -1 means all.
    seed : int
        Seed, not negative.
    """

    def __init__(self, graph: Graph, fanouts: Sequence[int], seed: int) -> None:
        self._sampler = NeighborSampler(graph.indptr, graph.indices)
        self._fanouts = list(fanouts)
        self._seed = seed

    def sample_from_nodes(self, index: NodeSamplerInput, **kwargs: Any) -> SamplerOutput:
        """Sample around ``index.node``, int64 without duplicates. The output's ``node`` begins with them.

        Raises
        ------
        ValueError
            If a node does not exist or is given twice.
        """
        seeds = index.node.numpy()
        stream = (self._seed << 32 | zlib.crc32(seeds.tobytes())) % 2**64
        node, row, col, nodes_per_hop, edges_per_hop = self._sampler.sample(seeds, self._fanouts, stream)
        return SamplerOutput(
            node=torch.from_numpy(node),
            row=torch.from_numpy(row),
            col=torch.from_numpy(col),
            edge=None,
            num_sampled_nodes=nodes_per_hop,
            num_sampled_edges=edges_per_hop,
            metadata=(index.input_id, index.time),
        )

    def sample_from_edges(
        self, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None
    ) -> SamplerOutput:
        """Not supported: node classification has no seed edges."""
        raise NotImplementedError("this sampler starts from nodes, not from edges")


def pyg_sampler(data: Data, fanouts: Sequence[int]) -> BaseSampler:
    """Return PyG's own sampler, which needs one of its compiled extensions.

    Raises
    ------
    ValueError
        If neither pyg-lib nor torch-sparse is installed.
    """
    if not (torch_geometric.typing.WITH_PYG_LIB or torch_geometric.typing.WITH_TORCH_SPARSE):
        raise ValueError("sampler=pyg needs the package pyg-lib, which is not installed; use sampler=native")
    return PygNeighborSampler(data, num_neighbors=list(fanouts))
