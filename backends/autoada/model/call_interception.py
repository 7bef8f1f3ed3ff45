"""Interception of calls of the model: its forward, its methods, and its modules."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import nn
from torch.nn.modules import module as registration

from autoada.model.wrapped_parameters import WrappedParameters
from autoada.prediction.argument_recording import ArgumentRecorder
from autoada.prediction.operations import CallArguments
from autoada.training.training_state import CallObserver, TrainingState

_mode_of, _GRAPH = torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.PROXY
_present_compiler = torch._C._dynamo.eval_frame.get_eval_frame_callback
"""Returns the callback with which a compiler handles new frames of this thread; None if there is none."""
NO_GRAPH = (
    "a wrapped model can be neither scripted nor traced, because its rows are in the parameter server: "
    "use autoada.unwrap(model) instead"
)


class Calls:
    """Surrounds each call of the model. Calls within another call do not count.

    A call of the model itself always counts. A call of a method or module counts if it reads rows. Other
    calls, such as a method that computes a loss from two tensors, are helpers of the loop.
    """

    def __init__(self, module: nn.Module, state: TrainingState, parameters: WrappedParameters) -> None:
        self._state = state
        self._wrapped = parameters
        self._reads = state.reads
        self._present: Present | None = None
        # Rows come from outside of any graph.
        self._run_outside_graphs = torch.compiler.disable(self.run)
        self.direct = DirectCalls(self, "", module)
        """Hooks of the model itself."""
        self._followed = {"": self.direct}
        if isinstance(module, (nn.ModuleList, nn.ModuleDict)):  # Only the children can be called.
            for name, child in module.named_children():
                self._follow(name, child)

    def intercept(self, name: str, value: Any, wrapper: nn.Module) -> Any:
        """Return `value`, an attribute of the model, in a form whose calls through the wrapper count.

        These are calls of a method of the model, or of one of its modules.
        """
        if inspect.ismethod(value) and value.__self__ is wrapper.module:

            @functools.wraps(value)
            def call(*args: Any, **kwargs: Any) -> Any:
                return self.run(name, value, wrapper.training, (args, kwargs))

            return call
        if isinstance(value, nn.Module):
            self._follow(name, value)
        return value

    def _follow(self, name: str, module: nn.Module) -> None:
        """Count direct calls of one of the model's modules, or of the modules in a list."""
        if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            for key, each in module.named_children():
                self._follow(f"{name}.{key}", each)
        elif name not in self._followed:
            self._followed[name] = DirectCalls(self, name, module)

    def run(self, target: str, function: Callable[..., Any], training: bool, arguments: CallArguments) -> Any:
        """Call a method or module of the model; `target` is its dotted name, empty for the model itself."""
        if torch.compiler.is_compiling() or _present_compiler() is not None:
            return self._run_outside_graphs(target, function, training, arguments)
        args, kwargs = arguments
        present = self.begin(target, training, arguments)
        if present is None:
            return function(*args, **kwargs)
        try:
            output = function(*args, **kwargs)
        except BaseException:
            self.fail(present)
            raise
        self.end(present, output)
        return output

    def begin(
        self, target: str, training: bool, arguments: CallArguments, hooked: bool = False
    ) -> Present | None:
        """Begin a call. Returns None if the call is part of another call, whose end counts.

        A call that a hook intercepted may have been interrupted without an end. So a call through the
        wrapper, or a call of the same module, is never part of it.
        """
        outer = self._present
        if outer is not None:
            if not outer.hooked or (hooked and outer.target != target):
                return None
            self.fail(outer)
        if torch._C._get_tracing_state() is not None or _mode_of(_GRAPH) is not None:
            raise TypeError(NO_GRAPH)  # The rows of this call would be constants of the graph.
        state = self._state
        observer = state.begin_call(training)
        others = self._pause_others(observer) if torch._C._len_torch_function_stack() > 0 else ()
        if not training:
            self._reads.training = False
            if not self._reads:  # The clock does not advance, but no step needs the rows of earlier calls.
                state.worker.end_uses()
            self._reads.forget_rows()
            self._wrapped.refresh()
            self._present = Present(target, hooked, False, others=others)
            return self._present
        if observer is not None:
            observer.call_begins(target, *arguments)
        state.calls += 1
        expected = state.calls <= state.expected_calls
        self._reads.training = self._reads.noting = True
        if state.calls == 1 or not expected:  # the rows of all expected calls were pulled by the first
            self._reads.forget_rows()
        if self._wrapped.stale:
            self._wrapped.update()
        replay = state.replay if expected else None
        if replay is not None:
            replay.__enter__()
        present = Present(target, hooked, True, replay, len(self._reads), expected, others, observer)
        self._present = present
        return present

    def end(self, present: Present, output: Any) -> None:
        """End a call that returned `output`."""
        left = self._leave(present)
        for other in present.others:
            other.give_up(output)
            other.start()
        present.others = ()
        if not left:
            return
        state = self._state
        counts = not present.target or len(self._reads) > present.read_before
        if not present.expected:
            del self._reads[present.read_before :]
        if not counts:
            state.calls -= 1
        elif state.calls == 1:
            state.first_target = present.target
        if present.observer is not None:
            present.observer.call_ends(output, counts)

    def fail(self, present: Present) -> None:
        """End a call that raised or was interrupted. Its further reads are unknown."""
        for other in present.others:
            other.start()
        present.others = ()
        if self._leave(present):
            self._state.calls -= 1

    def stepping(self) -> None:
        """End the current call, such as a method that trains, because it makes a step."""
        if self._present is not None:
            self.end(self._present, None)

    def abandon_call(self) -> None:
        """Drop the current call, such as a method that trains, because it requested a batch."""
        if self._present is not None and self._present.thread == threading.get_ident():
            self.fail(self._present)

    @staticmethod
    def _pause_others(observer: CallObserver | None) -> Sequence[ArgumentRecorder]:
        """Pause the recordings for other models, because this call is not part of their loop."""
        own = None if observer is None else observer.recording
        modes = torch.overrides._get_current_function_mode_stack()
        others = [mode for mode in modes if isinstance(mode, ArgumentRecorder) and mode is not own]
        for other in others:
            other.stop()
        return others

    def _leave(self, present: Present) -> bool:
        """End a call; return whether it was in training mode and had not ended before."""
        if self._present is not present:
            return False
        self._present = None
        if present.replay is not None:
            present.replay.__exit__(None, None, None)
        if present.training:
            self._reads.noting = False
        return present.training


