"""Reference for combining the gradients of workers, in NumPy, one number after the other."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from adaps.policy import Aggregation

Array = npt.NDArray[np.float64]
Present = npt.NDArray[np.bool_]


def combine(
    aggregation: Aggregation,
    gradients: list[dict[str, Array]],
    present: list[dict[str, Present]],
    missing: int = 0,
) -> dict[str, Array]:
    workers, faulty = len(gradients), max(0, (aggregation.faulty or 0) - missing)
    if aggregation.rule in ("median", "trimmed_mean"):
        trim = None if aggregation.rule == "median" else faulty
        believed = ordinary(gradients, present)
        result_by_name = {}
        for name in gradients[0]:
            have = np.sum([p[name] for p in present], axis=0)
            counting = [p[name] & ((2 * have > workers) | b) for p, b in zip(present, believed, strict=True)]
            result_by_name[name] = by_coordinate([g[name] for g in gradients], counting, trim)
        return result_by_name
    flat = np.stack([np.concatenate([each.ravel() for each in g.values()]) for g in gradients])
    if aggregation.rule == "krum":
        squared = ((flat[:, None] - flat[None]) ** 2).sum(2)
        scores = [sorted(np.delete(squared[i], i))[: workers - faulty - 2] for i in range(workers)]
        best = np.argsort([sum(score) for score in scores], kind="stable")[: aggregation.keep or 1]
        result = flat[best].mean(0)
    else:
        centre = np.concatenate(
            [
                by_coordinate([g[name] for g in gradients], [p[name] for p in present], None).ravel()
                for name in gradients[0]
            ]
        )
        distances = np.linalg.norm(flat - centre, axis=1)
        half = np.sort(distances)[(workers - 1) // 2]
        weights = half / (half + distances)
        weights /= weights.sum()
        suspicious = [i for i in np.argsort(-distances)[:faulty] if distances[i] > 3 * half]
        others = [i for i in range(workers) if i not in suspicious]
        replaced = flat.copy()
        replaced[suspicious] = flat[others].mean(0)
        result = weights @ replaced
    parts, start = {}, 0
    for name, value in gradients[0].items():
        parts[name] = result[start : start + value.size].reshape(value.shape)
        start += value.size
    return parts


def ordinary(gradients: list[dict[str, Array]], present: list[dict[str, Present]]) -> list[bool]:
    """Who is at most three times as far from the median as the median worker, and its other rows as long."""
    away, length = np.zeros(len(gradients)), np.zeros(len(gradients))
    for name in gradients[0]:
        agreed = 2 * np.sum([p[name] for p in present], axis=0) > len(gradients)
        centre = by_coordinate([g[name] for g in gradients], [p[name] for p in present], None)
        for worker, (g, p) in enumerate(zip(gradients, present, strict=True)):
            away[worker] += ((g[name] - centre)[agreed & p[name]] ** 2).sum()
            length[worker] += (g[name][~agreed] ** 2).sum()
    middle = (len(gradients) - 1) // 2
    return [
        bool(
            np.sqrt(a) <= 3 * np.sqrt(sorted(away)[middle])
            and np.sqrt(b) <= 3 * np.sqrt(sorted(length)[middle])
        )
        for a, b in zip(away, length, strict=True)
    ]


def by_coordinate(values: list[Array], present: list[Present], trim: int | None) -> Array:
    result = np.zeros(values[0].shape)
    for place in np.ndindex(result.shape):
        have = sorted(value[place] for value, there in zip(values, present, strict=True) if there[place])
        if have:
            most = (len(have) - 1) // 2
            out = most if trim is None else min(trim, most)
            kept = np.median(have) if trim is None else np.mean(have[out : len(have) - out])
            result[place] = kept * len(have) / len(values)
    return result
