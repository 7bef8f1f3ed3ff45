"""The accesses that simulations replay."""

from itertools import islice

import numpy as np
import pytest

from adabench.backends.strategies._simulate import _endless, streams_of
from adabench.usecases.ctr.task import CtrParams, CtrUseCase

NODES, STEPS = 4, 20


@pytest.fixture(scope="module")
def usecase() -> CtrUseCase:
    return CtrUseCase(CtrParams(batch=8, dim=4, wide=False, vocabulary=50, rows=4000), None, 1)


def test_streams_hold_what_the_loaders_give(usecase: CtrUseCase) -> None:
    streams = streams_of(usecase, NODES, STEPS)
    assert len(streams) == NODES
    for rank, stream in enumerate(streams):
        assert stream.placed == {}
        batches = islice(usecase.loaders(rank, NODES).train, STEPS)
        for step, batch in zip(stream.steps, batches, strict=True):
            assert np.array_equal(np.asarray(step["deep.weight"]), usecase.keys(batch)["deep.weight"].numpy())


def test_a_streams_steps_go_on_with_the_next_epoch(usecase: CtrUseCase) -> None:
    epoch = len(streams_of(usecase, NODES, None)[0].steps)
    assert len(streams_of(usecase, NODES, epoch + 3)[0].steps) == epoch + 3


def test_batches_are_repeated_for_more_steps_than_an_epoch_has() -> None:
    assert list(islice(_endless([1, 2]), 5)) == [1, 2, 1, 2, 1]


def test_a_use_case_without_batches_is_refused() -> None:
    with pytest.raises(ValueError, match="the use case has no training batches"):
        next(_endless([]))


def test_policies_are_compared_on_the_same_streams(usecase: CtrUseCase) -> None:
    assert streams_of(usecase, NODES, STEPS) is streams_of(usecase, NODES, STEPS)
