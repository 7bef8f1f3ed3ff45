"""AutoAda: any PyTorch model and data loader on the adaptive parameter server, with automatic intent.

Example
-------
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

from autoada.access import Access, IntentPredictor, Prediction
from autoada.choice import Chosen
from autoada.dataloader import AdaDataLoader
from autoada.initialization import Selection, select_initialization
from autoada.management import create_node
from autoada.model import AdaModel
from autoada.negatives import NegativeSampler
from autoada.unwrap import unwrap

__all__ = [
    "Access",
    "AdaDataLoader",
    "AdaModel",
    "Chosen",
    "IntentPredictor",
    "NegativeSampler",
    "Prediction",
    "Selection",
    "create_node",
    "select_initialization",
    "unwrap",
]
