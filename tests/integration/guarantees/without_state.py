"""Two nodes train the same rows in float32 and in bfloat16 and report memory and content."""

from pathlib import Path
from typing import Any

import numpy as np

import adaps
from tests.integration.guarantees.common import FOREVER, RANK, cluster_of, pulled


def main(directory: str, **sizes: Any) -> dict[str, Any]:
    results = {}
    for technique in ("relocation", "replication"):
        for dtype in ("float32", "bfloat16"):
            assert cluster_of(2)
            folder = Path(directory) / f"{technique}-{dtype}"
            results[f"{technique} {dtype}"] = use(technique, dtype, folder, **sizes)
    return results


def use(
    technique: Any, dtype: str, directory: Path, rows: int, length: int, steps: int, pushed: float
) -> dict[str, Any]:
    table = adaps.Table("rows", rows, length, init=adaps.Constant(1.0), dtype=dtype)
    keys = np.arange(rows)

    with adaps.Node([table], techniques=technique, timing=False) as node:
        kv = node.worker(0)
        kv.end_setup()
        if technique == "replication":
            kv.intent(keys, 0, FOREVER)
            kv.wait_intent(keys)
        kv.barrier()
        for step in range(steps):
            # in turn, so that it is the same messages with either dtype
            if step % 2 == RANK:
                if technique == "relocation":
                    kv.intent(keys, kv.current_clock, FOREVER)
                    kv.wait_intent(keys)
                before = pulled(kv, keys, length)
                kv.push(keys, np.full((rows, length), pushed, np.float32))
                own = pulled(kv, keys, length) - before
                kv.wait_sync()
            kv.barrier()
        kv.wait_sync()
        kv.barrier()
        kv.wait_sync()
        stats = node.table("rows").stats()
        kv.barrier()  # or one node's answers to the other's pull would count, or not
        seen = pulled(kv, keys, length)
        # Relocated rows are all at the last node that wanted them.
        resident = node.stats()["resident_bytes"]
        node.checkpoint(directory)
        saved = pulled(kv, keys, length)  # no change is pending any more
        kv.barrier()
        kv.push(keys, np.full((rows, length), 1.0, np.float32))
        node.restore(directory)
        restored = pulled(kv, keys, length)
    return {
        "bytes": sum(value for name, value in stats.items() if name.startswith("bytes_sent_")),
        "resident": resident,
        "own": float(own.mean(dtype=np.float64)),
        "mean": float(seen.mean(dtype=np.float64)),
        "bits": int(saved.view(np.uint32).astype(np.uint64).sum()),
        "halves": not (saved.view(np.uint32) & 0xFFFF).any(),
        "same": bool(np.array_equal(saved, restored)),
    }
