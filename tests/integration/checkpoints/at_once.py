"""Reads a checkpoint's manifest on threads that begin at the same time, in processes that have not read one.

Each try has a process of its own, for only the first reading is of interest: it makes what all others use.
Prints how many of them died.
"""

import os
import sys
import tempfile
import threading
from pathlib import Path

import adaps
from adaps.checkpoint import editions
from adaps.checkpoint.manifests import CHECKPOINTS

TRIES, THREADS = 40, 2


def main() -> None:
    sys.setswitchinterval(1e-6)
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "saved"
        if os.fork() == 0:  # which has a node and its threads; this process is to have none
            with adaps.Node([adaps.Table("emb", 10, 2)]) as node:
                node.checkpoint(directory)
            os._exit(0)
        os.wait()
        print(sum(dies(directory) for _ in range(TRIES)))


def dies(directory: Path) -> bool:
    if os.fork() == 0:
        together = threading.Barrier(THREADS)

        def read() -> None:
            together.wait()
            if editions.newest(directory, CHECKPOINTS) is None:
                os._exit(1)

        threads = [threading.Thread(target=read) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.wait()[1]) != 0


if __name__ == "__main__":
    main()
