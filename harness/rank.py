"""The process of one rank: arms its death signal before it imports anything slow, then runs the trial.

``python -m adabench.harness.rank SPEC.json`` under torchrun, started by `adabench.harness.group`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from adabench.harness.namespaces import enter, environment
from adabench.harness.owner import Owner
from adabench.harness.process import die_with_parent
from adabench.harness.spec import GROUP_VARIABLE, TrialSpec


def main() -> int:
    group = Owner.parse(os.environ[GROUP_VARIABLE])
    assert group is not None
    die_with_parent(group.pid)
    spec_file = Path(sys.argv[1])
    _take_place(msgspec.json.decode(spec_file.read_bytes(), type=TrialSpec), int(os.environ["RANK"]))
    from adabench.harness.trial import run_trial

    return run_trial(spec_file)


def _take_place(spec: TrialSpec, rank: int) -> None:
    """Go to this rank's core and namespace, while there is only this thread: those to come inherit both."""
    if spec.pinned:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    if spec.namespaces:
        enter(spec.namespaces[rank])
        os.environ.update(environment())


if __name__ == "__main__":
    sys.exit(main())
