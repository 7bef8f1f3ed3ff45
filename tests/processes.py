"""Processes that a test has started and waits for."""

import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence

from tests.warm import WarmProcess


def outputs(
    processes: Sequence[subprocess.Popen[str] | WarmProcess], seconds: float
) -> list[tuple[str, str]]:
    """The standard output and error of each process; no process is left running, whatever happens."""
    try:
        return [process.communicate(timeout=seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate(timeout=60.0)


def environment_of_rank(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What torchrun sets for a rank of this host; its PyTorch uses one thread."""
    place = {"RANK": f"{rank}", "WORLD_SIZE": f"{ranks}"}
    return {**place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}", "OMP_NUM_THREADS": "1"}


def forked(work: Callable[[], int]) -> int:
    """Fork a process that ends with what `work` gives, or with 1 and a traceback; returns its id."""
    process = os.fork()
    if process != 0:
        return process
    code = 1
    try:
        code = work()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(code)


def exit_code(process: int) -> int:
    """The exit code of a child, once it has ended."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def text_of_fork(work: Callable[[], str]) -> str:
    """What `work` gives in a fork of this process, or its error; threads and nodes end with the fork."""
    reader, writer = os.pipe()

    def write() -> int:
        try:
            text = work()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writer, text.encode())
        return 0

    process = forked(write)
    os.close(writer)
    with open(reader, encoding="utf-8") as pipe:
        text = pipe.read()
    exit_code(process)
    return text
