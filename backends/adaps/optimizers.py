"""Update rules of tables, with the hyperparameters of their namesakes in `torch.optim`.

torch's dense optimizers change a row also in steps in which its gradient is 0: by momentum, by weight decay,
or by averages that forget. Here a row that has no gradient is left alone, until it is used: on a single node
it makes up for all steps that it missed once ``node.table(name).set_step(number)`` numbers them, and
``catch_up()`` brings rows that are about to be read up to the present step. On several nodes, or without
numbers, a row changes only with a gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import ClassVar

from adaps import _argument_checks, _core

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "Optimizer", "RMSprop", "RowAdagrad", "SparseAdam"]


_BELOW_1 = ("alpha", "betas")
"""Hyperparameters in [0, 1); the other numbers are 0 or more."""


class _UpdateRule:
    """Checks the hyperparameters, which are the fields of a subclass, and hands them to the core."""

    _kind: ClassVar[_core.RuleKind]
    _decoupled: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            value, high = getattr(self, field.name), 1.0 if field.name in _BELOW_1 else math.inf
            if field.name == "betas":
                if len(value) != 2:
                    raise ValueError(f"betas is {value!r}; it must be two numbers")
                for i, beta in enumerate(value):
                    _argument_checks.number(f"betas[{i}]", beta, low=0.0, high=high)
            elif field.type != "bool":
                _argument_checks.number(field.name, value, low=0.0, high=high)

    def rule(self) -> _core.UpdateRule:
        """The rule as the core applies it, for `NodeTable.set_hyperparameters`."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        if "betas" in given:
            given["beta1"], given["beta2"] = given.pop("betas")
        if "alpha" in given:
            given["beta2"] = given.pop("alpha")
        return _core.UpdateRule(self._kind, decoupled=self._decoupled, **given)


@dataclass(frozen=True)
class SGD(_UpdateRule):
    """Stochastic gradient descent as `torch.optim.SGD`, with momentum if it is not 0.

    A row has 4 bytes of state per float with momentum, and 4 bytes with momentum or weight decay.

    Parameters
    ----------
    lr : float
        Learning rate, 0 or more.
    momentum : float
        Share of the previous change that is made again, 0 or more.
    weight_decay : float
        Times the value, added to the gradient; 0 or more.
    nesterov : bool
        Whether the momentum is Nesterov's, which needs one above 0.

    Raises
    ------
    ValueError
        For a number out of these bounds.
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
    """Adagrad (Duchi, Hazan, Singer 2011): one accumulator per float; as `torch.optim.Adagrad`.

    With weight decay a row replays the steps that it missed one by one when it is used, which costs what the
    dense optimizer pays in those steps.

    Parameters
    ----------
    lr : float
        Learning rate, 0 or more.
    eps : float
        Added to the root of the accumulator, 0 or more.
    initial_accumulator : float
        What each accumulator begins with, 0 or more.
    weight_decay : float
        Times the value, added to the gradient; 0 or more.

    Raises
    ------
    ValueError
        For a number out of these bounds.
    """

    lr: float = 0.01
    eps: float = 1e-10
    initial_accumulator: float = 0.0
    weight_decay: float = 0.0

    _kind: ClassVar[_core.RuleKind] = _core.RuleKind.ADAGRAD


@dataclass(frozen=True)
class RowAdagrad(_UpdateRule):
    """Row-wise Adagrad: one accumulator per row, of the mean of the gradient's squares.

    Parameters
    ----------
    lr : float
        Learning rate, 0 or more.
    eps : float
        Added to the root of the accumulator, 0 or more.
    initial_accumulator : float
        What the accumulator begins with, 0 or more.

    Raises
    ------
    ValueError
        For a number out of these bounds.
    """

    lr: float = 0.01
    eps: float = 1e-10
    initial_accumulator: float = 0.0

    _kind: ClassVar[_core.RuleKind] = _core.RuleKind.ROW_ADAGRAD


@dataclass(frozen=True)
class _Moments(_UpdateRule):
    """The hyperparameters that all kinds of Adam have."""

    lr: float = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    _kind: ClassVar[_core.RuleKind] = _core.RuleKind.ADAM


@dataclass(frozen=True)
class Adam(_Moments):
    """Lazy Adam (Kingma, Ba 2015): only rows with a gradient change.

    A row that has a gradient changes as in `torch.optim.Adam`. For the correction of its bias each row counts
    its gradients, until ``node.table(name).set_step(number)`` says which step it is. With weight decay, which
    is part of the gradient, every row has a gradient in every step: where steps are numbered on a single
    node, a row replays those that it missed when it is used, as `torch.optim.Adam` makes them.

    Parameters
    ----------
    lr : float
        Learning rate, 0 or more.
    betas : tuple of two floats
        How slowly the averages of the gradient and of its square forget, in [0, 1).
    eps : float
        Added to the root of the second average, after its bias is corrected; 0 or more.
    weight_decay : float
        Times the value, added to the gradient; 0 or more.

    Raises
    ------
    ValueError
        For a number out of these bounds.
    """

    weight_decay: float = 0.0


@dataclass(frozen=True)
class AdamW(_Moments):
    """Lazy Adam with decoupled weight decay (Loshchilov, Hutter 2019), as `torch.optim.AdamW`.

    The moments change only with a gradient; where steps are numbered on a single node, a row also shrinks for
    those that it missed.

    Parameters
    ----------
    lr : float
        Learning rate, 0 or more.
    betas : tuple of two floats
        How slowly the averages of the gradient and of its square forget, in [0, 1).
    eps : float
        Added to the root of the second average, after its bias is corrected; 0 or more.
    weight_decay : float
        Times the learning rate: the part that a value loses per step; 0 or more.

    Raises
    ------
    ValueError
        For a number out of these bounds.
    """

    weight_decay: float = 0.01

    _decoupled: ClassVar[bool] = True


@dataclass(frozen=True)
class SparseAdam(_Moments):
    """Lazy Adam with `eps` where `torch.optim.SparseAdam` has it: added before the bias is corrected.

    Parameters
    ----------
    lr : float
        Learning rate, 0 or more.
    betas : tuple of two floats
        How slowly the averages of the gradient and of its square forget, in [0, 1).
    eps : float
        Added to the root of the second average, 0 or more.

    Raises
    ------
    ValueError
        For a number out of these bounds.
    """

    _kind: ClassVar[_core.RuleKind] = _core.RuleKind.SPARSE_ADAM


@dataclass(frozen=True)
class RMSprop(_UpdateRule):
    """RMSprop (Tieleman, Hinton 2012) as `torch.optim.RMSprop`.

    A row has 4 bytes of state per float, as many more with momentum, and as many more if it is centered. With
    weight decay a row replays the steps that it missed one by one when it is used.

    Parameters
    ----------
    lr : float
        Learning rate, 0 or more.
    alpha : float
        How slowly the average of the gradient's squares forgets, in [0, 1).
    eps : float
        Added to the root of the average, 0 or more.
    weight_decay : float
        Times the value, added to the gradient; 0 or more.
    momentum : float
        Share of the previous change that is made again, 0 or more.
    centered : bool
        Whether the square of the gradient's average is subtracted from the average of its squares.

    Raises
    ------
    ValueError
        For a number out of these bounds.
    """

    lr: float = 0.01
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False

    _kind: ClassVar[_core.RuleKind] = _core.RuleKind.RMSPROP


Optimizer = SGD | Adagrad | RowAdagrad | Adam | AdamW | SparseAdam | RMSprop
