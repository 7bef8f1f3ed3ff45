"""How links from the documentation to files of the repository come out as pages."""

import subprocess
import sys
from pathlib import Path

import pytest

EXTENSIONS = Path(__file__).resolve().parents[3] / "docs" / "_extensions"
SOURCE = "#include <map>\n\nint helper(int a);\n\nint main_thing(int a) {\n  return helper(a);\n}\n"
NOTES = (
    "# Notes\n\n## By hand\n\n[code](core/code.cc), [index](docs/index.md), ![a picture](core/picture.svg)\n"
)
CONF = f"""
import sys
sys.path.insert(0, {str(EXTENSIONS)!r})
project = "small"
extensions = ["myst_parser", "repository_files"]
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for folder in ("core", "docs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "core" / "code.cc").write_text(SOURCE, encoding="utf-8")
    (tmp_path / "core" / "picture.svg").write_text(
        "<svg xmlns='http://www.w3.org/2000/svg'/>", encoding="utf-8"
    )
    (tmp_path / "NOTES.md").write_text(NOTES, encoding="utf-8")
    (tmp_path / "docs" / "conf.py").write_text(CONF, encoding="utf-8")
    return tmp_path


def build(repository: Path, text: str) -> subprocess.CompletedProcess[str]:
    (repository / "docs" / "index.md").write_text(f"# Index\n\n{text}\n", encoding="utf-8")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "docs", "out"]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)


def test_linked_files_get_pages(repository: Path) -> None:
    done = build(repository, "[it](../core/code.cc#main_thing), [notes](../NOTES.md#by-hand)")
    assert done.returncode == 0, done.stderr
    pages = repository / "out"
    index = (pages / "index.html").read_text(encoding="utf-8")
    assert 'href="files/core/code.cc.html#line-5"' in index
    assert 'href="files/NOTES.md.html#by-hand"' in index
    assert 'id="line-5"' in (pages / "files" / "core" / "code.cc.html").read_text(encoding="utf-8")
    notes = (pages / "files" / "NOTES.md.html").read_text(encoding="utf-8")
    assert '<h2 id="by-hand">By hand</h2>' in notes
    assert 'href="core/code.cc.html"' in notes
    assert 'href="../index.html"' in notes
    assert (pages / "files" / "core" / "picture.svg").is_file()


def test_a_function_that_there_is_not_is_a_warning(repository: Path) -> None:
    done = build(repository, "[it](../core/code.cc#another_thing)")
    assert done.returncode != 0
    assert "core/code.cc has nothing that is called another_thing" in done.stderr
