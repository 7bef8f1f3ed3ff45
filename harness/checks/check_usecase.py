"""Tests whether a use case keeps its protocol's promises, in this process and without any backend."""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch

from adabench.harness.checks.findings import Finding
from adabench.harness.errors import UsageError
from adabench.harness.plugins.registry import load_usecase
from adabench.usecases.interface import DataError, Dealt, Sampled, UseCase, hashed_tables

BATCHES = 5


def check_usecase(name: str, data: Path | None) -> Iterator[Finding]:
    """Yield findings, promise by promise.

    Raises `UsageError` if the use case does not exist or its data cannot be used.
    """
    kind = load_usecase(name)
    required = [field.name for field in msgspec.structs.fields(kind.Params) if field.required]
    yield Finding("all parameters have defaults", not required, ", ".join(required))
    if required:
        return
    try:
        one, other = (kind(kind.Params(), data, seed) for seed in (1, 1))
    except DataError as error:
        raise UsageError(f"use case {name!r}: {error}") from error
    yield _unused(kind)
    checks: list[tuple[str, Callable[[UseCase, UseCase], str]]] = [
        ("equal data have equal fingerprints", _fingerprints),
        ("equal seeds give equal initial weights", _weights),
        ("training shares of workers are of equal length", _shares),
        ("training shares of workers are disjoint", _disjoint),
        ("every worker has the whole validation and test splits", _whole_splits),
        ("a batch has samples", _samples),
        ("the loss is a finite scalar with gradients", _loss),
        ("keys() names the rows that the loss reads", _keys),
        ("keys() also names rows that the server has drawn", _drawn),
        ("evaluate() gives finite metrics and leaves the model in training mode", _evaluate),
        ("training lowers the loss", _learns),
    ]
    for promise, check in checks:
        # Any exception of a plugin becomes a finding that shows its type and message.
        try:
            problem = check(one, other)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        yield Finding(promise, not problem, problem)


def _unused(kind: type[UseCase]) -> Finding:
    """Check that the use case refuses data that does not exist, rather than ignoring the option."""
    promise = "missing data are refused in one line"
    nowhere = Path("no", "such", "data")
    try:
        kind(kind.Params(), nowhere, 1)
    except DataError as error:
        lines = str(error).splitlines()
        return Finding(promise, len(lines) == 1, "" if len(lines) == 1 else f"in {len(lines)} lines: {error}")
    except Exception as error:
        return Finding(promise, False, f"{type(error).__name__} instead of DataError: {error}")
    return Finding(promise, False, f"{nowhere} is ignored")


def _fingerprints(one: UseCase, other: UseCase) -> str:
    if not one.fingerprint.startswith("sha256:"):
        return f"{one.fingerprint!r} does not begin with sha256:"
    return "" if one.fingerprint == other.fingerprint else f"{one.fingerprint} and {other.fingerprint}"


def _weights(one: UseCase, other: UseCase) -> str:
    first, second = one.model().state_dict(), other.model().state_dict()
    differing = [name for name in first if not torch.equal(first[name], second[name])]
    return f"{differing[0]} differs" if differing else ""


def _shares(one: UseCase, other: UseCase) -> str:
    counts = [sum(1 for _ in one.loaders(rank, 2).train) for rank in (0, 1)]
    if not counts[0] == counts[1] > 0:
        return f"{counts[0]} and {counts[1]} batches"
    return _uneven_shares(one, counts[0])


def _disjoint(one: UseCase, other: UseCase) -> str:
    """Two workers together must not have a sample more often than one worker alone has.

    A sample is identified by those parts of a batch that two epochs of one worker have equally often: the
    other parts are drawn at random. A batch per worker may be new, because an epoch can leave out the last
    samples.
    """
    whole, spare = one.loaders(0, 1).train, 2 * one.params.batch
    first, second = (_samples_by_part(one, whole) for _ in range(2))
    same = [name for name in first if (Counter(first[name]) - Counter(second.get(name, []))).total() <= spare]
    shares = [_samples_by_part(one, one.loaders(rank, 2).train) for rank in (0, 1)]
    alone, again, left, right = (Counter(_joined(found, same)) for found in (first, second, *shares))
    extra = ((left & right) & ((left + right) - (alone | again))).total()
    return f"{extra} samples are in the shares of two workers" if extra > spare else ""


def _whole_splits(one: UseCase, other: UseCase) -> str:
    """Metrics of the process that evaluates must not depend on the number of workers."""
    for split in ("valid", "test"):
        counts = [
            sum(map(one.samples, getattr(one.loaders(rank, world), split)))
            for rank, world in ((0, 1), (0, 2), (1, 2))
        ]
        if len(set(counts)) > 1 or not counts[0]:
            return (
                f"the {split} split has {counts[0]} samples, and {counts[1]} and {counts[2]} for two workers"
            )
    return ""


def _joined(found: dict[str, list[bytes]], names: list[str]) -> Iterator[bytes]:
    return map(b"".join, zip(*(found[name] for name in names), strict=True))


def _samples_by_part(usecase: UseCase, loader: Iterable[Any]) -> dict[str, list[bytes]]:
    """Bytes of each sample of an epoch, by the parts of a batch that begin with a row per sample."""
    found: dict[str, list[bytes]] = {}
    for batch in loader:
        samples = usecase.samples(batch)
        for name, value in _parts(batch):
            if value.ndim and len(value) >= samples:
                rows = value[:samples].reshape(samples, -1).contiguous().numpy()
                found.setdefault(name, []).extend(row.tobytes() for row in rows)
    most = max(map(len, found.values()), default=0)
    return {name: rows for name, rows in found.items() if len(rows) == most}


