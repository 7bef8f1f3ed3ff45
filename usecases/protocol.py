"""The old name of `adabench.usecases.interface`."""

from adabench.usecases.common.old_names import forward

__getattr__ = forward(__name__, "adabench.usecases.interface")
