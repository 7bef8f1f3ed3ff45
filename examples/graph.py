"""A graph model of torch_geometric with an embedding per node, which the parameter server holds.

The model has to find out which community each node belongs to, from the edges and some labels. Each batch is
a random part of the graph, so the embeddings to read depend on the batch.

    python examples/graph.py
    torchrun --nproc-per-node 2 examples/graph.py
"""

import argparse
import logging

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.loader import RandomNodeLoader
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import stochastic_blockmodel_graph

import autoada as aa


class GraphModel(nn.Module):
    """Two layers of GraphSAGE over embeddings that are learned with it."""

    def __init__(self, nodes: int, classes: int, dim: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(nodes, dim, sparse=True)
        self.first = SAGEConv(dim, 32)
        self.second = SAGEConv(32, classes)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        hidden = self.first(self.embedding(nodes), edges).relu()
        return self.second(hidden, edges)


def communities(nodes: int, classes: int) -> Data:
    """Return a graph with edges mostly inside classes; equal on every node of the cluster."""
    torch.manual_seed(0)
    sizes = [nodes // classes] * classes
    nodes = sum(sizes)
    inside, outside = 30 / sizes[0], 6 / (nodes - sizes[0])
    probabilities = torch.full((classes, classes), outside) + torch.eye(classes) * (inside - outside)
    edges = stochastic_blockmodel_graph(sizes, probabilities)
    return Data(
        edge_index=edges,
        y=torch.arange(classes).repeat_interleave(sizes[0]),
        n_id=torch.arange(nodes),
        train_mask=torch.rand(nodes) < 0.5,
        num_nodes=nodes,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a graph network on generated communities.")
    parser.add_argument("--nodes", type=int, default=4_000, help="of the graph")
    parser.add_argument("--classes", type=int, default=8)
    parser.add_argument("--parts", type=int, default=4, help="batches per epoch")
    parser.add_argument("--epochs", type=int, default=12)
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    graph = communities(given.nodes, given.classes)
    model = GraphModel(graph.num_nodes, given.classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    model = aa.AdaModel(model, optimizer)
    loader = aa.AdaDataLoader(RandomNodeLoader(graph, num_parts=given.parts, shuffle=True), shard=True)

    for epoch in range(given.epochs):
        for part in loader:
            scores = model(part.n_id, part.edge_index)
            loss = nn.functional.cross_entropy(scores[part.train_mask], part.y[part.train_mask])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if model.worker_index == 0:
            model.eval()
            with torch.no_grad():
                found = model(graph.n_id, graph.edge_index).argmax(1)
            model.train()
            right = (found == graph.y)[~graph.train_mask].float().mean()
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}, accuracy {right:.3f}")
    model.close()


if __name__ == "__main__":
    main()
