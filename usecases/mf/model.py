"""The model in plain PyTorch."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from adabench.usecases.common.hashing import hash_table

FACTOR_STD = 0.1


class Estimates(NamedTuple):
    """Predictions for some pairs of user and item.

    Attributes
    ----------
    scores : Tensor
        Predictions, float32, in the shape of the pairs.
    norm : Tensor
        Sum of the squares of all rows that were read, float32 scalar, for the regularization.
    """

    scores: Tensor
    norm: Tensor


class MatrixFactorization(nn.Module):
    """Mean + biases of user and item + product of their factors (Koren et al., Computer 42, 2009).

    Parameters
    ----------
    users, items, dim : int
        Numbers of rows of the two tables, and number of factors of a row. The first number of a row is the
        bias.
    mean : float
        Mean rating of the training split.
    generator : torch.Generator
        Random generator for the initial weights.
    hashed : bool
        Whether users and items can have any ids. The tables then create rows at their first use.
    """

    def __init__(
        self,
        users: int,
        items: int,
        dim: int,
        mean: float,
        generator: torch.Generator,
        *,
        hashed: bool = False,
    ) -> None:
        super().__init__()
        self.users, self.items = (
            hash_table(rows, 1 + dim, FACTOR_STD, generator)
            if hashed
            else nn.Embedding.from_pretrained(_initial(rows, dim, generator), freeze=False, sparse=True)
            for rows in (users, items)
        )
        self.mean = mean

    def forward(self, users: Tensor, items: Tensor, every: bool = False) -> Estimates:
        """Score pairs.

        Parameters
        ----------
        users : Tensor
            Users, int64 (n,).
        items : Tensor
            Items, int64: (n,) for one item per user, (n, k) for k items per user, or (k,) with `every`.
        every : bool
            Whether each user is paired with each item. The scores are then (n, k).
        """
        user, item = self.users(users), self.items(items)
        user_bias, user_factors = user[:, 0], user[:, 1:]
        item_bias, item_factors = item[..., 0], item[..., 1:]
        if every:
            scores = user_factors @ item_factors.T + user_bias[:, None] + item_bias
        elif items.dim() == 1:
            scores = (user_factors * item_factors).sum(1) + user_bias + item_bias
        else:
            products = torch.einsum("nd,nkd->nk", user_factors, item_factors)
            scores = products + user_bias[:, None] + item_bias
        return Estimates(scores + self.mean, user.square().sum() + item.square().sum())


def _initial(rows: int, dim: int, generator: torch.Generator) -> Tensor:
    weight = torch.empty(rows, 1 + dim).normal_(std=FACTOR_STD, generator=generator)
    weight[:, 0] = 0
    return weight
