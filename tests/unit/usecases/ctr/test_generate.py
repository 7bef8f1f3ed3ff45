"""Generated Criteo-like data: the id skew of the real data, the click rate, and labels that can be learnt."""

from __future__ import annotations

from typing import get_type_hints

import numpy as np
import pytest

from adabench.usecases.ctr import generate as module
from adabench.usecases.ctr.fields import CLICK_RATE, DENSE, SPARSE, SparseField
from adabench.usecases.ctr.generate import generate
from adabench.usecases.ctr.table import DENSE_FIELDS, SPARSE_FIELDS, Table, row_ids

FITTED_ROWS = 8192


@pytest.fixture(scope="module")
def table() -> Table:
    return generate(FITTED_ROWS)


def test_every_field_has_its_figures() -> None:
    assert (len(DENSE), len(SPARSE)) == (DENSE_FIELDS, SPARSE_FIELDS)


def test_shapes_and_types_are_those_of_a_table(table: Table) -> None:
    assert [column.shape for column in table] == [(FITTED_ROWS,), (FITTED_ROWS, 13), (FITTED_ROWS, 26)]
    assert [column.dtype for column in table] == [np.uint8, np.float32, np.int64]
    assert set(get_type_hints(Table)) == {"labels", "dense", "ids"}


def test_distinct_ids_are_as_many_as_fitted(table: Table) -> None:
    _, rows = row_ids(table)
    assert rows == pytest.approx(41_690, rel=0.01)


@pytest.mark.parametrize(("share", "accesses"), [(0.001, 0.41), (0.01, 0.62), (0.1, 0.79)])
def test_most_frequent_ids_take_their_share_of_accesses(table: Table, share: float, accesses: float) -> None:
    ids, rows = row_ids(table)
    counts = np.sort(np.bincount(ids.ravel()))[::-1]
    assert counts[: round(share * rows)].sum() / ids.size == pytest.approx(accesses, abs=0.01)


def test_unique_ids_of_a_batch_are_as_many_as_fitted(table: Table) -> None:
    ids, _ = row_ids(table)
    unique = np.mean([len(np.unique(batch)) for batch in ids.reshape(-1, 128 * SPARSE_FIELDS)])
    assert unique == pytest.approx(1526, rel=0.01)


def test_ids_of_neighbouring_numbers_differ_in_frequency(table: Table) -> None:
    """In order of frequency, range partitioning would put all hot ids on one node."""
    ids, _ = row_ids(table)
    counts = np.bincount(ids[:, 2] - ids[:, 2].min())
    halves = counts[: len(counts) // 2].sum() / counts.sum()
    assert 0.35 < halves < 0.65


def test_click_rate(table: Table) -> None:
    assert table.labels.mean() == pytest.approx(CLICK_RATE, abs=0.015)


def test_dense_features_follow_their_figures(table: Table) -> None:
    for field, values in zip(DENSE, table.dense.T, strict=True):
        assert (values == 0).mean() >= field.zeros - 0.02
        assert values.min() >= 0
    i5 = table.dense[:, 4]
    assert i5[i5 > 0].mean() == pytest.approx(DENSE[4].mean, rel=0.03)


def test_equal_rows_are_equal_data_and_labels_follow_the_features(table: Table) -> None:
    again = generate(FITTED_ROWS)
    assert np.array_equal(again.labels, table.labels)
    assert np.array_equal(again.dense, table.dense)
    assert np.array_equal(again.ids, table.ids)
    standardised = (table.dense - table.dense.mean(axis=0)) / table.dense.std(axis=0)
    correlations = standardised.T @ (table.labels - table.labels.mean()) / FITTED_ROWS
    assert np.abs(correlations).max() > 0.05  # noise alone has a deviation of 0.005


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_few_rows_are_enough(rows: int) -> None:
    assert len(generate(rows).labels) == rows


@pytest.mark.parametrize(
    "field", [SparseField(20_000, 1.2, 3.0), SparseField(6_000, 0.95, 1.0), SparseField(10, 130.0, 240.0)]
)
def test_ranks_have_the_probabilities_of_the_fit(field: SparseField) -> None:
    draws = 200_000
    ranks = module._ranks(field, draws, np.random.default_rng(3))
    weights = (np.arange(1, field.vocabulary + 1) + field.offset) / (1 + field.offset)
    expected = np.cumsum(weights**-field.exponent)
    expected /= expected[-1]
    assert ranks.min() >= 1
    assert ranks.max() <= field.vocabulary
    drawn = np.cumsum(np.bincount(ranks, minlength=field.vocabulary + 1)[1:]) / draws
    # Kolmogorov-Smirnov: a right sampler exceeds 1.95 / sqrt(n) in one of a thousand seeds.
    assert np.abs(drawn - expected).max() < 1.95 / np.sqrt(draws)


@pytest.mark.parametrize("vocabulary", [1, 5, 18, 1451, 6276])
def test_scattered_ranks_stay_distinct(vocabulary: int) -> None:
    scattered = module._scatter(np.arange(1, vocabulary + 1), vocabulary)
    assert sorted(scattered) == list(range(vocabulary))
