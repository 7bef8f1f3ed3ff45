"""Runs a function as a rank of a cluster: ``python -m tests.rank MODULE FUNCTION ARGUMENTS``.

The arguments are a JSON object; what the function returns is printed as JSON.
"""

import contextlib
import importlib
import json
import sys

import torch


def main() -> None:
    module, function, arguments = sys.argv[1:]
    torch.set_num_threads(1)  # a fork has PyTorch from before OMP_NUM_THREADS was set
    work = getattr(importlib.import_module(module), function)
    with contextlib.redirect_stdout(sys.stderr):  # libraries print
        result = work(**json.loads(arguments))
    # In one write, which no other rank's can come between: print writes the end of a line for itself if
    # output is not buffered, and the ranks of torchrun share one pipe.
    sys.stdout.write(f"{json.dumps(result)}\n")


if __name__ == "__main__":
    main()
