"""Runs a program plain and wrapped, and compares all shown values."""

from __future__ import annotations

import contextlib
import dis
import functools
import gc
import logging
import os
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

import adaps
import autoada
from autoada.model.wrapper import open_models
from tests.fuzz_semantics.program import Program, compiled

__all__ = ["Kind", "Outcome", "Seen", "compared", "judge", "quiet", "report", "run", "without_bugs"]

TOLERANCE = 1e-5
LARGEST = 1e6
"""Bound of numbers of a training that does not diverge."""
SECONDS = 20
"""Seconds after which a program counts as hanging."""

OWN = tuple(os.path.dirname(os.path.abspath(str(module.__file__))) for module in (adaps, autoada))
REFUSALS = (ValueError, TypeError, RuntimeError)

Kind = Literal["equal", "refused", "invalid", "ill-conditioned", "DIFFERENT", "OBSCURE ERROR", "HANGS"]
Function = Callable[[bool, Callable[[Any], None]], None]


@dataclass(frozen=True)
class Outcome:
    """Result of a program.

    Attributes
    ----------
    kind : str
        "equal"; "refused" with an error of the wrapper; "invalid" if plain PyTorch raises;
        "ill-conditioned" if rounding errors change the plain result as well; or the kind of a bug.
    detail : str
        Error message, or first difference.
    origin : str
        Place of the error in the source of the wrapper, or the kind of value that differs.
    """

    kind: Kind
    detail: str = ""
    origin: str = ""

    @property
    def is_bug(self) -> bool:
        return self.kind.isupper()


class Hanging(BaseException):
    """A program runs longer than `SECONDS`."""


@dataclass(frozen=True)
class Failure:
    """An error that ended a run.

    Attributes
    ----------
    kind : str
        "refused", "OBSCURE ERROR" or "HANGS".
    message : str
        Type and message of the error.
    origin : str
        Functions of the wrapper and of PyTorch that raised it.
    trace : str
        Traceback as text.
    """

    kind: Kind
    message: str
    origin: str
    trace: str = ""


@dataclass
class Seen:
    """The values that a run of a program showed, and the error that ended it."""

    values: list[Any]
    error: Failure | None = None


def quiet() -> None:
    """Silence the wrapper's log, and use one thread, as programs are small."""
    logging.getLogger("autoada").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    gc.freeze()


def judge(program: Program, trusted: bool = False) -> Outcome:
    """Run a program both ways in this process.

    A program that is invalid in plain PyTorch only has to end when it is wrapped. That is left out for
    `trusted` programs.
    """
    try:
        function = compiled(program.source())
    except SyntaxError as error:  # Shrinking may leave a condition without a body.
        return Outcome("invalid", str(error))
    plain = run(function, wrapped=False)
    if plain.error is not None and trusted:
        return Outcome("invalid", plain.error.message)
    if not is_finite(plain.values):
        return Outcome("ill-conditioned", "the training diverges")
    wrapped = run(function, wrapped=True)
    outcome = compared(plain, wrapped)
    if outcome.kind == "DIFFERENT" and is_ill_conditioned(program, plain):
        return Outcome("ill-conditioned", outcome.detail)
    return outcome


def without_bugs(program: Program, function: Function) -> Seen | None:
    """Return the values of the plain program, if the wrapped program is equal or refused; otherwise None."""
    plain = run(function, wrapped=False)
    if plain.error is not None or not is_finite(plain.values):
        return None
    outcome = compared(plain, run(function, wrapped=True))
    return None if outcome.is_bug or is_ill_conditioned(program, plain) else plain


def run(function: Function, wrapped: bool, closes: bool = True) -> Seen:
    """Run a program once; all that it shows is copied when it is shown.

    A model that is left open after an error is closed if the process continues (`closes`).
    """
    seen = Seen([])
    with warnings.catch_warnings(), time_limit():
        warnings.simplefilter("ignore")
        try:
            function(wrapped, lambda value: seen.values.append(snapshot(value)))
        except (Exception, Hanging) as error:
            seen.error = failure_of(error)
    if seen.error is not None and wrapped and closes:
        close_all()
    return seen


