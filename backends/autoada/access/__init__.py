"""Access prediction: which rows a future batch will read, found from the model's own forward."""

from autoada.access.accesses import Access, Prediction
from autoada.access.predictor import IntentPredictor

__all__ = ["Access", "IntentPredictor", "Prediction"]
