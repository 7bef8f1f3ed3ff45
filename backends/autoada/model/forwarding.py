"""Base class of the wrapper: forwards to the plain module, and refuses copies, moves and pickling."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Set
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor, nn

from autoada.model.call_interception import NO_GRAPH, Calls
from autoada.parameters.forbid_new_parameters import ONE_PROCESS

Wrapper = TypeVar("Wrapper", bound="ForwardingModule")
_REFUSED = "_ddp_params_and_buffers_to_ignore"
"""Attribute that raises. It is hidden from tools that read all attributes."""


class ForwardingModule(nn.Module):
    """Forwards attributes, methods and registrations to the plain module that it wraps.

    Python looks up special methods in the class, as in ``len(model)``. So each wrapper has a separate class,
    with the special methods of the plain module, its overrides of `torch.nn.Module`'s methods, and the
    signature of its forward.
    """

    _calls: Calls
    _of_both: Set[str]
    """Public names that both `AdaModel` and the wrapped model have."""
    _device: torch.device

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
        value = getattr(self.module, name)
        return self._calls.intercept(name, value, self)

    @property
    def training(self) -> bool:
        """Whether the wrapped model is in training mode."""
        training: bool = self.module.training
        return training

    @training.setter
    def training(self, mode: bool) -> None:
        if "module" in self.__dict__.get("_modules", {}):
            self.module.training = mode

    def __setattr__(self, name: str, value: Any) -> None:
        module = self.__dict__.get("_modules", {}).get("module")
        if module is not None and name in self._of_both:
            raise AttributeError(
                f"both AdaModel and {type(module).__name__} have the attribute {name!r}: assign "
                f"model.module.{name}"
            )
        if module is None or name in self.__dict__ or hasattr(type(self), name):
            super().__setattr__(name, value)
        else:
            setattr(module, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.module, name)

    def __dir__(self) -> Iterable[str]:
        return sorted({*nn.Module.__dir__(self), *dir(self.module)} - {_REFUSED})

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """Return the wrapper and the modules of the wrapped model, by their names in the wrapped model."""
        memo = set() if memo is None else memo
        if self not in memo:
            if remove_duplicate:
                memo.add(self)
            yield prefix, self
            yield from self.module.named_modules(memo, prefix, remove_duplicate)

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        """Return the children of the wrapped model, in a form whose calls count."""
        for name, child in self.module.named_children():
            yield name, self._calls.intercept(name, child, self)

    def train(self: Wrapper, mode: bool = True) -> Wrapper:
        """Set the wrapped model to training mode, or to evaluation mode."""
        self.module.train(mode)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ForwardingModule:
        """Refuse to move or cast the model, as ``to()``, ``cuda()`` and ``double()`` would."""
        for dtype in dict.fromkeys(x.dtype for x in (*self.module.parameters(), *self.module.buffers())):
            here = torch.empty(0, dtype=dtype, device=self._device)
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

    def __prepare_scriptable__(self) -> NoReturn:
        raise TypeError(NO_GRAPH)  # torch.jit.script calls this method first

    @property
    def _ddp_params_and_buffers_to_ignore(self) -> NoReturn:
        raise TypeError(ONE_PROCESS)  # DistributedDataParallel reads this attribute first


def _forwarded(name: str) -> Callable[..., Any]:
    """Return a method that calls the method of the wrapped model."""

    @functools.wraps(getattr(nn.Module, name))
    def call(self: ForwardingModule, *args: Any, **kwargs: Any) -> Any:
        result = getattr(self.module, name)(*args, **kwargs)
        return self if result is self.module else result

    return call


for _name in (
    "apply",
    "add_module",
    "register_module",
    "register_parameter",
    "register_buffer",
    "register_state_dict_pre_hook",
    "register_state_dict_post_hook",
    "register_load_state_dict_pre_hook",
    "register_load_state_dict_post_hook",
    "_register_state_dict_hook",
    "_register_load_state_dict_pre_hook",
):
    setattr(ForwardingModule, _name, _forwarded(_name))

_OF_COPIES = ("__copy__", "__getstate__", "__getnewargs__", "__getnewargs_ex__", "__replace__")
"""Special methods that make copies."""


def names_of_both(wrapper: nn.Module, module: nn.Module) -> set[str]:
    """Return public names that the wrapper adds to `torch.nn.Module`, and that the wrapped model also has."""
    added = {*dir(type(wrapper)), *vars(wrapper), "module"} & set(dir(module))
    return {name for name in added - set(dir(nn.Module)) if not name.startswith("_")} - {"training"}


def class_for(wrapper: type[Wrapper], kind: type[nn.Module]) -> type[Wrapper]:
    """Return a subclass of `wrapper` for modules of class `kind`."""
    methods = [name for name in dir(kind) if inspect.isfunction(inspect.getattr_static(kind, name))]
    special = [
        name
        for name in methods
        if name.startswith("__") and name.endswith("__") and name not in _OF_COPIES
        if not hasattr(wrapper, name)
    ]
    overridden = [
        name
        for name in methods
        if not name.startswith("_") and hasattr(nn.Module, name)
        if getattr(wrapper, name) is getattr(nn.Module, name) is not getattr(kind, name)
    ]

    @functools.wraps(kind.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return wrapper.forward(self, *args, **kwargs)

    own = {name: _method_of_module(name) for name in [*special, *overridden]}
    return type(wrapper.__name__, (wrapper,), {**own, "forward": forward, "__module__": wrapper.__module__})


def _method_of_module(name: str) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        module = self.module

        def apply(fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
            self._apply(fn)  # Refuses to move the model.
            moved: nn.Module = type(module)._apply(module, fn, recurse)
            return moved

        dict(self.named_children())  # A container returns its children, and their calls count.
        vars(module)["_apply"] = apply
        try:
            result = self._calls.intercept(name, getattr(module, name), self)(*args, **kwargs)
        finally:
            vars(module).pop("_apply", None)
        return self if result is module else result

    return call