@dataclass(eq=False, slots=True)
class Present:
    """A call that has begun and not ended."""

    target: str
    """Dotted name of the method or module; empty for the model itself."""
    hooked: bool
    """Whether a hook intercepted the call. Otherwise the wrapper did."""
    training: bool
    """Whether the model was in training mode."""
    replay: AbstractContextManager[Any] | None = None
    """Context that records values for predictions, if there are predictions."""
    read_before: int = 0
    expected: bool = False
    """Whether the call was predicted for the batch."""
    others: Sequence[ArgumentRecorder] = ()
    """Recordings of the loop for other models, which are paused during the call."""
    observer: CallObserver | None = None
    """Queue of the batch in use, which observes the call."""
    thread: int = field(default_factory=threading.get_ident)


class DirectCalls:
    """Hooks of a module that the loop calls directly, not through the wrapper.

    Copies of the module also have the hooks, which do nothing there.
    """

    def __init__(self, calls: Calls, target: str, module: nn.Module) -> None:
        self._calls = weakref.ref(calls)
        self._target = target
        self._module = weakref.ref(module)
        self._present: Present | None = None
        self._first = module.register_forward_pre_hook(self._before, with_kwargs=True, prepend=True).id
        self._last = module.register_forward_hook(self._after, always_call=True).id

    def within_call(self, module: nn.Module) -> Callable[..., Any]:
        """Return the function for a call within another call: the forward, or `module` if it has other hooks.

        These hooks have no effect within a call.
        """
        if (
            len(module._forward_pre_hooks) == len(module._forward_hooks) == 1
            and self._first in module._forward_pre_hooks
            and self._last in module._forward_hooks
            and not (module._backward_hooks or module._backward_pre_hooks)
            and not registration._has_any_global_hook()
            and module._compiled_call_impl is None
            and type(module).__call__ is nn.Module.__call__
            and torch._C._get_tracing_state() is None
        ):
            forward: Callable[..., Any] = module.forward
            return forward
        return module

    def __deepcopy__(self, memo: dict[int, Any]) -> DirectCalls:
        return self

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "the model trains on the parameter server: "
            "save model.state_dict() or autoada.unwrap(model) instead"
        )

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls = self._calls()
        if calls is not None and module is self._module():
            self._present = calls.begin(self._target, module.training, (args, kwargs), hooked=True)

    def _after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        calls, present = self._calls(), self._present
        if calls is None or present is None or module is not self._module():
            return
        self._present = None
        if output is None and sys.exc_info()[0] is not None:
            calls.fail(present)
        else:
            calls.end(present, output)


def without_hooks(module: nn.Module) -> nn.Module:
    """Remove what wrapping has added to the modules of `module`, a copy of a wrapped module; return it."""
    for each in module.modules():
        for hooks in (each._forward_pre_hooks, each._forward_hooks):
            for number, hook in list(hooks.items()):
                if isinstance(getattr(hook, "__self__", None), DirectCalls):
                    del hooks[number]
                    each._forward_pre_hooks_with_kwargs.pop(number, None)
                    each._forward_hooks_always_called.pop(number, None)
    return module
