"""Importing the package, and its types."""

import subprocess
import sys

import pytest

from tests.conftest import Python

USE = """
with adaps.Node([adaps.Table("emb", 10, 4)]) as node:
    out = {make}
    node.worker(0).push([1], out)
    node.worker(0).pull([1], out)
    assert out[0] == 1
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=400)


def test_the_import_loads_neither_torch_nor_numpy() -> None:
    result = python("import sys, adaps; print([m for m in ('torch', 'numpy', 'pandas') if m in sys.modules])")
    assert (result.stdout, result.stderr) == ("[]\n", "")


@pytest.mark.parametrize("order", ["import torch, adaps", "import adaps, torch"])
def test_torch_may_come_first_or_last_and_all_is_quiet(order: str) -> None:
    result = python(order + USE.format(make="torch.ones(4)"))
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_it_works_without_torch() -> None:
    result = python(
        "import adaps, numpy, sys; sys.modules['torch'] = None" + USE.format(make="numpy.ones(4, 'f4')")
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_checkpoints_are_found_as_the_reference_names_them() -> None:
    result = python("import adaps; print(adaps.checkpoint.exists('nowhere'))")
    assert (result.stdout, result.stderr) == ("False\n", "")


def test_a_node_that_nobody_closes_ends_with_the_process() -> None:
    result = python("import adaps; node = adaps.Node([adaps.Table('emb', 10, 4)]); kv = node.worker(0)")
    assert (result.returncode, result.stderr) == (0, "")


def test_ctrl_c_ends_a_call_that_blocks() -> None:
    code = """
import adaps, signal, sys, threading
with adaps.Node([adaps.Table("emb", 10, 4)], workers=2) as node:
    kv = node.worker(0)
    main = threading.get_ident()
    def wait_for_ever():
        kv.barrier()  # the other worker never comes
    def interrupt():
        while sys._current_frames()[main].f_code is not wait_for_ever.__code__:
            pass
        signal.raise_signal(signal.SIGINT)
    try:
        threading.Thread(target=interrupt).start()
        wait_for_ever()
    except KeyboardInterrupt:
        print("interrupted")
        out = memoryview(bytearray(16)).cast("f")
        kv.pull([1], out)
        raise
"""
    result = python(code)
    assert "KeyboardInterrupt" in result.stderr
    assert result.returncode != 0
    assert result.stdout == "interrupted\n"


IGNORING = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.argv[0] = "pytest"
runpy.run_module("pytest", run_name="__main__")
"""
"""Behaves like ``sh -c 'trap "" INT; exec python -m pytest …'``."""


def test_tests_pass_in_the_background_of_a_shell_that_ignores_ctrl_c_there(python: Python) -> None:
    test = f"{__file__}::{test_ctrl_c_ends_a_call_that_blocks.__name__}"
    done = python("-c", IGNORING, "-q", "-p", "no:cacheprovider", test)
    assert done.returncode == 0, done.stdout + done.stderr
