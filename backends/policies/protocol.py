"""The old name of `adabench.backends.policies.interface`."""

from adabench.usecases.common.old_names import forward

__getattr__ = forward(
    __name__,
    *(f"adabench.backends.policies.{module}" for module in ("interface", "resources", "cost_model")),
    *(f"adaps.{module}" for module in ("policy", "policy.executed", "policy.limits", "policy.matching")),
    "adaps.simulation",
)
