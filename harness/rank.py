"""The process of one rank: arms its death signal before it imports anything slow, then runs the trial.

``python -m adabench.harness.rank SPEC.json`` under torchrun, started by `adabench.harness.group`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from adabench.harness.process import die_with_parent
from adabench.harness.spec import GROUP_VARIABLE


def main() -> int:
    die_with_parent(int(os.environ[GROUP_VARIABLE]))
    from adabench.harness.trial import run_trial

    return run_trial(Path(sys.argv[1]))


if __name__ == "__main__":
    sys.exit(main())
