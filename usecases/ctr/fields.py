"""Statistics of Criteo that the generator reproduces, fitted on 8192 rows of the Kaggle training set."""

from __future__ import annotations

from typing import NamedTuple


class SparseField(NamedTuple):
    """A categorical feature. Its r-th of `vocabulary` values has a probability ∝ (r + offset)^-exponent."""

    vocabulary: int
    exponent: float
    offset: float


class DenseField(NamedTuple):
    """An integer feature: the share of rows without it, and mean and deviation of ln(1 + x) in the others."""

    zeros: float
    mean: float
    std: float


SPARSE: tuple[SparseField, ...] = (
    SparseField(1_451, 2.0049, 0.40086),
    SparseField(589, 1.7417, 9.6888),
    SparseField(10_130_216, 1.0179, 1.0019),
    SparseField(2_202_868, 1.1258, 3.0774),
    SparseField(1_055, 2.7122, 0.47189),
    SparseField(28, 136.86, 223.48),
    SparseField(12_515, 1.0059, 14.459),
    SparseField(620, 2.2706, 0.36082),
    SparseField(18, 190.15, 47.046),
    SparseField(93_139, 1.0397, 0),
    SparseField(5_682, 1.0809, 11.215),
    SparseField(8_348_515, 1.0671, 2.6827),
    SparseField(6_276, 0.94692, 1.0016),
    SparseField(30, 9.3312, 14.79),
    SparseField(14_966, 1.5259, 61.982),
    SparseField(5_459_211, 1.1069, 4.1464),
    SparseField(2_131, 135.29, 237.51),
    SparseField(5_652, 1.5604, 22.862),
    SparseField(2_172, 1.6339, 0),
    SparseField(5, 0.94964, 0),
    SparseField(7_044_104, 1.0851, 3.3082),
    SparseField(2_461, 12.856, 7.4279),
    SparseField(15, 134.36, 242.47),
    SparseField(285_939, 1.2218, 2.5596),
    SparseField(345, 4.6471, 6.4286),
    SparseField(142_561, 1.2818, 0),
)

DENSE: tuple[DenseField, ...] = (
    DenseField(0.70, 1.50, 0.81),
    DenseField(0.28, 2.90, 1.97),
    DenseField(0.22, 2.17, 1.21),
    DenseField(0.26, 1.79, 0.83),
    DenseField(0.05, 7.46, 2.76),
    DenseField(0.28, 3.66, 1.57),
    DenseField(0.26, 2.10, 1.19),
    DenseField(0.11, 2.29, 0.94),
    DenseField(0.07, 3.64, 1.52),
    DenseField(0.73, 0.76, 0.17),
    DenseField(0.27, 1.20, 0.65),
    DenseField(0.94, 1.17, 0.76),
    DenseField(0.26, 1.84, 0.88),
)

CLICK_RATE = 0.25

ZIPF_EXPONENT = 1.05
"""Exponent of Zipf's law for features with a chosen vocabulary size."""


def zipf_fields(vocabulary: int) -> tuple[SparseField, ...]:
    """Return Criteo's number of categorical features, each with `vocabulary` Zipf-distributed values."""
    return (SparseField(vocabulary, ZIPF_EXPONENT, 0.0),) * len(SPARSE)
