"""Runs the code of a documentation page exactly as it is written there."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from adabench.harness.launch.fork_server import ForkServer
from tests.warm import RUN_ADABENCH, RUN_PYTHON, WarmProcess

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
PROGRAMS = {"python": RUN_PYTHON, "adabench": RUN_ADABENCH}
"""Commands that run in forks, because a new interpreter would need seconds to import PyTorch."""


class Block(NamedTuple):
    """A block of code: its language, its text, and the file name that the preceding paragraph gives it."""

    language: str
    text: str
    file: str | None

    @property
    def is_program(self) -> bool:
        """Whether the block runs by itself; otherwise it belongs in `train.py` before the model is closed."""
        return self.language == "python" and self.text.startswith(("import ", "from "))


class Command(NamedTuple):
    """A line after a prompt, ``$`` or ``one$``, and the output that the page shows for it."""

    prompt: str
    line: str
    output: tuple[str, ...]


def blocks_of(page: str) -> list[Block]:
    """All blocks of a page, such as ``one-node``."""
    text = (TUTORIALS / f"{page}.md").read_text(encoding="utf-8")
    found = []
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        paragraph = text[: match.start()].rstrip().rpartition("\n\n")[2]
        named = re.search(r"This is `([\w-]+\.py)`", paragraph)
        found.append(Block(match[1], match[2], named[1] if named else None))
    return found


def commands_of(page: str) -> list[Command]:
    """All commands of a page, in their order."""
    found: list[Command] = []
    for block in blocks_of(page):
        if block.language != "console":
            continue
        for line in block.text.splitlines():
            prompt = re.match(r"(\w*\$) (.*)", line)
            if prompt is not None:
                found.append(Command(prompt[1], prompt[2].split("  #")[0].rstrip(), ()))
            else:
                found[-1] = found[-1]._replace(output=(*found[-1].output, line))
    return found


def environment(**variables: str) -> dict[str, str]:
    """The environment of commands, in which the programs of this Python installation come first."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    given = {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "200", **variables}
    # Without buffers, print writes the end of a line separately, and the ranks of torchrun share a pipe.
    given["PYTHONUNBUFFERED"] = ""
    return {**os.environ, **given, "PATH": path}


def start(
    line: str, folder: Path, variables: Mapping[str, str], warm: ForkServer
) -> subprocess.Popen[str] | WarmProcess:
    """Start a command in a folder: Python programs as forks of `warm`, everything else in a shell.

    Standard error becomes part of the output.
    """
    given = environment(**variables)
    words = shlex.split(line)
    if words[0] in PROGRAMS and not {"|", "&&", ";", ">", "<"} & set(words):
        return WarmProcess(warm, words[1:], given, folder, PROGRAMS[words[0]], merged=True)
    return subprocess.Popen(
        ["bash", "-c", line],
        cwd=folder,
        env=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str] | WarmProcess, output: tuple[str, ...] = ()) -> str:
    """Wait until a command succeeds and has printed the output of the page; returns everything it printed."""
    try:
        said, _ = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.wait() == 0, said
    lines = iter(said.splitlines())
    for expected in output:
        pattern = ".*".join(map(re.escape, expected.split("…")))
        assert any(re.fullmatch(pattern, line.rstrip()) for line in lines), (
            f"{expected!r} is not said in {said}"
        )
    return said


def write_training(folder: Path) -> None:
    """Write `train.py`, which three pages train with, with every fragment of theirs that belongs into it."""
    pages = ("one-node", "two-nodes")
    (program,) = [block.text for block in blocks_of("one-node") if block.file == "train.py"]
    fragments = [
        block.text
        for page in pages
        for block in blocks_of(page)
        if block.language == "python" and not block.is_program
    ]
    before, closing, after = program.partition("model.close()\n")
    assert closing
    (folder / "train.py").write_text("".join([before, *fragments, closing, after]), encoding="utf-8")
