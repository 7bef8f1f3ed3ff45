"""AutoAda: any PyTorch model and data loader on the adaptive parameter server, with automatic intent.

Examples
--------
>>> import autoada as aa
>>> optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
>>> model = aa.AdaModel(model, optimizer)
>>> loader = aa.AdaDataLoader(loader)
>>> for batch, label in loader:
...     loss = criterion(model(batch), label)
...     loss.backward()
...     optimizer.step()
...     optimizer.zero_grad()
"""

if __name__ != "autoada":
    raise ImportError(
        f"this folder is the package 'autoada', not {__name__!r}: install the project and import autoada"
    )

from autoada.hash_embedding import HashEmbedding
from autoada.loader.data_loader import AdaDataLoader
from autoada.model.node_setup import create_node
from autoada.model.wrapper import AdaModel, unwrap
from autoada.parameters.negative_sampler import NegativeSampler
from autoada.prediction import Access, IntentPredictor, Prediction

__all__ = [
    "Access",
    "AdaDataLoader",
    "AdaModel",
    "HashEmbedding",
    "IntentPredictor",
    "NegativeSampler",
    "Prediction",
    "create_node",
    "unwrap",
]
