"""The process of one rank: a fork of its group's root that takes its place and trains."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from adabench.harness.machine import quota
from adabench.harness.machine.namespaces import enter
from adabench.harness.machine.namespaces import environment as environment_in_namespace
from adabench.harness.machine.process import die_with_parent, end_quickly, set_name
from adabench.harness.run.spec import RunSpec


def run_rank(spec_file: Path, group: int, environment: Mapping[str, str]) -> int:
    """Train as one rank of a run; returns the exit code.

    Parameters
    ----------
    spec_file : Path
        File of a `RunSpec`.
    group : int
        The parent's process id: this process ends with it.
    environment : mapping
        Environment variables of torchrun: the rank, and the address of the store.
    """
    from adabench.harness.run.training_loop import train_rank

    die_with_parent(group)
    os.environ.update(environment)
    rank = int(environment["RANK"])
    set_name(f"adabench rank {rank}")
    # NumPy's generator must be seeded in every fork. Python does this for its own generator.
    np.random.seed()  # noqa: NPY002
    take_place(msgspec.json.decode(spec_file.read_bytes(), type=RunSpec), rank)
    return end_quickly(train_rank(spec_file))


def take_place(spec: RunSpec, rank: int) -> None:
    """Move to this rank's core, namespace and control group.

    There must be only this thread, as later threads inherit them.
    """
    if spec.pinned:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[int(os.environ.get("LOCAL_RANK", rank))]})
    if spec.namespaces:
        enter(spec.namespaces[rank])
        os.environ.update(environment_in_namespace())
    if rank in spec.quotas:
        quota.enter(spec.quotas[rank])
