"""Graph neural networks on PyG batches, and a knowledge-graph embedding."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, SAGEConv

from .recommenders import BATCH, ROWS, ids
from .specimen import Specimen


class GCN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.nodes = nn.Embedding(ROWS, 8)
        self.first = GCNConv(8, 8)
        self.second = GCNConv(8, 3)

    def forward(self, data: Data) -> Any:
        x = F.relu(self.first(self.nodes(data.n_id), data.edge_index))
        x = F.dropout(x, 0.5, self.training)
        return self.second(x, data.edge_index)[: data.batch_size]


class SAGE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.nodes = nn.Embedding(ROWS, 8)
        self.types = nn.Embedding(4, 8)
        self.first = SAGEConv(8, 8)
        self.second = SAGEConv(8, 3)

    def forward(self, n_id: Tensor, edge_index: Tensor) -> Any:
        x = self.nodes(n_id) + self.types(n_id % 4)
        x = self.first(x, edge_index).relu()
        return self.second(x, edge_index)


class ComplEx(nn.Module):
    """Draws its negatives in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.entity = nn.Embedding(ROWS, 8)
        self.relation = nn.Embedding(5, 8)

    def score(self, head: Tensor, relation: Tensor, tail: Tensor) -> Any:
        h = torch.view_as_complex(head.view(*head.shape[:-1], 4, 2))
        r = torch.view_as_complex(relation.view(*relation.shape[:-1], 4, 2))
        t = torch.view_as_complex(tail.view(*tail.shape[:-1], 4, 2))
        return (h * r * t.conj()).real.sum(-1)

    def forward(self, triples: Tensor) -> Any:
        h, r, t = triples.unbind(1)
        corrupted = torch.randint(0, ROWS, (len(triples), 5), device=triples.device)
        head, relation = self.entity(h), self.relation(r)
        positive = self.score(head, relation, self.entity(t))
        negative = self.score(head.unsqueeze(1), relation.unsqueeze(1), self.entity(corrupted))
        return F.softplus(-positive).mean() + F.softplus(negative).mean()


class DropoutBeforeDraw(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.entity = nn.Embedding(ROWS, 64)
        self.other = nn.Embedding(ROWS, 64)
        self.drop = nn.Dropout(0.3)
        self.tower = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, items: Tensor) -> Any:
        x = self.tower(self.drop(self.entity(items)))
        negatives = torch.multinomial(torch.ones(ROWS), len(items), replacement=True)
        return (x * self.other(negatives)).sum(-1).sigmoid().mean()


def graph(generator: Generator) -> Data:
    count = int(torch.randint(200, 300, (), generator=generator))
    edges = torch.randint(0, count, (2, 3 * count), generator=generator)
    return Data(
        n_id=torch.randperm(ROWS, generator=generator)[:count],
        edge_index=edges,
        y=torch.randint(0, 3, (8,), generator=generator),
        batch_size=8,
        num_nodes=count,
    )


def gcn_loss(model: nn.Module, batch: Data) -> Tensor:
    return F.cross_entropy(model(batch), batch.y)


def sage_loss(model: nn.Module, batch: Data) -> Tensor:
    return F.cross_entropy(model(batch.n_id, batch.edge_index)[: batch.batch_size], batch.y)


def triples(generator: Generator) -> Tensor:
    return torch.stack([ids(generator, BATCH), ids(generator, BATCH, rows=5), ids(generator, BATCH)], 1)


SPECIMENS = (
    Specimen("GCN", GCN, graph, gcn_loss),
    Specimen("GraphSAGE", SAGE, graph, sage_loss),
    Specimen("ComplEx", ComplEx, triples, lambda model, batch: model(batch), draws=True),
    Specimen(
        "dropout before draw",
        DropoutBeforeDraw,
        lambda generator: ids(generator, BATCH),
        lambda model, batch: model(batch),
        draws=True,
    ),
)
