"""Generates ratings with the skew of film ratings: few items and users have most of them."""

import numpy as np
from numpy.typing import NDArray

from adabench.usecases.common.validation import require_memory
from adabench.usecases.mf.read import Block

SEED = 19_980_422
"""Constant, so that equal numbers of ratings give equal data for all seeds of runs."""

RANK = 6
RATINGS_PER_USER = 60
ITEMS_PER_USER = 0.6
EXPONENT, OFFSET = 1.1, 12.0
"""An item's probability falls with its rank as (rank + offset)^-exponent."""
ACTIVITY_STD = 1.0
"""Standard deviation of the logarithm of a user's activity."""
USER_STD, ITEM_STD, TASTE_STD, NOISE_STD = 0.4, 0.4, 0.9, 0.7
MEAN, LOWEST, HIGHEST = 3.2, 1.0, 5.0
BYTES_PER_RATING = 900
"""Memory during generation."""


def generate(count: int, *, hashed: bool = False) -> Block:
    """Draw `count` ratings from 1 to 5 in steps of one half; equal numbers give equal ratings.

    A rating is the rounded sum of the mean, a bias of the user and one of the item, the product of two
    vectors of tastes, and noise. Users rate popular items, and more often items that fit their tastes. The
    result may have fewer ratings, because repeated pairs of user and item are dropped. With `hashed`, users
    and items have ids of any value.

    Raises
    ------
    DataError
        If the ratings exceed the machine's memory.
    """
    from scipy.special import expit  # importing SciPy takes longer than commands that generate no data

    require_memory("ratings", count, BYTES_PER_RATING)
    rng = np.random.default_rng(SEED)
    users = max(2, count // RATINGS_PER_USER)
    items = max(2, round(users * ITEMS_PER_USER))
    activity = rng.lognormal(0, ACTIVITY_STD, users)
    # An item's number does not depend on its popularity.
    popularity = rng.permutation((np.arange(1, items + 1) + OFFSET) ** -EXPONENT)
    pairs = np.unique(_draw(rng, activity, 5 * count) * items + _draw(rng, popularity, 5 * count))
    tastes, traits = (rng.normal(size=(rows, RANK)) for rows in (users, items))
    user, item = np.divmod(rng.permutation(pairs), items)
    fit = np.einsum("ij,ij->i", tastes[user], traits[item]) / np.sqrt(RANK)
    chosen = np.flatnonzero(rng.random(len(fit)) < expit(2 * fit - 1))[:count]
    user, item, fit = user[chosen], item[chosen], fit[chosen]
    values = (
        MEAN
        + rng.normal(0, USER_STD, users)[user]
        + rng.normal(0, ITEM_STD, items)[item]
        + TASTE_STD * fit
        + rng.normal(0, NOISE_STD, len(user))
    )
    ratings = np.clip(np.rint(2 * values) / 2, LOWEST, HIGHEST)
    numbers = _scattered if hashed else _renumbered
    return Block(numbers(user), numbers(item), ratings.astype(np.float32))


def _draw(rng: np.random.Generator, weights: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    return rng.choice(len(weights), size=count, p=weights / weights.sum())


def _scattered(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return ids of any value, one for each id."""
    return ids * np.int64(-7046029254386353131)  # odd, so that products that wrap around differ


def _renumbered(ids: NDArray[np.int64]) -> NDArray[np.int32]:
    """Renumber ids, without ids that have no rating."""
    _, numbers = np.unique(ids, return_inverse=True)
    renumbered: NDArray[np.int32] = numbers.astype(np.int32)
    return renumbered