def _parts(batch: Any, name: str = "the batch") -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors of a batch with their names."""
    if isinstance(batch, torch.Tensor):
        yield name, batch.detach().cpu()
        return
    if hasattr(batch, "_asdict"):
        batch = batch._asdict()
    elif hasattr(batch, "to_dict"):
        batch = batch.to_dict()
    elif dataclasses.is_dataclass(batch):
        batch = vars(batch)
    elif isinstance(batch, list | tuple):
        batch = {str(number): part for number, part in enumerate(batch)}
    if isinstance(batch, Mapping):
        for key, part in batch.items():
            yield from _parts(part, f"part {key!r}")


def _uneven_shares(one: UseCase, steps: int) -> str:
    """Check that two workers get equally many batches of different sizes."""
    batch = one.params.batch
    if not isinstance(one, Dealt) or batch == 1:
        return ""
    sizes = (2 * batch - batch // 2, batch // 2)
    dealt = one.with_batches(sizes)
    counts = [sum(1 for _ in dealt.loaders(rank, 2).train) for rank in (0, 1)]
    if counts != [steps, steps]:
        return f"{counts[0]} and {counts[1]} batches of {sizes[0]} and {sizes[1]}, {steps} of {batch} each"
    return ""


def _samples(one: UseCase, other: UseCase) -> str:
    counts = [one.samples(batch) for batch in _batches(one)]
    return "" if counts and all(count > 0 for count in counts) else f"samples() says {counts}"


def _loss(one: UseCase, other: UseCase) -> str:
    model = one.model()
    loss = one.loss(model, _batches(one)[0])
    if loss.shape != () or not math.isfinite(loss.item()):
        return f"it is {loss!r}"
    loss.backward()
    without = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    return f"no gradient reaches {', '.join(without)}" if without else ""


def _keys(one: UseCase, other: UseCase) -> str:
    for batch in _batches(one):
        model = one.model()
        parameters = dict(model.named_parameters())
        keys, hashed = one.keys(batch), hashed_tables(one)
        for name, rows in list(keys.items()):
            if name not in parameters:
                return f"{name!r} is no parameter of the model"
            if rows.dtype != torch.int64:
                return f"the rows of {name!r} are {rows.dtype}, not int64"
            if not rows.is_contiguous():
                return f"the rows of {name!r} are not contiguous in memory"
            if name in hashed:
                table: Any = model.get_submodule(name.rpartition(".")[0])
                keys[name] = table.rows_of(rows)
            elif len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(parameters[name]):
                return f"the rows of {name!r} leave [0, {len(parameters[name])})"
        one.loss(model, batch).backward()
        for name, rows in keys.items():
            unnamed = _touched(parameters[name].grad) - set(rows.flatten().tolist())
            if unnamed:
                return f"row {min(unnamed)} of {name!r} is read, but keys() does not return it"
    return ""


def _drawn(one: UseCase, other: UseCase) -> str:
    if not isinstance(one, Sampled):
        return ""
    table, count = one.draws()
    model = one.model()
    rows = torch.arange(count).flip(0) % len(model.get_parameter(table))
    batch = _batches(one)[0]
    drawn = one.with_drawn(batch, rows)
    if one.samples(drawn) != one.samples(batch):
        return f"{one.samples(batch)} samples become {one.samples(drawn)}"
    one.loss(model, drawn).backward()
    named, read = one.keys(drawn)[table].flatten().tolist(), _touched(model.get_parameter(table).grad)
    for where, found in (("returned by keys()", set(named)), ("read by the loss", read)):
        if missing := set(rows.tolist()) - found:
            return f"row {min(missing)} of {table!r} was drawn, but is not {where}"
    return ""


def _evaluate(one: UseCase, other: UseCase) -> str:
    model = one.model()
    metrics = one.evaluate(model, one.loaders(0, 1).valid)
    if one.metric not in metrics:
        return f"the metric {one.metric!r} is not among {', '.join(metrics)}"
    wrong = [name for name, value in metrics.items() if not math.isfinite(value)]
    if wrong:
        return f"{wrong[0]} is {metrics[wrong[0]]}"
    return "" if model.training else "the model is left in evaluation mode"


def _learns(one: UseCase, other: UseCase) -> str:
    model = one.model()
    optimizer = one.optimizer(model)
    batches = _batches(one)
    losses = []
    for batch in itertools.islice(itertools.cycle(batches), 10 * len(batches)):
        optimizer.zero_grad()
        loss = one.loss(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    first, last = (sum(part) / len(part) for part in (losses[: len(batches)], losses[-len(batches) :]))
    return "" if last < first else f"it is {first:.4g} at first and {last:.4g} after {len(losses)} steps"


def _batches(usecase: UseCase) -> list[Any]:
    return list(itertools.islice(usecase.loaders(0, 1).train, BATCHES))


def _touched(gradient: torch.Tensor | None) -> set[int]:
    if gradient is None:
        return set()
    if gradient.is_sparse:
        return set(gradient.coalesce().indices()[0].tolist())
    return set(gradient.reshape(len(gradient), -1).abs().sum(1).nonzero()[:, 0].tolist())
