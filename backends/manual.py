"""The old name of `adabench.backends.strategies.manual`."""

from adabench.usecases.common.old_names import forward

__getattr__ = forward(__name__, "adabench.backends.strategies.manual")
