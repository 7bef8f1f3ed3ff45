"""Update rules of tables, with the hyperparameters of the `torch.optim` optimizers of the same names.

PyTorch's dense optimizers also change a row in steps with a gradient of 0, because of momentum, weight decay
or decaying averages. Here, a row without a gradient is not changed until its next use. On a single node,
after ``node.table(name).set_step(number)`` has numbered the steps, a row catches up with all steps that it
missed when it is used. ``catch_up()`` lets rows catch up before they are read. On several nodes, or without
numbers, a row changes only with a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

from adaps import _argument_checks, _core

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "Optimizer", "RMSprop", "RowAdagrad", "SparseAdam"]


_BELOW_1 = ("alpha", "betas")
"""Hyperparameters in [0, 1). All other numbers are at least 0."""
_ONE = 1.0 - 2.0**-25
"""Smallest number that is 1 in float32, in which the server keeps its settings."""


class _UpdateRule:
    """Base class that checks hyperparameters, the fields of a subclass, and passes them to the core."""

    _kind: ClassVar[_core.RuleKind]
    _decoupled: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            value, limits = getattr(self, field.name), {"high": _ONE} if field.name in _BELOW_1 else {}
            if field.name == "betas":
                if not isinstance(value, Sequence) or len(value) != 2:
                    raise ValueError(f"betas is {value!r}; it must be two numbers")
                for i, beta in enumerate(value):
                    _argument_checks.number(f"betas[{i}]", beta, low=0.0, **limits)
            elif field.type != "bool":
                _argument_checks.number(field.name, value, low=0.0, **limits)

    def rule(self) -> _core.UpdateRule:
        """Return the rule for the core, for `NodeTable.set_hyperparameters`."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        if "betas" in given:
            given["beta1"], given["beta2"] = given.pop("betas")
        if "alpha" in given:
            given["beta2"] = given.pop("alpha")
        return _core.UpdateRule(self._kind, decoupled=self._decoupled, **given)


@dataclass(frozen=True)
class SGD(_UpdateRule):
    """Stochastic gradient descent like `torch.optim.SGD`, with optional momentum.

    A row has 4 bytes of state per float with momentum, and 4 further bytes with momentum or weight decay.

    Parameters
    ----------
    lr : float
        Learning rate, 0 or more.
    momentum : float
        Momentum: factor for the previous change, at least 0.
    weight_decay : float
        Weight decay: this factor times the value is added to the gradient; at least 0.
    nesterov : bool
        Whether to use Nesterov momentum, which requires a momentum above 0.

    Raises
    ------
    ValueError
        If a number is out of its range.
    """

    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and not self.momentum:
            raise ValueError(f"nesterov is {self.nesterov!r} and momentum 0: it needs a momentum")

    @property
    def _kind(self) -> _core.RuleKind:  # type: ignore[override]
        return _core.RuleKind.MOMENTUM if self.momentum else _core.RuleKind.SGD


@dataclass(frozen=True)
class Adagrad(_UpdateRule):
    """Adagrad (Duchi, Hazan, Singer 2011) with one accumulator per float, like `torch.optim.Adagrad`.

    With weight decay, a row replays its missed steps one by one when it is used. This costs as much as the
    dense optimizer's work in these steps.

    Parameters
    ----------
    lr : float
        Learning rate, 0 or more.
    eps : float
        Summand for the root of the accumulator, at least 0.
    initial_accumulator : float
        Initial value of each accumulator, at least 0.
    weight_decay : float
        Weight decay: this factor times the value is added to the gradient; at least 0.

    Raises
    ------
    ValueError
        If a number is out of its range.
    """

    lr: float = 0.01
    eps: float = 1e-10
    initial_accumulator: float = 0.0
    weight_decay: float = 0.0

    _kind: ClassVar[_core.RuleKind] = _core.RuleKind.ADAGRAD


