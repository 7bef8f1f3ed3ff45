"""Models of PyTorch Geometric with node embeddings: whole graphs, walks, triples, and temporal graphs."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from .case import Case, Expected, drawn, maker

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
    """A batch as `NeighborLoader` makes it: the target nodes come first, then their neighbors."""
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


def edges(generator: Generator) -> tuple[Tensor, Tensor]:
    ends = graph()[:, torch.randint(0, EDGES, (BATCH,), generator=generator)]
    return ends, torch.stack([ends[0], torch.randint(0, NODES, (BATCH,), generator=generator)])


def recommendation(model: Any, batch: tuple[Tensor, Tensor]) -> Any:
    both = torch.cat(batch, 1)
    return model.recommendation_loss(*model(graph(), both).chunk(2), node_id=both.unique())


def facts(generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    heads, tails = torch.randint(0, NODES, (2, BATCH), generator=generator)
    return heads, torch.randint(0, RELATIONS, (BATCH,), generator=generator), tails


def facts_model(name: str) -> Case:
    make = maker(
        lambda: importlib.import_module("torch_geometric.nn.kge"), name, lambda: (NODES, RELATIONS, WIDTH)
    )
    return Case(f"{name} of facts", make, drawn(facts), lambda model, batch: model.loss(*batch))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NODES, WIDTH)
        self.network = models().GCN(WIDTH, WIDTH, 2, 16)

    def forward(self, data: Any) -> Any:
        return self.network(self.embedding(data.n_id), data.edge_index)


def reconstruction(model: Any, data: Any) -> Any:
    z = model.encode(data)
    wrong = torch.stack([data.edge_index[0], data.edge_index[1].flip(0)])
    return model.recon_loss(z, data.edge_index, wrong)


CASES = (
    sampled("GCN"),
    sampled("GraphSAGE"),
    sampled("GAT", heads=2),
    sampled("GIN"),
    sampled("PNA", aggregators=["mean", "max"], scalers=["identity"], deg=torch.tensor([0, 5, 5])),
    Case("GAE", maker(models, "GAE", lambda: [Encoder()]), drawn(subgraph), reconstruction),
    Case(
        "LightGCN",
        maker(models, "LightGCN", lambda: (NODES, WIDTH, 2)),
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
