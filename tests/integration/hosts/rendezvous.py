"""One rank's nodes in several environments, one after the other; prints the outcome of each as JSON.

``python -m tests.integration.hosts.rendezvous '[{"NAME": "value"}]'`` needs no torchrun: rank 0 holds the
store. An outcome is the sum of all pushes, and whether the store is also open at loopback; or the error.
"""

import json
import os
import socket
import sys
import time
from typing import Any

import numpy as np
import torch.distributed  # before the rendezvous, because it takes a while  # noqa: F401

import adaps

KEYS = np.arange(10)


def main() -> None:
    print(json.dumps([outcome(environment) for environment in json.loads(sys.argv[1])]))


def outcome(environment: dict[str, str]) -> dict[str, Any]:
    for name in ("ADAPS_SECRET", "ADAPS_SECRET_FILE", "ADAPS_LISTEN"):
        os.environ.pop(name, None)
    os.environ.update(environment)
    seconds = float(environment.get("SECONDS", 120))
    begin = time.monotonic()
    try:
        with adaps.Node([adaps.Table("sums", len(KEYS), 1)], connect_timeout=seconds) as node:
            kv, out = node.worker(0), np.empty((len(KEYS), 1), np.float32)
            kv.push(KEYS, np.full((len(KEYS), 1), 1.0 + node.rank, np.float32))
            kv.barrier()
            kv.pull(KEYS, out)
            kv.barrier()
            return {"sums": sorted(set(out.ravel().tolist())), "open": open_at_loopback()}
    except adaps.AdapsError as error:
        return {"refused": str(error), "seconds": time.monotonic() - begin}


def open_at_loopback() -> bool:
    try:
        with socket.create_connection(("127.0.0.1", int(os.environ["MASTER_PORT"])), timeout=10):
            return True
    except ConnectionRefusedError:
        return False


if __name__ == "__main__":
    main()