@dataclass(frozen=True)
class RowAdagrad(_UpdateRule):
    """Row-wise Adagrad with one accumulator per row, for the mean of the squared gradient.

    Parameters
    ----------
    lr : float
        Learning rate, 0 or more.
    eps : float
        Summand for the root of the accumulator, at least 0.
    initial_accumulator : float
        Initial value of the accumulator, at least 0.

    Raises
    ------
    ValueError
        If a number is out of its range.
    """

    lr: float = 0.01
    eps: float = 1e-10
    initial_accumulator: float = 0.0

    _kind: ClassVar[_core.RuleKind] = _core.RuleKind.ROW_ADAGRAD


@dataclass(frozen=True)
class _Moments(_UpdateRule):
    """Hyperparameters of all variants of Adam."""

    lr: float = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    _kind: ClassVar[_core.RuleKind] = _core.RuleKind.ADAM


@dataclass(frozen=True)
class Adam(_Moments):
    """Lazy Adam (Kingma, Ba 2015): only rows with a gradient change.

    A row with a gradient changes as in `torch.optim.Adam`. To correct its bias, each row counts its
    gradients, unless ``node.table(name).set_step(number)`` sets the step. Weight decay is part of the
    gradient, so with it, every row has a gradient in every step. If steps are numbered on a single node, a
    row then replays its missed steps when it is used, like `torch.optim.Adam` executes them.

    Parameters
    ----------
    lr : float
        Learning rate, 0 or more.
    betas : tuple of two floats
        Decay rates of the averages of the gradient and of its square, in [0, 1).
    eps : float
        Summand for the root of the second average after its bias correction, at least 0.
    weight_decay : float
        Weight decay: this factor times the value is added to the gradient; at least 0.

    Raises
    ------
    ValueError
        If a number is out of its range.
    """

    weight_decay: float = 0.0


@dataclass(frozen=True)
class AdamW(_Moments):
    """Lazy Adam with decoupled weight decay (Loshchilov, Hutter 2019), like `torch.optim.AdamW`.

    The moments change only with a gradient. If steps are numbered on a single node, a row also shrinks for
    the steps that it missed.

    Parameters
    ----------
    lr : float
        Learning rate, 0 or more.
    betas : tuple of two floats
        Decay rates of the averages of the gradient and of its square, in [0, 1).
    eps : float
        Summand for the root of the second average after its bias correction, at least 0.
    weight_decay : float
        Weight decay: each step multiplies the value by one minus this factor times the learning rate; at
        least 0.

    Raises
    ------
    ValueError
        If a number is out of its range.
    """

    weight_decay: float = 0.01

    _decoupled: ClassVar[bool] = True


@dataclass(frozen=True)
class SparseAdam(_Moments):
    """Lazy Adam like `torch.optim.SparseAdam`, which adds `eps` before the bias is corrected.

    Parameters
    ----------
    lr : float
        Learning rate, 0 or more.
    betas : tuple of two floats
        Decay rates of the averages of the gradient and of its square, in [0, 1).
    eps : float
        Summand for the root of the second average, at least 0.

    Raises
    ------
    ValueError
        If a number is out of its range.
    """

    _kind: ClassVar[_core.RuleKind] = _core.RuleKind.SPARSE_ADAM


@dataclass(frozen=True)
class RMSprop(_UpdateRule):
    """RMSprop (Tieleman, Hinton 2012), like `torch.optim.RMSprop`.

    A row has 4 bytes of state per float, 4 further ones with momentum, and 4 further ones if it is centered.
    With weight decay, a row replays its missed steps one by one when it is used.

    Parameters
    ----------
    lr : float
        Learning rate, 0 or more.
    alpha : float
        Decay rate of the average of the gradient's squares, in [0, 1).
    eps : float
        Summand for the root of the average, at least 0.
    weight_decay : float
        Weight decay: this factor times the value is added to the gradient; at least 0.
    momentum : float
        Momentum: factor for the previous change, at least 0.
    centered : bool
        Whether the square of the gradient's average is subtracted from the average of its squares.

    Raises
    ------
    ValueError
        If a number is out of its range.
    """

    lr: float = 0.01
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False

    _kind: ClassVar[_core.RuleKind] = _core.RuleKind.RMSPROP


Optimizer = SGD | Adagrad | RowAdagrad | Adam | AdamW | SparseAdam | RMSprop
