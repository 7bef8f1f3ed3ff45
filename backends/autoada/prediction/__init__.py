"""Access prediction: which rows a future batch will read, found from the model's own forward."""

from autoada.prediction.predictor import IntentPredictor
from autoada.prediction.result import Access, Prediction

__all__ = ["Access", "IntentPredictor", "Prediction"]
