"""Update rules of tables, with the hyperparameters of their namesakes in `torch.optim`."""

from __future__ import annotations

from dataclasses import dataclass

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
class Adagrad:
    """Adagrad (Duchi, Hazan, Singer 2011): one accumulator a float; as `torch.optim.Adagrad`."""

    lr: float = 0.01
    eps: float = 1e-10
    initial_accumulator: float = 0.0

    def __post_init__(self) -> None:
        _check_adagrad(self)

    def rule(self) -> _core.UpdateRule:
        """The rule as the core applies it."""
        return _core.UpdateRule(
            _core.RuleKind.ADAGRAD, lr=self.lr, eps=self.eps, initial_accumulator=self.initial_accumulator
        )


@dataclass(frozen=True)
class RowAdagrad:
    """Row-wise Adagrad: one accumulator a row, of the mean of the gradient's squares."""

    lr: float = 0.01
    eps: float = 1e-10
    initial_accumulator: float = 0.0

    def __post_init__(self) -> None:
        _check_adagrad(self)

    def rule(self) -> _core.UpdateRule:
        """The rule as the core applies it."""
        return _core.UpdateRule(
            _core.RuleKind.ROW_ADAGRAD, lr=self.lr, eps=self.eps, initial_accumulator=self.initial_accumulator
        )


@dataclass(frozen=True)
class Adam:
    """Lazy Adam (Kingma, Ba 2015): only rows with a gradient change.

    A row that has a gradient changes as in `torch.optim.Adam`. For the correction of its bias each row counts
    its gradients, until ``node.table(name).set_step(number)`` says which step it is.
    """

    lr: float = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

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

    @property
    def _kind(self) -> _core.RuleKind:
        return _core.RuleKind.ADAM


@dataclass(frozen=True)
class SparseAdam(Adam):
    """Lazy Adam with `eps` where `torch.optim.SparseAdam` has it: added before the bias is corrected."""

    @property
    def _kind(self) -> _core.RuleKind:
        return _core.RuleKind.SPARSE_ADAM


Optimizer = SGD | Adagrad | RowAdagrad | Adam


def _check_adagrad(optimizer: Adagrad | RowAdagrad) -> None:
    _checks.number("lr", optimizer.lr, low=0.0)
    _checks.number("eps", optimizer.eps, low=0.0)
    _checks.number("initial_accumulator", optimizer.initial_accumulator, low=0.0)
