"""The code of the pages about a model on a GPU, which also runs without one, and about large tables runs."""

from __future__ import annotations

import re
from pathlib import Path

from adabench.harness.launch.fork_server import ForkServer

from .pages import ROOT, finish, start


def test_a_gpu(tmp_path: Path, warm: ForkServer) -> None:
    text = (ROOT / "docs" / "guides" / "gpu.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "gpu.py").write_text(program, encoding="utf-8")
    shown = re.search(r"^\$ (python gpu\.py)\n(.*)$", text, re.MULTILINE)
    assert shown is not None
    finish(start(shown[1], tmp_path, {}, warm), (shown[2],))
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_tables_larger_than_memory(tmp_path: Path, warm: ForkServer) -> None:
    text = (ROOT / "docs" / "guides" / "larger-than-memory.md").read_text(encoding="utf-8")
    programs = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    for name, program in zip(("users.py", "ids.py"), programs, strict=True):
        (tmp_path / name).write_text(program, encoding="utf-8")
        shown = re.search(rf"^\$ (python {name})\n(.*)\n(.*)$", text, re.MULTILINE)
        assert shown is not None
        finish(start(shown[1], tmp_path, {}, warm), (shown[2], shown[3]))
