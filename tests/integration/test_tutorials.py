"""Every block of code and every command of the tutorials and start pages runs as it is written."""

import os
import re
from collections.abc import Callable
from pathlib import Path

from adabench.harness.launch.fork_server import ForkServer
from adabench.harness.plugins import registry
from adabench.results.store import list_sessions
from tests.conftest import RunRanks

from .pages import ROOT, TUTORIALS, Command, blocks_of, commands_of, finish, start, write_training

# Nothing is compiled or downloaded for a plugin, and it goes where only the test looks.
PIP = {
    "PIP_NO_BUILD_ISOLATION": "0",
    "PIP_NO_DEPS": "1",
    "PIP_QUIET": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    # `make` sets it for the clone, by a path that leads nowhere from the test's folder.
    "PIP_CONSTRAINT": "",
}


def test_one_node(tmp_path: Path, warm: ForkServer) -> None:
    write_training(tmp_path)
    (resume,) = [block.text for block in blocks_of("one-node") if block.file == "resume.py"]
    (tmp_path / "resume.py").write_text(resume, encoding="utf-8")
    for command in commands_of("one-node"):
        finish(start(command.line, tmp_path, {}, warm), command.output)
    assert (tmp_path / "ratings.pt").is_file()
    assert "epoch" not in finish(start("python resume.py", tmp_path, {}, warm))  # nothing is left to do


def test_a_model_of_torchrec(tmp_path: Path, warm: ForkServer) -> None:
    page = "../guides/from-torchrec"
    (program,) = [block.text for block in blocks_of(page) if block.is_program]
    (tmp_path / "converted.py").write_text(program, encoding="utf-8")
    (command,) = [command for command in commands_of(page) if command.line.startswith("python")]
    finish(start(command.line, tmp_path, {}, warm), command.output)


def test_the_server_alone(run_ranks: RunRanks) -> None:
    (program,) = [block.text for block in blocks_of("one-node") if block.is_program and block.file is None]
    for process in run_ranks(program, 2):
        assert process.returncode == 0, process.stderr


def test_two_nodes(tmp_path: Path, warm: ForkServer) -> None:
    """The second command is the first one with a variable, so it shows both."""
    write_training(tmp_path)
    first, other = commands_of("two-nodes")
    assert other.line == f"ADAPS_NETWORK=lan {first.line}"
    said = finish(start(other.line, tmp_path, {}, warm), first.output)
    assert said.count("rows moved here") == 2


def test_a_training_whose_loader_is_not_wrapped_is_reported(tmp_path: Path, warm: ForkServer) -> None:
    write_training(tmp_path)
    program = tmp_path / "train.py"
    text = program.read_text(encoding="utf-8")
    plain = re.sub(r"^loader = aa\.AdaDataLoader.*\n", "", text, flags=re.MULTILINE)
    assert plain != text
    program.write_text(plain, encoding="utf-8")
    said = finish(start(commands_of("two-nodes")[0].line, tmp_path, {}, warm))
    assert said.count("no loader has signalled intent") == 2


