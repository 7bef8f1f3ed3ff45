"""The global random generators of this process: of PyTorch, NumPy and Python."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

RandomState = dict[str, Any]
"""NumPy arrays and what JSON holds, by name."""


def random_state(device: torch.device | None = None) -> RandomState:
    """The states of all generators, that of a CUDA device included if one is given."""
    python = random.getstate()
    name, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002 - that of legacy code
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
    """Have all generators go on from what `random_state` gave."""
    torch.set_rng_state(torch.from_numpy(state["torch"]))
    name, *rest = state["numpy rest"]
    np.random.set_state((name, state["numpy"], *rest))  # noqa: NPY002
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    if device is not None and device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(torch.from_numpy(state["cuda"]), device)
