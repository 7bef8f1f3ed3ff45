"""The global random generators of this process: of PyTorch, NumPy and Python."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

RandomState = dict[str, Any]
"""NumPy arrays and JSON values, by name."""


def random_state(device: torch.device | None = None) -> RandomState:
    """Return the states of all generators, including a CUDA device's generator if a device is given."""
    python = random.getstate()
    name, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002 - the state of legacy code
    state: RandomState = {
        "torch": torch.get_rng_state().numpy(),
        "numpy": np.asarray(keys),
        "numpy rest": [name, *rest],
        "python": [python[0], list(python[1]), python[2]],
    }
    if device is not None and device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device).numpy()
    return state


def set_random_state(state: RandomState, device: torch.device | None = None) -> None:
    """Set all generators to the states that `random_state` returned."""
    torch.set_rng_state(torch.from_numpy(state["torch"]))
    name, *rest = state["numpy rest"]
    np.random.set_state((name, state["numpy"], *rest))  # noqa: NPY002
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    if device is not None and device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(torch.from_numpy(state["cuda"]), device)