def close_all() -> None:
    """Close the models that a program left open when it failed."""
    with contextlib.suppress(RuntimeError), time_limit():
        for model in open_models():
            with contextlib.suppress(Exception, Hanging):
                model.close()


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    """Raise `Hanging` in the main thread after `SECONDS`."""

    def late(number: int, frame: FrameType | None) -> None:
        raise Hanging(f"ran longer than {SECONDS} s")

    left = signal.setitimer(signal.ITIMER_REAL, 0)  # another limit, such as a test's
    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *left)


def snapshot(value: Any) -> Any:
    """A copy of a shown value as plain tensors, numbers, strings, and containers of them."""
    if isinstance(value, nn.Module):
        return snapshot(value.state_dict())
    if isinstance(value, torch.optim.Optimizer):
        return snapshot(value.state_dict())
    if isinstance(value, Tensor):
        value = value.detach()
        dense = value.to_dense() if value.is_sparse else value
        copy = torch.empty(dense.shape, dtype=dense.dtype)
        copy.copy_(dense)
        return {"sparse": copy} if value.is_sparse else copy
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.array(value))
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {key: snapshot(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [snapshot(one) for one in value]
    if value is None or isinstance(value, (int, float, str, bool)):
        return value
    return str(value)


def failure_of(error: BaseException) -> Failure:
    """Description of an error."""
    message = f"{type(error).__name__}: {error}"
    trace = "".join(traceback.format_exception(error))
    if isinstance(error, Hanging):
        return Failure("HANGS", message, "hangs", trace)
    kind: Kind = "refused" if is_refusal(error) else "OBSCURE ERROR"
    return Failure(kind, message, innermost(error.__traceback__), trace)


def compared(plain: Seen, wrapped: Seen) -> Outcome:
    """Return the outcome of two runs, ignoring growing rounding errors."""
    failure = wrapped.error
    if failure is not None and failure.kind == "HANGS":
        return Outcome("HANGS", "the wrapped program does not end", "hangs")
    if plain.error is not None:
        return Outcome("invalid", plain.error.message)
    for number, (expected, got) in enumerate(zip(plain.values, wrapped.values, strict=False)):
        if difference := first_difference(expected, got):
            return Outcome("DIFFERENT", f"value {number} shown: {difference}", label(expected))
    if failure is not None:
        return Outcome(failure.kind, failure.message, failure.origin)
    if len(plain.values) != len(wrapped.values):
        return Outcome(
            "DIFFERENT", f"shows {len(wrapped.values)} values instead of {len(plain.values)}", "number"
        )
    return Outcome("equal")


def label(value: Any) -> str:
    """Name of a value that is shown at the end of each program, or "shown"."""
    return str(next(iter(value))) if isinstance(value, dict) and len(value) == 1 else "shown"


def is_refusal(error: BaseException) -> bool:
    """Whether a ``raise`` statement of the wrapper or of the server's Python API raised the error.

    An error that an operation of PyTorch raises inside the wrapper's code is not a refusal.
    """
    if "read-only" in str(error):  # NumPy refuses to write to the copy of a table
        return True
    innermost_frame = error.__traceback__
    while innermost_frame is not None and innermost_frame.tb_next is not None:
        innermost_frame = innermost_frame.tb_next
    if innermost_frame is None or not isinstance(error, REFUSALS):
        return False
    code = innermost_frame.tb_frame.f_code
    raised = dis.opname[code.co_code[innermost_frame.tb_lasti]] == "RAISE_VARARGS"
    return code.co_filename.startswith(OWN) and raised and len(str(error).split()) > 3


def innermost(trace: TracebackType | None) -> str:
    """File and function of the last frame of the wrapper in a traceback, and of the last frame of all."""
    frames = traceback.extract_tb(trace)
    own = [frame for frame in frames if frame.filename.startswith(OWN)]
    names = [
        f"{os.path.basename(frame.filename).partition(' ')[0]}:{frame.name}"
        for frame in [*own[-1:], *frames[-1:]]
    ]
    return " < ".join(dict.fromkeys(reversed(names)))


def is_finite(value: Any) -> bool:
    """Whether all shown numbers are finite and small enough to compare with an absolute tolerance."""
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool((value.abs() < LARGEST).all())
    if isinstance(value, (list, dict)):
        return all(map(is_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or abs(value) < LARGEST


def first_difference(expected: Any, got: Any, path: str = "") -> str | None:
    """Description of the first difference between two snapshots, or None."""
    if isinstance(expected, Tensor) and isinstance(got, Tensor):
        return tensor_difference(expected, got, path)
    if isinstance(expected, dict) and isinstance(got, dict):
        if list(expected) != list(got) and set(map(str, expected)) != set(map(str, got)):
            return f"{path} has keys {list(got)}, expected {list(expected)}"
        pairs = [(f"{path}[{key!r}]", one, got[key]) for key, one in expected.items()]
    elif isinstance(expected, list) and isinstance(got, list):
        if len(expected) != len(got):
            return f"{path} has {len(got)} items, expected {len(expected)}"
        pairs = [(f"{path}[{number}]", *both) for number, both in enumerate(zip(expected, got, strict=True))]
    elif isinstance(expected, float) and isinstance(got, (int, float)):
        return tensor_difference(torch.tensor(expected), torch.tensor(float(got)), path)
    else:
        return (
            None if type(expected) is type(got) and expected == got else f"{path} {got}, expected {expected}"
        )
    return next((text for name, one, other in pairs if (text := first_difference(one, other, name))), None)


def tensor_difference(expected: Tensor, got: Tensor, path: str) -> str | None:
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return f"{path} is {got.dtype} {tuple(got.shape)}, expected {expected.dtype} {tuple(expected.shape)}"
    if not expected.is_floating_point():
        return None if expected.equal(got) else f"{path} {got.tolist()}, expected {expected.tolist()}"
    if torch.allclose(expected, got, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
        return None
    worst = (expected - got).abs().nan_to_num(nan=float("inf")).flatten().argmax()
    place = [int(index) for index in np.unravel_index(int(worst), expected.shape)] if expected.ndim else ""
    return (
        f"{path} {place} {float(got.flatten()[worst]):.6g}, expected {float(expected.flatten()[worst]):.6g}"
    )


def is_ill_conditioned(program: Program, plain: Seen) -> bool:
    """Whether changes of the size of rounding errors change the plain program's values as much."""
    made = "net = model = Net()"
    source = program.source().replace(made, f"{made}\n    add_rounding_errors(net)")
    others = (
        run(compiled(source, add_rounding_errors=functools.partial(add_rounding_errors, seed)), wrapped=False)
        for seed in range(4)
    )
    return any(compared(plain, other).kind != "equal" for other in others)


def add_rounding_errors(seed: int, model: nn.Module) -> None:
    """Change the model's weights before each forward, and each gradient of a row, as much as rounding does.

    A sum of gradients that is zero in one order may be a tiny number in another, which some optimizers
    enlarge to a whole step. A maximum of equal weights is another one after a rounding error.
    """
    generator = torch.Generator().manual_seed(seed)

    def rounded(gradient: Tensor) -> Tensor:
        values = gradient._values() if gradient.is_sparse else gradient
        errors = 1e-7 * values.abs().max() * torch.randn(values.shape, generator=generator)
        values = values + errors * (values != 0).any(-1, keepdim=True)
        if not gradient.is_sparse:
            return values
        return torch.sparse_coo_tensor(gradient._indices(), values, gradient.shape)

    def round_weights(*_: Any) -> None:
        for parameter in model.parameters():
            parameter.data.mul_(1 + 2e-7 * torch.randn(parameter.shape, generator=generator))

    round_weights()
    model.register_forward_pre_hook(round_weights)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_hook(rounded)


def report(program: Function) -> None:
    """Run a printed program both ways and print what differs."""
    plain, wrapped = run(program, wrapped=False), run(program, wrapped=True)
    outcome = compared(plain, wrapped)
    print(outcome.kind, outcome.detail)
    if wrapped.error is not None and outcome.kind != "refused":
        print(wrapped.error.trace)
