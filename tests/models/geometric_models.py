"""Models of PyTorch Geometric whose nodes have embeddings: whole graphs, walks, facts, and events in time."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from .case import Case, Expected, drawn

NODES, EDGES, RELATIONS = 1000, 3000, 10
BATCH = 128
WIDTH = 32


@functools.cache
def graph() -> Tensor:
    return torch.randint(0, NODES, (2, EDGES), generator=Generator().manual_seed(5))


def models() -> Any:
    return importlib.import_module("torch_geometric.nn.models")


class Sampled(nn.Module):
    """The tutorial's way for nodes without features: an embedding, and a network on a subgraph."""

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NODES, WIDTH)
        self.network = getattr(models(), name)(WIDTH, WIDTH, 2, 7, **options)

    def forward(self, data: Any) -> Any:
        return self.network(self.embedding(data.n_id), data.edge_index)[: data.batch_size]


def subgraph(generator: Generator) -> Any:
    """What a `NeighborLoader` gives: the nodes that count first, then their neighbours."""
    nodes = torch.randperm(NODES, generator=generator)[: 2 * BATCH]
    ends = torch.randint(0, len(nodes), (2, 6 * BATCH), generator=generator)
    data = importlib.import_module("torch_geometric.data").Data(edge_index=ends, n_id=nodes)
    data.batch_size = BATCH
    data.y = nodes[:BATCH] % 7
    return data


def node_loss(model: Any, data: Any) -> Tensor:
    return F.cross_entropy(model(data), data.y)


def sampled(name: str, **options: Any) -> Case:
    return Case(name, lambda: Sampled(name, **options), drawn(subgraph), node_loss)


def light_gcn() -> nn.Module:
    model: nn.Module = models().LightGCN(NODES, WIDTH, 2)
    return model


def edges(generator: Generator) -> tuple[Tensor, Tensor]:
    ends = graph()[:, torch.randint(0, EDGES, (BATCH,), generator=generator)]
    return ends, torch.stack([ends[0], torch.randint(0, NODES, (BATCH,), generator=generator)])


def recommendation(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    positive, negative = batch
    ranks = model(graph(), torch.cat([positive, negative], 1))
    loss: Tensor = model.recommendation_loss(
        *ranks.chunk(2), node_id=torch.cat([positive, negative], 1).unique()
    )
    return loss


def facts(generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    heads, tails = torch.randint(0, NODES, (2, BATCH), generator=generator)
    return heads, torch.randint(0, RELATIONS, (BATCH,), generator=generator), tails


def fact_loss(model: Any, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    loss: Tensor = model.loss(*batch)
    return loss


def facts_model(name: str, **options: Any) -> Case:
    def make() -> nn.Module:
        kind = getattr(importlib.import_module("torch_geometric.nn.kge"), name)
        model: nn.Module = kind(NODES, RELATIONS, WIDTH, **options)
        return model

    return Case(f"{name} of facts", make, drawn(facts), fact_loss)


def autoencoder() -> nn.Module:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(NODES, WIDTH)
            self.network = models().GCN(WIDTH, WIDTH, 2, 16)

        def forward(self, data: Any) -> Any:
            return self.network(self.embedding(data.n_id), data.edge_index)

    model: nn.Module = models().GAE(Encoder())
    return model


def reconstruction(model: Any, data: Any) -> Tensor:
    z = model.encode(data)
    wrong = torch.stack([data.edge_index[0], data.edge_index[1].flip(0)])
    loss: Tensor = model.recon_loss(z, data.edge_index, wrong)
    return loss


CASES = (
    sampled("GCN"),
    sampled("GraphSAGE"),
    sampled("GAT", heads=2),
    sampled("GIN"),
    sampled("PNA", aggregators=["mean", "max"], scalers=["identity"], deg=torch.tensor([0, 5, 5])),
    Case("GAE", autoencoder, drawn(subgraph), reconstruction),
    Case(
        "LightGCN",
        light_gcn,
        drawn(edges),
        recommendation,
        # the scores that recommendation_loss() is given are known from the second batch on
        Expected(exact_from=1, told=("'embedding.weight' is read in full",)),
    ),
    facts_model("TransE"),
    facts_model("ComplEx"),
    facts_model("DistMult"),
    facts_model("RotatE"),
)
