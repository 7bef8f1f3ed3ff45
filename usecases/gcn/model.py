"""The model: plain PyTorch and PyG."""

import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv


class Gcn(nn.Module):
    """Embeddings, and perhaps features → GCNConv → ReLU → GCNConv (Kipf and Welling, ICLR 2017).

    Embeddings of all nodes are learned. The features of the nodes are inputs.

    Parameters
    ----------
    nodes, dim : int
        Numbers of rows and columns of the embedding, which has sparse gradients.
    hidden, classes : int
        Widths of the two convolutions.
    generator : torch.Generator
        Random generator for the initial weights.
    features : int
        Number of features of a node, which follow its embedding.
    """

    def __init__(
        self, nodes: int, dim: int, hidden: int, classes: int, generator: torch.Generator, features: int = 0
    ) -> None:
        super().__init__()
        weight = nn.init.normal_(torch.empty(nodes, dim), std=dim**-0.5, generator=generator)
        self.embedding = nn.Embedding.from_pretrained(weight, freeze=False, sparse=True)
        self.conv1 = GCNConv(dim + features, hidden)
        self.conv2 = GCNConv(hidden, classes)
        # PyG draws from the global generator, which other worker threads use concurrently.
        for conv in (self.conv1, self.conv2):
            nn.init.xavier_uniform_(conv.lin.weight, generator=generator)

    def forward(self, n_id: Tensor, edge_index: Tensor, features: Tensor | None = None) -> Tensor:
        """Return logits (subgraph's nodes, classes) for ids (subgraph's nodes,) and arcs (2, arcs)."""
        x = self.embedding(n_id)
        if features is not None:
            x = torch.cat([x, features], dim=1)
        x = self.conv1(x, edge_index).relu()
        out: Tensor = self.conv2(x, edge_index)
        return out
