"""The old name of `adabench.backends.interface`."""

from adabench.usecases.common.old_names import forward

__getattr__ = forward(
    __name__,
    *("adabench.backends.interface", "adaps", "autoada"),
    Cluster="WorkerContext",
    Session="TrainingSession",
)
