"""Checks that two cells trained on equally many samples with equal quality, so that times can be compared."""

import math
from collections.abc import Sequence
from typing import Literal

from adabench.analysis.statistics import paired_interval
from adabench.results.record import Run

QUALITY_TOLERANCE = 0.01
"""Tolerance for records without a tolerance of their metric."""

_CONFIDENCE = 0.95


def disagreement(
    pairs: Sequence[tuple[Run, Run]],
) -> tuple[Literal["work differs", "quality differs"], str] | None:
    """Return the verdict and its reason if the times of two cells cannot be compared.

    A pair is a finished run of a cell and one of its reference, such as the baseline's run of the same block.
    """
    if reason := different_work(pairs):
        return "work differs", reason
    if reason := different_quality(pairs):
        return "quality differs", reason
    return None


def different_work(pairs: Sequence[tuple[Run, Run]]) -> str | None:
    """Return the difference if two cells trained on different numbers of samples."""
    for one, other in pairs:
        allowed = 0
        if one.nodes * one.workers != other.nodes * other.workers:
            # Workers get equal shares. The remainder, less than a batch per worker and epoch, is left out.
            batches = int(one.params.get("epochs", 1)) * max(run.nodes * run.workers for run in (one, other))
            allowed = batches * int(one.params.get("batch", 1))
        if abs(one.samples - other.samples) > allowed:
            return f"block {one.block + 1} trained on {one.samples} samples instead of {other.samples}"
    return None


def different_quality(pairs: Sequence[tuple[Run, Run]]) -> str | None:
    """Return the difference if the use case's metric certainly differs by more than its tolerance.

    It is certain if the 95 % interval of the paired differences is outside the tolerance. With fewer than six
    blocks there is no interval, and no verdict on time either.
    """
    first = pairs[0][1]
    metric = first.metric or next(iter(first.metrics), None)
    if metric is None:
        return None
    tolerance = QUALITY_TOLERANCE if first.tolerance is None else first.tolerance
    values = [tuple(run.metrics.get(metric, math.nan) for run in pair) for pair in pairs]
    lost = sum(math.isnan(ours) and not math.isnan(theirs) for ours, theirs in values)
    if lost:
        return f"{metric} is not a number in {lost} of {len(values)} blocks"
    known = [ours - theirs for ours, theirs in values if not math.isnan(theirs)]
    if not known:
        return None
    interval = paired_interval(known, _CONFIDENCE)
    if interval.low > tolerance or interval.high < -tolerance:
        return (
            f"{metric} differs by {interval.median:+.4f} [{interval.low:+.4f}, {interval.high:+.4f}], "
            f"more than ± {tolerance:g}"
        )
    return None
