"""Tests whether a backend keeps its protocol's promises, by training with it."""

from collections.abc import Iterator

import msgspec

from adabench.backends.interface import Backend, Options
from adabench.harness.checks.findings import Finding
from adabench.harness.launch.fork_server import ForkServer
from adabench.harness.launch.launcher import Outcome
from adabench.harness.launch.local import launch_unrecorded
from adabench.harness.plugins.registry import load_backend, load_usecase, modules, unavailable
from adabench.harness.run.spec import RunSpec
from adabench.usecases.interface import Params

# The training takes seconds, but is long enough for its quality to be better than at random.
USECASE = "ctr"
PARAMS = {"rows": 16384, "epochs": 2}
BATCH = 128
AUC_TOLERANCE = 0.02
SECONDS = 300.0


def check_backend(name: str) -> Iterator[Finding]:
    """Yield findings: declarations first, then runs with one and with two node processes.

    A backend trains every batch it is given and reaches the quality of plain PyTorch; one with a lookahead
    signals intent when it is distributed; and no process or file is left when it is closed.
    """
    backend = load_backend(name)
    yield _options(backend)
    obstacle = unavailable(name)
    if obstacle is not None:
        yield Finding("can work here", False, obstacle)
        return
    with ForkServer(modules("usecase", [USECASE])) as server:
        yield from _trained(server, name, backend)


def _options(backend: type[Backend]) -> Finding:
    promise = "its Options derive from adabench.backends.interface.Options and all have defaults"
    if not (isinstance(backend.Options, type) and issubclass(backend.Options, Options)):
        return Finding(promise, False, f"they are {backend.Options!r}")
    required = [field.name for field in msgspec.structs.fields(backend.Options) if field.required]
    return Finding(promise, not required, f"no default: {', '.join(required)}" if required else "")


def _trained(server: ForkServer, name: str, backend: type[Backend]) -> Iterator[Finding]:
    reference = _train(server, "single", {}, 1, 1)
    if reference.status != "ok":
        yield Finding("plain PyTorch trains the reference", False, str(reference.reason))
        return
    shapes = [(1, 1), (2, 1), (2, 2)] if backend.distributed else [(1, 1)]
    for nodes, workers in shapes:
        where = f"{nodes} node{'s' * (nodes > 1)} x {workers} worker{'s' * (workers > 1)}"
        outcome = _train(server, name, {}, nodes, workers)
        if outcome.status == "skipped" and nodes * workers > 1:
            yield Finding(f"reports why it cannot train on {where}", True, outcome.reason or "")
            continue
        yield Finding(f"trains on {where}", outcome.status == "ok", outcome.reason or "")
        if outcome.status != "ok":
            continue
        yield _quality(where, outcome, reference)
        yield _samples(where, outcome, nodes * workers)
        yield Finding(f"cleans up on {where}", not outcome.left, ", ".join(outcome.left))
        if nodes > 1 and "lookahead" in {field.name for field in msgspec.structs.fields(backend.Options)}:
            yield _intents(where, outcome, nodes)


def _quality(where: str, outcome: Outcome, reference: Outcome) -> Finding:
    ours, plain = outcome.results[0].metrics["auc"], reference.results[0].metrics["auc"]
    return Finding(
        f"reaches the quality of plain PyTorch on {where}",
        abs(ours - plain) <= AUC_TOLERANCE,
        f"AUC {ours:.4f}, plain PyTorch {plain:.4f}, tolerance {AUC_TOLERANCE}",
    )


def _samples(where: str, outcome: Outcome, workers: int) -> Finding:
    """Check the number of samples: a backend that drops batches is faster and hardly worse in quality."""
    params = _params(workers)
    kind = load_usecase(USECASE)
    usecase = kind(params, None, 1)
    shares = [usecase.loaders(worker, workers).train for worker in range(workers)]
    given = params.epochs * sum(usecase.samples(batch) for share in shares for batch in share)
    trained = sum(result.samples for result in outcome.results)
    return Finding(
        f"trains as many samples as its workers are given on {where}",
        trained == given,
        "" if trained == given else f"{trained} samples, where its workers were given {given}",
    )


def _intents(where: str, outcome: Outcome, nodes: int) -> Finding:
    signalled = [result.counters.get("intents", 0.0) for result in outcome.results]
    return Finding(
        f"signals intent on every node of {where}",
        len(signalled) == nodes and all(count > 0 for count in signalled),
        f"{', '.join(f'{count:.0f}' for count in signalled)} keys",
    )


def _train(server: ForkServer, backend: str, options: dict[str, object], nodes: int, workers: int) -> Outcome:
    spec = RunSpec(
        usecase=USECASE,
        params=msgspec.to_builtins(_params(nodes * workers)),
        backend=backend,
        options=options,
        nodes=nodes,
        workers=workers,
        network="loopback",
    )
    return launch_unrecorded(server, spec, SECONDS)


def _params(workers: int) -> Params:
    # For any number of nodes and workers, all workers together have equally many samples per step. Otherwise
    # the quality would differ even if the backend has no fault.
    return msgspec.convert({**PARAMS, "batch": BATCH // workers}, load_usecase(USECASE).Params)