def test_two_machines(tmp_path: Path, warm: ForkServer) -> None:
    """Two agents on this host; the addresses of the page become the loopback interface's."""
    write_training(tmp_path)
    (secret,) = [command for command in commands_of("two-machines") if command.prompt == "$"]
    finish(start(secret.line, tmp_path, {}, warm))
    assert (tmp_path / "adaps-secret").stat().st_mode & 0o077 == 0
    scripts = {}
    for prompt in ("one$", "two$"):
        lines = [command.line for command in commands_of("two-machines") if command.prompt == prompt]
        assert lines[0].startswith("export ADAPS_SECRET_FILE=adaps-secret ADAPS_LISTEN=10.0.0.")
        scripts[prompt] = re.sub(r"10\.0\.0\.\d", "127.0.0.1", " && ".join(lines)).replace("29500", "29537")
    agents = [start(script, tmp_path, {}, warm) for script in scripts.values()]
    try:
        said = [agent.communicate(timeout=600)[0] for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    assert [agent.wait() for agent in agents] == [0, 0], "\n".join(said)
    assert sum(one.count("epoch 3") for one in said) == 2
    assert all("% of rows local" in one for one in said)


def test_a_simulation(tmp_path: Path, warm: ForkServer, run_ranks: RunRanks) -> None:
    for command in _simulations(of_this_machine=False):
        finish(start(command.line, tmp_path, {}, warm), command.output)
    assert (tmp_path / "simulated.svg").is_file()
    assert (tmp_path / "trace.json").is_file()
    (program,) = [block.text for block in blocks_of("simulate") if block.language == "python"]
    (process,) = run_ranks(program, 1)
    assert process.returncode == 0, process.stderr
    assert len(process.stdout.splitlines()) == 2


def test_a_simulation_with_the_costs_of_this_machine(tmp_path: Path, warm: ForkServer) -> None:
    for command in _simulations(of_this_machine=True):
        finish(start(command.line, tmp_path, {}, warm), command.output)


def _simulations(of_this_machine: bool) -> list[Command]:
    commands = commands_of("simulate")
    return [each for each in commands if ("cluster.toml" in each.line) is of_this_machine]


def test_plugins(
    tmp_path: Path, warm: ForkServer, plugin_environment: dict[str, str], marked: Callable[[], list[int]]
) -> None:
    """The tutorial of a task trains it with the strategy of the other one."""
    site = tmp_path / "site"
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    variables = {**plugin_environment, **PIP, "PIP_TARGET": str(site), "PYTHONPATH": path}
    for page in ("backend", "use-case"):
        for command in commands_of(page):
            said = finish(start(command.line, tmp_path, variables, warm), command.output)
            if command.line.startswith("adabench check usecase"):
                assert said.count("ok ") == len(said.splitlines()) == 13
    (shown,) = [block.text for block in blocks_of("backend") if block.language == "python"]
    assert shown in (tmp_path / "adabench-mine" / "adabench_mine.py").read_text(encoding="utf-8")

    (store,) = list_sessions(tmp_path / "adabench-results")
    assert {run.backend: run.status for run in store.runs()} == {"mine": "ok", "single": "ok"}
    again = "adabench plan -u 'task[epochs=1]' -b single,mine --nodes 2 -r 1"
    assert "time: about" in finish(start(again, tmp_path, variables, warm))
    assert "too few runs" in finish(start("adabench compare --baseline single", tmp_path, variables, warm))
    gate = start("adabench compare --baseline single --fail-if 'ratio > 0'", tmp_path, variables, warm)
    judged, _ = gate.communicate(timeout=240)
    assert gate.wait() == 3
    assert "cannot be judged: task mine, 2 nodes, loopback against 1 node: too few runs" in judged
    for line in ("adabench report", "adabench export --to json"):
        assert (tmp_path / finish(start(line, tmp_path, variables, warm)).strip()).is_file()
    assert marked() == []


def test_a_report(tmp_path: Path, warm: ForkServer) -> None:
    """The whole study takes minutes: it is planned as written, and one block of less data is trained."""
    for command in commands_of("report"):
        line = command.line
        if line.startswith("adabench run"):
            line = line.replace("rows=20000", "rows=4000,epochs=1").replace("-r 6", "-r 1")
            assert line != command.line
        finish(start(line, tmp_path, {}, warm), command.output)
    (session,) = list_sessions(tmp_path / "adabench-results")
    assert {run.status for run in session.runs()} == {"ok"}


def test_the_readme_compares_as_the_tutorial_does() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\$ (adabench .*)$", readme, re.MULTILINE)
    assert len(shown) == 3
    assert set(shown) <= {command.line for command in commands_of("report")}


def test_strategies_of_the_tables_are_the_backends() -> None:
    text = (TUTORIALS / "report.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE)) == set(registry.names("backend"))


def test_every_block_of_every_page_is_run() -> None:
    pages = {file.stem for file in TUTORIALS.glob("*.md")} - {"index"}
    assert pages == {"one-node", "two-nodes", "two-machines", "backend", "use-case", "report", "simulate"}
    languages = {block.language for page in pages for block in blocks_of(page)}
    assert languages == {"python", "console", "text"}
    without = ("use-case", "report", "two-machines")
    assert "python" not in {block.language for page in without for block in blocks_of(page)}


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
