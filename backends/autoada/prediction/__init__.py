"""Access prediction: which rows a future batch will read, found from the model's own forward."""

from autoada.prediction.accesses import Access, Prediction
from autoada.prediction.predictor import IntentPredictor

__all__ = ["Access", "IntentPredictor", "Prediction"]
