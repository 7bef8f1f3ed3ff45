"""Every use case meets its specification, trains alike with every backend, and announces exact intent."""

import functools
from collections.abc import Iterator
from itertools import chain, islice, repeat
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from adabench.backends.interface import Unavailable, WorkerContext
from adabench.harness.checks.check_usecase import _parts, check_usecase
from adabench.harness.plugins.registry import load_backend, load_usecase, names
from adabench.usecases.common.batches import strided_share
from adabench.usecases.common.placement import PLACEMENTS
from adabench.usecases.interface import Dealt, Placed, Sampled, UseCase
from adaps import SAMPLING_SCHEMES
from adaps._typing import SamplingScheme
from tests.models.observer import Observer
from tests.worker_contexts import PerProcess, worker_context

USECASES = sorted(name for name, origin in names("usecase").items() if origin == "built in")
BACKENDS = sorted(name for name in names("backend") if load_backend(name).distributed)
STEPS = 12
LEARNED_AFTER = 6
"""Steps until prediction has seen enough batches."""


SMALL = {
    "ctr": {"rows": 2000},
    "kge": {"triples": 3000},
    "mf": {"ratings": 3000},
    "mf-implicit": {"ratings": 3000},
}
"""Parameters of data that are large enough to be shared out."""


def fields_of(name: str) -> set[str]:
    return {field.name for field in msgspec.structs.fields(load_usecase(name).Params)}


@functools.cache
def usecase_of(name: str) -> UseCase:
    kind = load_usecase(name)
    return kind(kind.Params(), None, 1)


@pytest.fixture
def context() -> Iterator[WorkerContext]:
    shared = PerProcess()
    yield worker_context(shared)
    shared.close()


def opened(backend: str, usecase: UseCase, context: WorkerContext, **options: Any) -> Any:
    try:
        found = load_backend(backend)()
    except Unavailable as error:
        pytest.skip(str(error))
    return found.open(usecase, context, found.Options(**options))


def trained(usecase: UseCase, session: Any) -> list[float]:
    """The losses of the first steps, over as many epochs as they take."""
    losses = []
    loader = usecase.loaders(0, 1).train
    epochs = chain.from_iterable(session.batches(each) for each in repeat(loader))
    for batch in islice(epochs, STEPS):
        loss = usecase.loss(session.model, batch)
        session.step(loss)
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", USECASES)
def test_a_use_case_keeps_its_promises(name: str) -> None:
    findings = list(check_usecase(name, None))
    assert [(one.promise, one.detail) for one in findings if not one.ok] == []
    assert len(findings) >= 10


@pytest.mark.parametrize("name", USECASES)
def test_the_seed_determines_weights_and_batches_but_not_the_data(name: str) -> None:
    kind = load_usecase(name)
    params = msgspec.convert({"batch": 16, **SMALL.get(name, {})}, kind.Params)
    one, same, other = (kind(params, None, seed) for seed in (1, 1, 2))
    for content in (lambda usecase: usecase.model().state_dict(), first_parts):
        own, again, different = (content(usecase) for usecase in (one, same, other))
        assert all(torch.equal(value, again[key]) for key, value in own.items())
        require_all_differ(own, different)
    loader = one.loaders(1, 2).train
    first, second, *_ = (dict(_parts(batch)) for batch in loader)
    require_all_differ(first, second)
    require_all_differ(first, dict(_parts(next(iter(loader)))))  # of the next epoch
    assert one.fingerprint == same.fingerprint == other.fingerprint


def first_parts(usecase: UseCase) -> dict[str, torch.Tensor]:
    """The tensors of some batches of the second of two workers."""
    batches = enumerate(islice(usecase.loaders(1, 2).train, 5))
    return {f"{number} {name}": part for number, batch in batches for name, part in _parts(batch)}


