import ast
import sys
from pathlib import Path

import pytest

from adabench.harness.errors import UsageError
from adabench.harness.plugins.scaffold import write_package

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.mark.parametrize("kind", ["backend", "usecase"])
def test_a_package_names_itself_its_entry_point_and_its_class(tmp_path: Path, kind: str) -> None:
    package = write_package(kind, "my-own2", tmp_path)
    project = tomllib.loads((package / "pyproject.toml").read_text())
    assert project["project"]["name"] == "adabench-my-own2"
    assert project["project"]["entry-points"] == {f"adabench.{kind}s": {"my-own2": "adabench_my_own2:MyOwn2"}}
    source = (package / "adabench_my_own2.py").read_text()
    assert "@" not in source.replace("@property", "")
    assert "MyOwn2" in [node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]


def test_a_backend_takes_at_most_thirty_lines(tmp_path: Path) -> None:
    source = (write_package("backend", "mine", tmp_path) / "adabench_mine.py").read_text()
    assert len(source.splitlines()) <= 30


@pytest.mark.parametrize("name", ["", "My", "a_b", "1a", "a--b", "-a", "class", "../x"])
def test_a_name_that_is_no_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="is no name for a plugin"):
        write_package("backend", name, tmp_path)


def test_a_name_or_folder_that_is_taken(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is a backend 'single' already \(built in\)"):
        write_package("backend", "single", tmp_path)
    (tmp_path / "adabench-mine").mkdir()
    with pytest.raises(UsageError, match="exists already"):
        write_package("usecase", "mine", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be made"):
        write_package("usecase", "mine", tmp_path / "file")
