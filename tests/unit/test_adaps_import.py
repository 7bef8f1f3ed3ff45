"""Importing the package, and its types."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import adaps

USE = """
with adaps.Node([adaps.Table("emb", 10, 4)]) as node:
    out = {make}
    node.worker(0).push([1], out)
    node.worker(0).pull([1], out)
    assert out[0] == 1
"""


# Reading all of torch's types for the sake of one name takes a minute.
STUBTEST_CONFIGURATION = """
[mypy]
[mypy-torch.*]
follow_imports = skip
[mypy-adaps._core]
disable_error_code = overload-cannot-match
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


def test_tests_pass_in_the_background_of_a_shell_that_ignores_ctrl_c_there() -> None:
    test = f"{__file__}::{test_ctrl_c_ends_a_call_that_blocks.__name__}"
    done = subprocess.run(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-m", "pytest", "-q", test],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_stub_says_what_the_module_has(tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    # pybind11's classes have a metaclass of its own, and its enumerations a capsule.
    names = [
        "Initializer",
        "Node",
        "NodeTable",
        "TableRestore",
        "TableSpec",
        "TraceEvent",
        "UpdateRule",
        "Worker",
    ]
    made_by_nodes = [f"{name}\\.__init__" for name in ("NodeTable", "TraceEvent", "Worker")]
    exceptions = [*names, *made_by_nodes, r"\w+\.__pybind11_native_enum__"]
    allowed.write_text("".join(rf"adaps\._core\.{name}" + "\n" for name in exceptions))
    configuration = tmp_path / "mypy.ini"
    configuration.write_text(STUBTEST_CONFIGURATION)
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy.stubtest",
            "--mypy-config-file",
            str(configuration),
            "adaps._core",
            "--allowlist",
            str(allowed),
            "--ignore-unused-allowlist",
        ],
        cwd=Path(adaps.__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stdout + result.stderr
