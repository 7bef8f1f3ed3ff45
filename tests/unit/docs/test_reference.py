"""The reference is complete: commands, counters, records, and the files of checkpoints and exports."""

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adaps
from adaps.node import CURRENT_COUNTERS

ROOT = Path(__file__).resolve().parents[3]
REFERENCE = ROOT / "docs" / "reference"


def text_of(page: str) -> str:
    return (REFERENCE / f"{page}.md").read_text(encoding="utf-8")


def test_every_counter_has_its_unit() -> None:
    with adaps.Node([adaps.Table("rows", rows=1, length=1)]) as node:
        counted = set(node.stats())
    named: dict[str, str] = {}
    for names, unit in re.findall(
        r"^\| (`\w+`(?:, `\w+`)*) \| ([\wµ]+) \|", text_of("counters"), re.MULTILINE
    ):
        named |= dict.fromkeys(re.findall(r"`(\w+)`", names), unit)
    (types,) = re.findall(r"^\| `bytes_sent_TYPE` .*?: (.*?) \|$", text_of("counters"), re.MULTILINE)
    named |= {f"bytes_sent_{name}": "bytes" for name in re.findall(r"`(\w+)`", types)}
    assert named.keys() - {"bytes_sent_TYPE"} == counted
    for name, unit in named.items():
        assert (unit == "µs") == name.endswith("_micros"), name
        assert (unit == "bytes") == ("bytes" in name), name
    current = re.findall(r"^\| `(\w+)` \| \w+ \| \*current\*", text_of("counters"), re.MULTILINE)
    assert set(current) == CURRENT_COUNTERS


def test_every_command_is_listed_with_every_option(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("docutils")
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_extensions"))
    commands = importlib.import_module("command_reference").commands
    found = {usage.split(" [")[0]: dict(parameters) for usage, _, parameters in commands()}
    monkeypatch.delitem(sys.modules, "command_reference")
    assert {"adabench run", "adabench list", "adabench data fetch"} <= found.keys()
    assert "-r, --repeats N" in found["adabench run"]
    assert all(text and parameters is not None for _, text, parameters in commands())
    for options in found.values():
        assert all(meaning for meaning in options.values())


def test_records_are_read_as_their_page_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (program,) = re.findall(r"```python\n(.*?)```", text_of("records"), re.DOTALL)
    given: dict[str, Any] = {}
    exec(program.replace("results/sessions", "results/reference"), given)
    assert len(given["frame"]) > 1
    assert given["seconds"].min() > 0


def test_the_page_of_checkpoints_names_all_that_is_in_one(tmp_path: Path) -> None:
    with adaps.Node([adaps.Table("rows", rows=2, length=1)]) as node:
        node.worker(0).set([0], np.ones(1, np.float32))
        node.checkpoint(tmp_path / "saved", extra={"mine": 1})
    said = text_of("checkpoints")
    manifest = json.loads(max((tmp_path / "saved").glob("manifest-*.json")).read_text())
    for part in (manifest, manifest["writer"], manifest["checkpoint"], *manifest["checkpoint"]["tables"]):
        assert [name for name in part if f"`{name}`" not in said] == []
    for file in manifest["checkpoint"]["files"]:
        assert [name for name in file if f"`{name}`" not in said] == []
    forms = {re.sub(r"[0-9a-f]{8,}", "N", file.name) for file in (tmp_path / "saved").rglob("*")}
    assert {form for form in forms if form not in re.sub(r"[0-9a-f]{8,}", "N", said)} == set()


def test_the_page_of_exports_names_all_that_is_in_one(tmp_path: Path) -> None:
    with adaps.Node([adaps.Table("rows", rows=2, length=1)]) as node:
        node.export(tmp_path / "exported").wait()
    said = text_of("exports")
    manifest = json.loads(max((tmp_path / "exported").glob("manifest-*.json")).read_text())
    export = manifest["export"]
    for part in (manifest, manifest["writer"], export, *export["tables"], *export["parts"]):
        assert [name for name in part if f"`{name}`" not in said] == []
    (file,) = export["parts"][0]["files"]
    assert [name for name in file if f"`{name}`" not in said] == []
    forms = {re.sub(r"[0-9a-f]{8,}", "N", file.name) for file in (tmp_path / "exported").rglob("*")}
    assert {form for form in forms if form not in re.sub(r"[0-9a-f]{8,}", "N", said)} == set()


def test_exports_are_written_and_read_as_their_page_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "guides" / "exports.md").read_text(encoding="utf-8")
    writing, reading = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(writing, {})
    (shown,) = re.findall(r"```console\n\$ python items.py\n(.*?)```", page, re.DOTALL)
    assert capsys.readouterr().out == shown
    given: dict[str, Any] = {}
    exec(reading, given)
    assert given["tables"]["items"].tobytes() == adaps.load_export("exported")["items"].tobytes()
    assert len(given["export"]["parts"]) == 3


def test_the_program_with_ids_prints_what_its_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    page = text_of("adaps")
    (program,) = re.findall(r"```python\n(.*?rows_of.*?)```", page, re.DOTALL)
    exec(program, {})
    (shown,) = re.findall(r"```console\n\$ python ids.py\n(.*?)```", page, re.DOTALL)
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize("module", ["adaps", "autoada"])
def test_the_pages_show_all_public_names(module: str) -> None:
    public = __import__(module).__all__
    said = text_of(module)
    assert [
        name for name in public if not re.search(rf"auto\w+:: {module}\.{name}$", said, re.MULTILINE)
    ] == []
