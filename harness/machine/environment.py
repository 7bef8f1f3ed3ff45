"""The machine and the software of a session, and a probe of the machine's noise."""

import functools
import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil

from adabench.results.record import Git

_PACKAGES = ("adabench", "torch", "torch-geometric", "torchrec", "numpy", "scipy", "msgspec", "pymetis")
_CPU = Path("/sys/devices/system/cpu/cpu0")

# These change measured times. Load and free memory vary from run to run and are no part of the identity.
_IDENTIFYING = (
    "cpu",
    "cores",
    "governor",
    "memory_gib",
    "kernel",
    "compiler",
    "python",
    "packages",
    "torch",
    "allocator",
)


def capture() -> dict[str, Any]:
    """Processor, memory, kernel, compiler, package versions, settings of torch and the allocator, load."""
    import torch

    return {
        "cpu": cpu_name(_read(Path("/proc/cpuinfo")) or ""),
        "cores": {
            "logical": psutil.cpu_count(),
            "physical": psutil.cpu_count(logical=False),
            "usable": _usable(),
        },
        "governor": _read(_CPU / "cpufreq/scaling_governor"),
        "max_mhz": _max_mhz(),
        "caches": _caches(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "memory_available_gib": round(psutil.virtual_memory().available / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "compiler": _compiler(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "torch": {
            "version": str(torch.__version__),
            "parallel": torch.__config__.parallel_info().splitlines()[:4],
            "build": _without_places(torch.__config__.show()),
        },
        "allocator": _allocator(),
        "load": list(os.getloadavg()),
    }


def environment_id(environment: dict[str, Any]) -> str:
    """Hash of the identifying parts of an environment; runs with equal hashes may be pooled."""
    identifying = {name: environment.get(name) for name in _IDENTIFYING}
    return hashlib.sha256(msgspec.json.encode(identifying, order="deterministic")).hexdigest()[:12]


def short_differences(one: dict[str, Any], other: dict[str, Any]) -> str:
    """Names of the identifying parts in which two environments differ."""
    return ", ".join(name for name in _IDENTIFYING if one.get(name) != other.get(name))


def machine_name(environment: dict[str, Any]) -> str:
    """Description of the machine, in one line without its name."""
    cores = environment["cores"]["usable"]
    return f"{environment['cpu']}, {cores} cores, {environment['memory_gib']:g} GiB, {environment['kernel']}"


def processor_name(environment: dict[str, Any]) -> str:
    """Properties that decide relative speeds: processor model, last cache and cores."""
    caches, cores = environment["caches"], environment["cores"]["usable"]
    last = f", {max(caches.items())[1]} of {max(caches)[:2]} cache" if caches else ""
    return f"{environment['cpu']}{last}, {cores} cores"


def cpu_name(cpuinfo: str) -> str:
    """Name of the processor with its family and model; virtual machines give several models one name.

    Parameters
    ----------
    cpuinfo : str
        Contents of ``/proc/cpuinfo``.
    """
    first, _, _ = cpuinfo.partition("\n\n")
    lines = (line.partition(":") for line in first.splitlines())
    fields = {key.strip(): " ".join(value.split()) for key, _, value in lines}
    if "model name" not in fields:
        return platform.processor() or platform.machine()
    name, family, model = (fields.get(key) for key in ("model name", "cpu family", "model"))
    return f"{name} (family {family}, model {model})" if family and model else f"{name}"


def git_state() -> Git | None:
    """Commit of the clone with this code, and whether tracked files differ; None outside a clone."""
    folder = Path(__file__).resolve().parent
    commit = _output(["git", "-C", str(folder), "rev-parse", "HEAD"])
    if commit is None:
        return None
    status = _output(["git", "-C", str(folder), "status", "--porcelain", "--untracked-files=no"])
    return Git(commit=commit, dirty=bool(status))


def probe() -> tuple[float, float]:
    """The load of the last minute, and the seconds that a fixed computation on one core takes now.

    The computation hashes 8 MiB five times and takes the median: tens of milliseconds, little enough to be no
    burden, long enough to show a busy neighbour or a processor that clocks down.
    """
    block = bytes(8 << 20)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        hashlib.sha256(block).digest()
        times.append(time.perf_counter() - start)
    return os.getloadavg()[0], sorted(times)[2]


def _allocator() -> dict[str, Any]:
    """Settings by which a process keeps the memory that a step frees, or returns it: see mallopt(3)."""
    given = sorted(name for name in os.environ if name.startswith("MALLOC_") or name == "GLIBC_TUNABLES")
    preloaded = os.environ.get("LD_PRELOAD", "").replace(":", " ").split()
    return {
        "variables": {name: os.environ[name] for name in given},
        "preloaded": [Path(file).name for file in preloaded],
    }


def _usable() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _max_mhz() -> float | None:
    text = _read(_CPU / "cpufreq/cpuinfo_max_freq")
    return float(text) / 1000 if text else None


def _caches() -> dict[str, str]:
    caches = {}
    for index in sorted((_CPU / "cache").glob("index*")):
        level, kind, size = (_read(index / name) for name in ("level", "type", "size"))
        if level and kind and size:
            caches[f"L{level} {kind.lower()}"] = size
    return caches


@functools.cache
def _compiler() -> str | None:
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and shutil.which(name):
            text = _output([name, "--version"])
            return text.splitlines()[0] if text else None
    return None


def _without_places(build: str) -> list[str]:
    """Torch's build settings without the path of the compiler."""
    lines = [line.strip(" -") for line in build.splitlines()[1:] if line.strip()]
    return [re.sub(r"CXX_COMPILER=[^,]*, ", "", line) for line in lines]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _read(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
