"""Refuses parameters that are added after wrapping, and other modules that own the model's parameters."""

from __future__ import annotations

import gc
import weakref

from torch import nn
from torch.nn.modules import module as registration

_wrapped: weakref.WeakKeyDictionary[nn.Module, frozenset[int]] = weakref.WeakKeyDictionary()
"""The modules of wrapped models, and the identities of the parameters that are in the server."""


ONE_PROCESS = (
    "the parameter server shares a wrapped model's parameters between processes: start one for each device, "
    "as torchrun does, without DataParallel or DistributedDataParallel; docs/guides/trainers.md "
    "describes how trainers train without them"
)
PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)
_wrappers: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_parallel: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""Existing modules of the classes `PARALLEL`."""


def refuse_parallel(model: nn.Module) -> None:
    """Raise TypeError if a module of the classes `PARALLEL` has parameters of `model`."""
    if _parallel:
        gc.collect()  # A module without references does not count.
    own = set(map(id, model.parameters()))
    if any(id(parameter) in own for other in _parallel for parameter in other.parameters()):
        raise TypeError(ONE_PROCESS)


def forbid_new_parameters(model: nn.Module, wrapper: nn.Module) -> None:
    """Refuse new parameters in `model` and its modules from now on."""
    _wrappers.add(wrapper)
    known = frozenset(map(id, model.parameters()))
    _wrapped.update(dict.fromkeys(model.modules(), known))


def _parameter_comes(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
    known = _wrapped.get(module)
    if known is not None and parameter is not None and id(parameter) not in known:
        raise RuntimeError(
            f"the parameter {name!r} comes after AdaModel wrapped the model, and would never be trained: "
            "change the model before it is wrapped, or write new values into the parameter that is there"
        )


def _module_comes(module: nn.Module, name: str, child: nn.Module | None) -> None:
    if isinstance(module, PARALLEL) and child is not None:
        _parallel.add(module)
        if any(each in _wrappers for each in child.modules()):
            raise TypeError(ONE_PROCESS)
    known = _wrapped.get(module)
    if known is None or child is None:
        return
    new = [path for path, parameter in child.named_parameters() if id(parameter) not in known]
    if new:
        raise RuntimeError(
            f"the module {name!r} comes after AdaModel wrapped the model, and its parameter {new[0]!r} would "
            "never be trained: change the model before it is wrapped"
        )
    _wrapped.update(dict.fromkeys(child.modules(), known))


registration.register_module_parameter_registration_hook(_parameter_comes)
registration.register_module_module_registration_hook(_module_comes)