def require_all_differ(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """Check that all tensors differ, except those with few values."""
    drawn = [name for name, values in one.items() if len(values.unique()) > 5]
    assert drawn
    assert [name for name in drawn if torch.equal(one[name], other[name])] == []


@functools.cache
def plain_losses(name: str) -> list[float]:
    usecase = usecase_of(name)
    return trained(usecase, opened("single", usecase, worker_context(PerProcess())))


@pytest.mark.parametrize("name", USECASES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_losses_are_those_of_plain_pytorch(name: str, backend: str, context: WorkerContext) -> None:
    expected = plain_losses(name)
    usecase = usecase_of(name)
    session = opened(backend, usecase, context)
    losses = trained(usecase, session)
    session.close()
    assert losses == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert losses[0] != losses[-1]


@pytest.mark.parametrize("name", USECASES)
@pytest.mark.parametrize(("backend", "learned"), [("manual", 0), ("autoada-automatic", LEARNED_AFTER)])
def test_what_is_announced_is_what_is_read(
    name: str, backend: str, learned: int, context: WorkerContext
) -> None:
    usecase = usecase_of(name)
    observer = Observer()
    with observer.watching():
        session = opened(backend, usecase, context)
        first = int(session.server.current_clock)  # placing rows takes a clock
        trained(usecase, session)
        session.close()
    assert first == (isinstance(usecase, Placed) and bool(usecase.home_rows(0, 1)))
    tables = {table: span(session.model.node.table(table)) for table in usecase.keys(first_batch(usecase))}
    for table, clocks in observer.clocks(first + STEPS, tables).items():
        assert all(clocks.rows[first:]), table
        assert clocks.kept or all(clocks.exact[first + learned :]), (table, clocks.exact)


@pytest.mark.parametrize("name", USECASES)
@pytest.mark.parametrize("backend", ["manual", "autoada-automatic"])
@pytest.mark.parametrize("scheme", SAMPLING_SCHEMES)
def test_what_the_server_draws_is_read_and_announced_by_automatic_intent(
    name: str, backend: str, scheme: SamplingScheme, context: WorkerContext
) -> None:
    usecase = usecase_of(name)
    if not isinstance(usecase, Sampled):
        with pytest.raises(Unavailable, match=f"{name} draws no rows for its batches: set sampling=loader"):
            opened(backend, usecase, context, sampling=scheme)
        return
    table = usecase.draws().table
    observer = Observer()
    with observer.watching():
        session = opened(backend, usecase, context, sampling=scheme)
        first = int(session.server.current_clock)
        losses = trained(usecase, session)
        session.close()
    clocks = observer.clocks(first + STEPS, {table: span(session.model.node.table(table))})[table]
    own = islice(chain.from_iterable(repeat(usecase.loaders(0, 1).train)), STEPS)
    drawn_otherwise = [set(usecase.keys(batch)[table].flatten().tolist()) for batch in own]
    assert all(ours != other for ours, other in zip(clocks.rows[first:], drawn_otherwise, strict=True))
    if backend == "manual":
        assert not any(clocks.exact[first:])  # the sampling scheme decides which samples to announce
    else:
        assert clocks.kept or all(clocks.exact[first + LEARNED_AFTER :]), clocks.exact
    assert losses[0] != losses[-1]


@pytest.mark.parametrize("name", USECASES)
def test_a_wrong_worker_is_wrong_in_every_use_case(name: str, context: WorkerContext) -> None:
    usecase = usecase_of(name)
    session = opened("manual", usecase, context, fault="stale", faulty="0", severity=1.0)
    learned = dict(session.model.module.named_parameters())
    before = {key: value.clone() for key, value in session.model.state_dict().items() if key in learned}
    changed = []
    for batch in islice(session.batches(usecase.loaders(0, 1).train), 2):
        session.step(usecase.loss(session.model, batch))
        after = session.model.state_dict()
        changed.append(any(not torch.equal(value, after[key]) for key, value in before.items()))
    assert changed == [False, True], "the gradient of a step ago comes with the second step"
    session.close()


@pytest.mark.parametrize("name", USECASES)
def test_rows_at_home_are_disjoint(name: str) -> None:
    usecase = usecase_of(name)
    if not isinstance(usecase, Placed):
        pytest.skip(f"{name} places no rows")
    require_homes(usecase)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("name", [name for name in USECASES if "placement" in fields_of(name)])
def test_samples_of_every_placement_are_shared_equally_and_alike_everywhere(
    name: str, placement: str
) -> None:
    kind = load_usecase(name)
    params = msgspec.convert({"placement": placement, "batch": 8, **SMALL[name]}, kind.Params)
    usecase, elsewhere = kind(params, None, 1), kind(params, None, 1)
    shares = [usecase._placement.share(rank, (8, 8, 8)) for rank in range(3)]  # type: ignore[attr-defined]
    samples = usecase._placement.samples  # type: ignore[attr-defined]
    assert {len(share) for share in shares} == {samples // 3}
    together = np.concatenate(shares)
    assert len(np.unique(together)) == len(together)
    for rank, share in enumerate(shares):
        assert np.array_equal(share, elsewhere._placement.share(rank, (8, 8, 8)))  # type: ignore[attr-defined]
    assert isinstance(usecase, Placed)
    if placement == "random":
        assert usecase.home_rows(0, 3) == {}
    else:
        require_homes(usecase)


def require_homes(usecase: Placed) -> None:
    parameters = dict(usecase.model().named_parameters())  # type: ignore[attr-defined]
    homes = [usecase.home_rows(rank, 3) for rank in range(3)]
    for table in homes[0]:
        together = torch.cat([home[table] for home in homes])
        assert len(together.unique()) == len(together) > 0
        assert 0 <= int(together.min()) <= int(together.max()) < len(parameters[table])


@pytest.mark.parametrize("name", USECASES)
def test_samples_are_dealt_in_proportion_to_batches(name: str) -> None:
    usecase = usecase_of(name)
    assert isinstance(usecase, Dealt)
    batch = usecase.params.batch
    sizes = (batch + batch // 2, batch, batch - batch // 2)
    dealt = usecase.with_batches(sizes)
    steps = [len(usecase.loaders(rank, 3).train) for rank in range(3)]  # type: ignore[arg-type]
    assert [len(dealt.loaders(rank, 3).train) for rank in range(3)] == steps  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="2 workers, but batches were assigned to 3"):
        dealt.loaders(0, 2)
    # the samples of word2vec are pairs of words, and the number of pairs varies by sentence
    if name != "word2vec":
        first = [dealt.samples(next(iter(dealt.loaders(rank, 3).train))) for rank in range(3)]
        assert first == list(sizes)
    if isinstance(dealt, Placed) and isinstance(dealt, Dealt):
        homes = [dealt.home_rows(rank, 3) for rank in range(3)]
        for table in homes[0]:
            together = torch.cat([home[table] for home in homes])
            assert len(together.unique()) == len(together) > 0


def test_shares_of_other_sizes_are_disjoint() -> None:
    for sizes in ((3, 5), (1, 1, 6), (7,), (2, 2, 2)):
        for count in (64, 100, 101):
            shares = [strided_share(count, rank, sizes) for rank in range(len(sizes))]
            together = np.concatenate(shares)
            assert len(np.unique(together)) == len(together)
            steps = {len(share) // size for share, size in zip(shares, sizes, strict=True)}
            assert steps == {count // sum(sizes)}


def first_batch(usecase: UseCase) -> Any:
    return next(iter(usecase.loaders(0, 1).train))


def span(table: Any) -> range:
    return range(table.first_key, table.first_key + table.rows)
