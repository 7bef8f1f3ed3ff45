"""Update rules of tables, with the hyperparameters of their namesakes in `torch.optim`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from adaps import _checks, _core

__all__ = ["SGD", "Adagrad", "Adam", "Optimizer", "RowAdagrad", "SparseAdam"]


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent, with momentum if it is not 0.

    A row that has a gradient changes as in `torch.optim.SGD`. That one goes on moving rows without a gradient
    by their momentum, and so does this on a single node once ``node.table(name).set_step(number)`` numbers
    the steps; ``catch_up()`` makes up for those that rows have missed.
    """

    lr: float = 0.01
    momentum: float = 0.0

    def __post_init__(self) -> None:
        _checks.number("lr", self.lr, low=0.0)
        _checks.number("momentum", self.momentum, low=0.0)

    def rule(self) -> _core.UpdateRule:
        """The rule as the core applies it."""
        kind = _core.RuleKind.MOMENTUM if self.momentum else _core.RuleKind.SGD
        return _core.UpdateRule(kind, lr=self.lr, momentum=self.momentum)


@dataclass(frozen=True)
class _Accumulating:
    """What both kinds of Adagrad have in common."""

    lr: float = 0.01
    eps: float = 1e-10
    initial_accumulator: float = 0.0

    _kind: ClassVar[_core.RuleKind]

    def __post_init__(self) -> None:
        for name in ("lr", "eps", "initial_accumulator"):
            _checks.number(name, getattr(self, name), low=0.0)

    def rule(self) -> _core.UpdateRule:
        """The rule as the core applies it."""
        return _core.UpdateRule(
            self._kind, lr=self.lr, eps=self.eps, initial_accumulator=self.initial_accumulator
        )


class Adagrad(_Accumulating):
    """Adagrad (Duchi, Hazan, Singer 2011): one accumulator a float; as `torch.optim.Adagrad`."""

    _kind = _core.RuleKind.ADAGRAD


class RowAdagrad(_Accumulating):
    """Row-wise Adagrad: one accumulator a row, of the mean of the gradient's squares."""

    _kind = _core.RuleKind.ROW_ADAGRAD


@dataclass(frozen=True)
class Adam:
    """Lazy Adam (Kingma, Ba 2015): only rows with a gradient change.

    A row that has a gradient changes as in `torch.optim.Adam`. For the correction of its bias each row counts
    its gradients, until ``node.table(name).set_step(number)`` says which step it is.
    """

    lr: float = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    _kind: ClassVar[_core.RuleKind] = _core.RuleKind.ADAM

    def __post_init__(self) -> None:
        _checks.number("lr", self.lr, low=0.0)
        _checks.number("eps", self.eps, low=0.0)
        if len(self.betas) != 2:
            raise ValueError(f"betas is {self.betas!r}; it must be two numbers")
        for i, beta in enumerate(self.betas):
            _checks.number(f"betas[{i}]", beta, low=0.0, high=1.0)

    def rule(self) -> _core.UpdateRule:
        """The rule as the core applies it."""
        beta1, beta2 = self.betas
        return _core.UpdateRule(self._kind, lr=self.lr, eps=self.eps, beta1=beta1, beta2=beta2)


class SparseAdam(Adam):
    """Lazy Adam with `eps` where `torch.optim.SparseAdam` has it: added before the bias is corrected."""

    _kind = _core.RuleKind.SPARSE_ADAM


Optimizer = SGD | Adagrad | RowAdagrad | Adam
