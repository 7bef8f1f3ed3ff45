"""Base of the wrapper: forwards to the plain module, and refuses to copy, move or pickle it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from autoada.model.call_interception import Calls
from autoada.parameters.forbid_new_parameters import ONE_PROCESS


class ForwardingModule(nn.Module):
    """Forwards attributes, methods and registrations to the plain module that it wraps.

    Attributes
    ----------
    module : nn.Module
        The plain module.
    """

    _calls: Calls
    _device: torch.device

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
        value = getattr(self.module, name)
        return self._calls.intercept(name, value, self)

    def __setattr__(self, name: str, value: Any) -> None:
        module = self.__dict__.get("_modules", {}).get("module")
        if module is None or name in self.__dict__ or hasattr(type(self), name):
            super().__setattr__(name, value)
        else:
            setattr(module, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.module, name)

    def add_module(self, name: str, module: nn.Module | None) -> None:
        """Add a module to the wrapped model."""
        self.module.add_module(name, module)

    def register_module(self, name: str, module: nn.Module | None) -> None:
        """Register a module with the wrapped model."""
        self.module.register_module(name, module)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Register a parameter with the wrapped model."""
        self.module.register_parameter(name, param)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Register a buffer with the wrapped model."""
        self.module.register_buffer(name, tensor, persistent)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ForwardingModule:
        """Refuse to move or cast the model, as ``to()``, ``cuda()``, ``double()`` and their like would."""
        here = torch.empty(0, device=self._device)
        there = fn(here)
        if (there.device, there.dtype) != (here.device, here.dtype):
            raise RuntimeError(
                f"a wrapped model stays {here.dtype} on {here.device}: move it before AdaModel wraps it"
            )
        return self

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a wrapped model is in the parameter server: "
            "save model.state_dict() or autoada.unwrap(model) instead"
        )

    @property
    def _ddp_params_and_buffers_to_ignore(self) -> NoReturn:
        raise TypeError(ONE_PROCESS)  # DistributedDataParallel reads this attribute first
