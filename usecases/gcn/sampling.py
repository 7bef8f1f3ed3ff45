"""Neighbour sampling as PyG's `NodeLoader` asks for it."""

from __future__ import annotations

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

__all__ = ["UniformSampler", "pyg_sampler"]


class UniformSampler(BaseSampler):  # type: ignore[misc]
    """Draws neighbours uniformly, without replacement, in C++.

    What is drawn for a batch is a function of `seed` and of the batch's nodes in their order: the same in
    every process and thread, however far ahead batches are fetched. A loader that shuffles draws anew each
    epoch; one that does not, the validation loader for instance, sees the same neighbourhoods each time.

    Parameters
    ----------
    graph : Graph
        The graph; its arrays are shared, not copied.
    fanouts : sequence of int
        Neighbours drawn per node in each hop; -1 means all.
    seed : int
        Non-negative.
    """

    def __init__(self, graph: Graph, fanouts: Sequence[int], seed: int) -> None:
        self._sampler = NeighborSampler(graph.indptr, graph.indices)
        self._fanouts = list(fanouts)
        self._seed = seed

    def sample_from_nodes(self, index: NodeSamplerInput, **kwargs: Any) -> SamplerOutput:
        """Sample around ``index.node``, int64 and without duplicates; the output's ``node`` begins with it.

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
    """PyG's own sampler, which needs one of its compiled companions.

    Raises
    ------
    ValueError
        If neither pyg-lib nor torch-sparse is installed.
    """
    if not (torch_geometric.typing.WITH_PYG_LIB or torch_geometric.typing.WITH_TORCH_SPARSE):
        raise ValueError("sampler=pyg needs the package pyg-lib, which is not installed; use sampler=native")
    return PygNeighborSampler(data, num_neighbors=list(fanouts))
