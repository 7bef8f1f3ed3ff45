"""Generates Criteo-like rows, with the id skew of the real data and labels from a logistic model."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

import numpy as np
from numpy.typing import NDArray

from adabench.usecases.common.validation import require_memory
from adabench.usecases.ctr.fields import CLICK_RATE, DENSE, SPARSE, DenseField, SparseField
from adabench.usecases.ctr.table import Table, log_transform, row_ids, standardise

SEED = 20_140_630
"""Constant, so that runs with different seeds train on equal data."""

HEAD = 4096
"""Ranks up to this number are drawn with exact probabilities, later ones from the integral of the density."""

BYTES_PER_ROW = 1000
"""Memory during generation: two numbers of 8 bytes for each feature, and temporary data."""

DENSE_EFFECT_STD = 0.2
ID_EFFECT_STD = 0.3


def generate(rows: int, fields: Sequence[SparseField] = SPARSE) -> Table:
    """Draw `rows` rows with the given categorical features; equal arguments give equal rows.

    Features are drawn independently of each other. The logit of a click is linear in the standardized dense
    features and has a term for each categorical value. The coefficients of both are normally distributed, and
    an intercept makes `CLICK_RATE` the mean probability. Raises `DataError` if the rows exceed the machine's
    memory.
    """
    require_memory("rows", rows, BYTES_PER_ROW)
    generator = np.random.default_rng(SEED)
    dense = log_transform(np.column_stack([_counts(field, rows, generator) for field in DENSE]))
    ids = np.column_stack([_scatter(_ranks(field, rows, generator), field.vocabulary) for field in fields])
    unlabelled = Table(np.zeros(rows, dtype=np.uint8), dense, ids)
    probabilities = _click_probabilities(unlabelled, generator)
    return unlabelled._replace(labels=(generator.random(rows) < probabilities).astype(np.uint8))


def _counts(field: DenseField, rows: int, generator: np.random.Generator) -> NDArray[np.float64]:
    logs = np.maximum(generator.normal(field.mean, field.std, rows), 0)
    counts: NDArray[np.float64] = np.where(generator.random(rows) < field.zeros, 0.0, np.rint(np.expm1(logs)))
    return counts


def _ranks(field: SparseField, rows: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw ranks from 1 by inverting the distribution function, without a table of the whole vocabulary."""
    head = min(HEAD, field.vocabulary)
    density = (np.arange(1, head + 1) + field.offset) / (1 + field.offset)
    masses = np.append(density**-field.exponent, 0.0)
    # The mass of the tail is the integral of u^-s, u = (rank + offset) / scale, which starts half a rank
    # after the head.
    scale = 1 + field.offset
    start, end = ((edge + 0.5 + field.offset) / scale for edge in (head, field.vocabulary))
    power = 1 - field.exponent
    if field.vocabulary > head:
        masses[-1] = scale * (end**power - start**power) / power
    cumulative = np.cumsum(masses)
    drawn = generator.random(rows) * cumulative[-1]
    ranks = np.searchsorted(cumulative, drawn, side="right") + 1
    tail = ranks > head
    within = (drawn[tail] - cumulative[-2]) / scale
    ranks[tail] = np.rint((start**power + within * power) ** (1 / power) * scale - field.offset)
    bounded: NDArray[np.int64] = np.minimum(ranks, field.vocabulary)
    return bounded


def _scatter(ranks: NDArray[np.int64], vocabulary: int) -> NDArray[np.int64]:
    """Renumber ranks one to one, so that numbers do not show the frequency, like Criteo's hashes."""
    step = int(vocabulary * 0.618) | 1
    while gcd(step, vocabulary) != 1:
        step += 2
    return ranks * step % vocabulary


def _click_probabilities(table: Table, generator: np.random.Generator) -> NDArray[np.float64]:
    from scipy.optimize import brentq  # importing SciPy takes longer than commands that generate no data
    from scipy.special import expit

    ids, distinct = row_ids(table)
    logits = standardise(table.dense, table.dense) @ generator.normal(0, DENSE_EFFECT_STD, len(DENSE))
    logits += generator.normal(0, ID_EFFECT_STD, distinct)[ids].sum(axis=1)
    intercept = brentq(lambda value: expit(logits + value).mean() - CLICK_RATE, -50, 50)
    probabilities: NDArray[np.float64] = expit(logits + intercept)
    return probabilities
