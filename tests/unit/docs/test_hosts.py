"""The pages that lead to a figure give options that exist, and scripts, studies and jobs that can be read."""

import re
import shlex
import subprocess
import sys
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import typer
import yaml

from adabench.harness.cli.main import app
from adabench.harness.launch.slurm import JobRequest
from adabench.harness.study.study import load_study

DOCS = Path(__file__).resolve().parents[3] / "docs" / "guides"
PAGES = {
    name: (DOCS / f"{name}.md").read_text(encoding="utf-8")
    for name in ("one-machine", "hosts", "slurm", "kubernetes")
}
MEETING = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES[page], re.DOTALL | re.MULTILINE)


def commands(page: str) -> list[list[str]]:
    """Every ``adabench …`` that a block of a page starts."""
    text = "\n".join(one for kind in ("console", "bash", "yaml", "python") for one in blocks(page, kind))
    found = re.findall(r"\badabench ((?:run|plan|compare|report)\b.*)", text)
    # A quote that is not closed here was opened before.
    return [shlex.split(re.sub(r"^((?:[^'\"]|'[^']*'|\"[^\"]*\")*).*", r"\1", line)) for line in found]


def parsed(words: list[str]) -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    with group.commands[words[0]].make_context(words[0], words[1:]) as context:
        return dict(context.params)


@pytest.mark.parametrize(
    ("page", "count"), [("one-machine", 6), ("hosts", 6), ("slurm", 2), ("kubernetes", 1)]
)
def test_every_command_is_one_of_this_version(page: str, count: int) -> None:
    assert len(commands(page)) == count
    launchers = {"one-machine": None, "hosts": "torchrun", "slurm": "slurm"}
    for words in commands(page):
        given = parsed(words)
        if words[0] == "run":
            assert given["launcher"] == launchers[page]
            assert given["usecases"] or given["study"] == Path("study.toml")
            JobRequest.read(given["job"] or ())


@pytest.mark.parametrize("page", ["one-machine", "slurm"])
def test_every_study_is_one(page: str, tmp_path: Path) -> None:
    (text,) = blocks(page, "toml")
    (tmp_path / "study.toml").write_text(text)
    study = load_study(tmp_path / "study.toml", "study", {})
    assert (study.repeats, [settings.nodes for settings in study.settings]) == (6, [2])


def test_every_script_is_one() -> None:
    scripts = blocks("hosts", "bash")
    assert len(scripts) == 2
    for script in scripts:
        assert_is_script(script)
        for name in (*MEETING, "ADAPS_SECRET_FILE"):
            assert f"{name}=" in script


def assert_is_script(text: str) -> None:
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_task_of_skypilot_sets_what_the_launcher_reads() -> None:
    (text,) = blocks("hosts", "yaml")
    task = yaml.safe_load(text)
    assert set(task) == {"name", "num_nodes", "workdir", "resources", "secrets", "setup", "run"}
    assert task["secrets"] == {"ADAPS_SECRET": None}  # to be given with --secret
    for script in (task["setup"], task["run"]):
        assert_is_script(script)
    said = {}
    node = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}
    script = task["run"].replace("adabench run", "env; : adabench run")
    done = subprocess.run(["bash", "-c", script], env=node, capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        name, _, value = line.partition("=")
        said[name] = value
    assert [said[name] for name in MEETING] == ["1", "2", "10.0.0.1", "29500"]
    # Its name on the command lines, and the variable that they hand on.
    sky = next(line for block in blocks("hosts", "console") for line in block.splitlines() if " sky " in line)
    assert {"--secret", "ADAPS_SECRET", "adabench.yaml", "study"} <= set(shlex.split(sky))


def immediate_task(num_cpus: int) -> Any:
    """A decorator like `ray.remote` whose tasks run at once in this process."""

    def task(function: Any) -> Any:
        function.remote = function
        function.options = lambda scheduling_strategy: function
        return function

    return task


def test_the_program_for_ray_starts_a_rank_per_host(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (program,) = [one for one in blocks("hosts", "python") if "import ray" in one]
    ray = MagicMock(get=lambda value: value, remote=immediate_task)
    ray.util.get_node_ip_address.return_value = "10.0.0.1"
    for name in ("ray", "ray.util", "ray.util.placement_group", "ray.util.scheduling_strategies"):
        monkeypatch.setitem(sys.modules, name, attrgetter(name)(SimpleNamespace(ray=ray)))
    started: list[tuple[list[str], dict[str, str]]] = []

    def run(command: list[str], env: dict[str, str], check: bool) -> Any:
        started.append((command, env))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    exec(compile(program, "hosts.md", "exec"), {"__name__": "__main__"})
    (group,) = ray.util.placement_group.placement_group.call_args_list
    assert (len(group.args[0]), group.kwargs) == (2, {"strategy": "STRICT_SPREAD"})
    assert len(started) == 2
    for rank, (command, environment) in enumerate(started):
        assert command == ["adabench", "run", "study.toml", "--launcher", "torchrun"]
        assert [environment[name] for name in MEETING] == [f"{rank}", "2", "10.0.0.1", "29500"]
        assert environment["ADAPS_SECRET_FILE"].endswith("/adaps-secret")
    assert capsys.readouterr().out == "[0, 0]\n"


def test_the_job_of_kubernetes_fits_together() -> None:
    claim, job = (yaml.safe_load(text) for text in blocks("kubernetes", "yaml"))
    assert (job["apiVersion"], job["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    assert set(job["spec"]) == {"runtimeRef", "trainer", "runtimePatches"}
    trainer = job["spec"]["trainer"]
    torchrun, one_process, program, *words = trainer["command"]
    assert (torchrun, one_process, program) == ("torchrun", "--nproc-per-node=1", "--no-python")
    assert words.pop(0) == "adabench"
    given = parsed(words)
    assert given["launcher"] == "torchrun"
    assert trainer["numNodes"] == 2

    (patch,) = job["spec"]["runtimePatches"]
    (replicated,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod = replicated["template"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    # the names in the runtime torch-distributed
    assert (replicated["name"], container["name"]) == ("node", "node")
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    assert mounts[f"{given['results']}"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]

    # The results of the lines before: the image, the study and the secret.
    lines = [line for block in blocks("kubernetes", "console") for line in block.splitlines()]
    made = " ".join(lines)
    assert made.count(f"{trainer['image']}") == 2
    study = mounts[f"{given['study'].parent}"]["configMap"]["name"]
    assert f"create configmap {study} --from-file={given['study'].name}" in made
    (variable,) = trainer["env"]
    secret = variable["valueFrom"]["secretKeyRef"]
    assert variable["name"] == "ADAPS_SECRET"
    assert f"create secret generic {secret['name']} --from-file={secret['key']}=" in made
    for file in ("results.yaml", "trainjob.yaml"):
        assert f"kubectl apply -f {file}" in made
    (image,) = blocks("kubernetes", "dockerfile")
    assert "pip install" in image
    assert "ENTRYPOINT" not in image  # the job's command is the whole of it
