"""Inside a run: every rank trains its workers and writes its measurements to a file."""

from __future__ import annotations

import math
import os
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import msgspec
import torch
from torch import nn

from adabench.backends.interface import (
    Backend,
    OwnLoop,
    TableCounting,
    Traceable,
    TrainingSession,
    Unavailable,
    WorkerContext,
)
from adabench.harness.machine.namespaces import address
from adabench.harness.plugins.registry import load_backend
from adabench.harness.run.interleaving import TurnTaker
from adabench.harness.run.profile import Profile, WorkerProfile
from adabench.harness.run.progress_log import ProgressLog
from adabench.harness.run.spec import (
    RankError,
    RankResult,
    RankState,
    RunSpec,
    WorkerResult,
    exchange_file,
)
from adabench.harness.run.tracing import begin_trace
from adabench.harness.study.cell import usecase_of
from adabench.harness.study.data_partition import partitioned
from adabench.results.store import write_atomically
from adabench.usecases.interface import Described, EvaluatesSamples, UseCase
from adaps.node import CURRENT_COUNTERS
from adaps.policy import Policy


class RankTraining:
    """One rank's part of a run."""

    def __init__(self, spec: RunSpec, rank: int) -> None:
        self.spec = spec
        self.rank = rank
        self.phase = "setup"
        self.folder = Path(spec.folder)
        self.profile = None if spec.profile is None else Profile(Path(spec.profile), rank)
        self._shared: _Shared = _Shared()

    def run(self) -> RankResult:
        """Train, evaluate, tear down; collective over the ranks of the run.

        Raises
        ------
        Exception
            If a worker of this rank fails. The first exception of any worker is raised.
        """
        self.enter("setup")
        backend = load_backend(self.spec.backend)()
        usecase = usecase_of(self.spec, self.spec.seed)
        if self.spec.policy is not None:
            usecase = partitioned(usecase, Policy.parse(self.spec.policy), self.spec.workers)
        workers = [TrainingLoop(self, backend, usecase, worker) for worker in range(self.spec.workers)]
        if len(workers) == 1:
            workers[0].run()
        else:
            self._run_threads(workers)
        self._shared.close()
        return self._result(workers, usecase)

    def _run_threads(self, workers: list[TrainingLoop]) -> None:
        ended: SimpleQueue[BaseException | None] = SimpleQueue()

        def run(worker: TrainingLoop) -> None:
            try:
                worker.run()
            except BaseException as error:
                ended.put(error)
            else:
                ended.put(None)

        for worker in workers:
            threading.Thread(target=run, args=(worker,), daemon=True).start()
        for _ in workers:
            # After a failure of one worker the others hang in a collective, so the rank ends without them.
            if (error := ended.get()) is not None:
                raise error

    def _result(self, workers: list[TrainingLoop], usecase: UseCase) -> RankResult:
        first = workers[0]
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return RankResult(
            **{**msgspec.structs.asdict(first.result), "samples": sum(one.result.samples for one in workers)},
            rank=self.rank,
            cpu_seconds=sum(usage.ru_utime + usage.ru_stime for usage in used),
            peak_rss_mib=used[0].ru_maxrss / (1024**2 if sys.platform == "darwin" else 1024),
            context_switches=sum(usage.ru_nvcsw + usage.ru_nivcsw for usage in used),
            paused_seconds=first.turn.paused_seconds,
            data=usecase.fingerprint,
            data_facts=usecase.data_facts if isinstance(usecase, Described) else {},
            budget=None if self.profile is None else self.profile.budget.result(self.rank),
        )

    def enter(self, phase: str, epoch: int = 0) -> None:
        """Begin a phase, which other processes read from a file."""
        self.phase = phase
        state = RankState(pid=os.getpid(), phase=phase, epoch=epoch)
        write_atomically(exchange_file(self.folder, "state", self.rank), msgspec.json.encode(state))


class TrainingLoop:
    """One worker's training: the same loop for every pair of backend and use case."""

    def __init__(self, rank: RankTraining, backend: Backend, usecase: UseCase, worker: int) -> None:
        self.rank, self.backend, self.usecase = rank, backend, usecase
        spec = rank.spec
        self.cluster = WorkerContext(
            rank=rank.rank,
            world_size=spec.nodes,
            worker=worker,
            workers=spec.workers,
            seed=spec.seed,
            network="loopback" if spec.namespaces else spec.network,
            host=address(rank.rank) if spec.namespaces else None,
            per_process=rank._shared,
            policy=None if spec.policy is None else Policy.parse(spec.policy),
        )
        # The result is made here and not in `run`, which threads call. On first use, msgspec 0.22 inspects a
        # class, and a second thread that uses the class during the inspection crashes.
        self.options = msgspec.convert(spec.options, backend.Options)
        self.turn = TurnTaker(spec.turn_socket, spec.turn_steps)
        self.result = WorkerResult()
        self.progress = ProgressLog(rank.folder, rank.rank) if spec.watched and worker == 0 else None
        self.profile: WorkerProfile | None = None
        self.best: nn.Module | None = None
        """Copy of the model after the best epoch, if only samples of the splits are evaluated."""

    def run(self) -> None:
        """Open a session, train and evaluate each epoch, and close the session; collective."""
        self._open()
        for epoch in range(1, self.usecase.params.epochs + 1):
            self._train(epoch)
            self._evaluate(epoch)
        self._close()

    def _open(self) -> None:
        spec, usecase, cluster = self.rank.spec, self.usecase, self.cluster
        self.loaders = usecase.loaders(cluster.index, cluster.world_size * cluster.workers)
        self.session = session = self.backend.open(usecase, cluster, self.options)
        session.synchronize()
        if spec.trace:
            first = 0 if spec.place is None else spec.place.ranks[0]
            leads = (cluster.rank, cluster.worker) == (first, 0)
            begin_trace(session, usecase, cluster, self.rank.folder, leads)
        self.result.setup_seconds = time.monotonic() - spec.launched_at
        if self.rank.profile is not None:
            if isinstance(session, OwnLoop):
                raise Unavailable(
                    f"backend {spec.backend!r} has its own training loop: its steps cannot be measured"
                )
            leads = cluster.worker == 0
            self.profile = self.rank.profile.of_worker(session, usecase, self.loaders, leads=leads)

    def _train(self, epoch: int) -> None:
        session, result = self.session, self.result
        self.turn.wait()
        self._enter("train", epoch)
        before, tables_before = session.counters(), _tables_of(session)
        session.synchronize()  # Every node has read its counters before the first step of any other node.
        start, cpu = self._now(), time.process_time()
        if isinstance(session, OwnLoop):
            result.samples += session.train_epoch(self.loaders.train)
            session.synchronize()
        elif self.profile is not None:
            result.samples += self.profile.train()
        else:
            self._train_batches(epoch, before)
        result.epoch_seconds.append(self._now() - start)
        result.train_cpu_seconds += time.process_time() - cpu
        self._count(result.counters, before, session.counters())
        for table, counted in _tables_of(session).items():
            self._count(result.tables.setdefault(table, {}), tables_before[table], counted)
        session.synchronize()  # No node counts the evaluation either.
        if (
            self.rank.spec.trace
            and epoch == 1
            and self.cluster.worker == 0
            and isinstance(session, Traceable)
        ):
            events = session.traced().to_dict("records")
            result.trace = [{str(name): value for name, value in event.items()} for event in events]

    def _train_batches(self, epoch: int, before: dict[str, float]) -> None:
        session, usecase, log = self.session, self.usecase, self.progress
        for batch in session.batches(self.loaders.train):
            # A turn ends here, after the batch was fetched, when every strategy has passed the last step's
            # gradients to its server. Before the fetch, some strategies still have that work to do.
            self.turn.step()
            loss = usecase.loss(session.model, batch)
            session.step(loss)
            if log is not None and log.due():
                counters = dict(self.result.counters)
                self._count(counters, before, session.counters())
                log.write(epoch, counters, loss)
            del loss  # its graph
            self.result.samples += usecase.samples(batch)
        self.turn.at_end()
        session.synchronize()
        self.turn.synchronized()

    def _evaluate(self, epoch: int) -> None:
        self._enter("eval", epoch)
        start, quality = time.monotonic(), dict[str, float]()
        if self.cluster.index == 0:
            usecase, model = self.usecase, self.session.model
            if isinstance(usecase, EvaluatesSamples):
                model = usecase.copy_of(model)
            valid = usecase.evaluate(model, self.loaders.valid)
            quality = self._keep(epoch, valid, usecase.evaluate(model, self.loaders.test))
            if isinstance(usecase, EvaluatesSamples):
                self.best = model if self.result.best_epoch == epoch else self.best
                if epoch == usecase.params.epochs:
                    self._test_best(usecase)
        self.session.synchronize()  # The other workers wait until the evaluation is over.
        self.result.eval_seconds += time.monotonic() - start
        if self.progress is not None:
            self.progress.write(epoch, self.result.counters, quality=quality)

    def _test_best(self, usecase: EvaluatesSamples) -> None:
        """Evaluate the best epoch's model on the whole test split, if only a sample was evaluated so far."""
        if (whole := usecase.whole_test()) is not None:
            assert self.best is not None
            self.result.metrics = self.usecase.evaluate(self.best, whole)
            _require_finite("test", self.result.metrics, self.result.best_epoch)

    def _close(self) -> None:
        self.turn.close()
        if self.profile is not None:
            self.profile.draw_flames()
        self._enter("teardown")
        self.session.close()

    def _now(self) -> float:
        """Return the seconds on a clock that is paused during other runs' turns."""
        return time.monotonic() - self.turn.paused_seconds

    def _count(self, total: dict[str, float], before: dict[str, float], after: dict[str, float]) -> None:
        """Store the counters, which like epoch seconds cover only training.

        Evaluation pulls its rows without any intent. Current values are those at the end of the epoch.
        """
        for name, value in after.items():
            if not math.isfinite(value):
                raise ArithmeticError(f"counter {name} of backend {self.rank.spec.backend!r} is {value}")
            if name in CURRENT_COUNTERS or name.endswith(("_max", "_mean")):
                total[name] = value
            else:
                total[name] = total.get(name, 0.0) + value - before.get(name, 0.0)

    def _keep(self, epoch: int, valid: dict[str, float], test: dict[str, float]) -> dict[str, float]:
        """Add an epoch to the history; returns its quality. The best epoch gives the run's metrics."""
        usecase, result = self.usecase, self.result
        for split, values in (("validation", valid), ("test", test)):
            _require_finite(split, values, epoch)
        quality = {**test, **{f"valid_{name}": one for name, one in valid.items()}}
        result.history.append({"epoch": epoch, **quality})
        sign = 1 if usecase.maximize else -1
        best = max(result.history, key=lambda entry: sign * entry[f"valid_{usecase.metric}"])
        result.best_epoch = int(best["epoch"])
        result.metrics = {name: best[name] for name in test}
        return quality

    def _enter(self, phase: str, epoch: int = 0) -> None:
        if self.cluster.worker == 0:
            self.rank.enter(phase, epoch)


def _require_finite(split: str, metrics: dict[str, float], epoch: int | None) -> None:
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise ArithmeticError(f"{split} {name} is {value} after epoch {epoch}: training diverged")


def _tables_of(session: TrainingSession) -> dict[str, dict[str, float]]:
    return session.table_counters() if isinstance(session, TableCounting) else {}


class _Shared:
    """Gives all worker threads of a process the object that the first thread makes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: list[Any] = []

    def __call__(self, make: Callable[[], Any]) -> Any:
        with self._lock:
            if not self._made:
                self._made.append(make())
            return self._made[0]

    def close(self) -> None:
        for made in self._made:
            made.close()


def train_rank(spec_file: Path) -> int:
    """Run this process's part of the run that a file describes; returns the exit code."""
    spec = msgspec.json.decode(spec_file.read_bytes(), type=RunSpec)
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    training = RankTraining(spec, rank)
    try:
        result = training.run()
    except Exception as error:
        message = " ".join(str(error).split())
        failure = RankError(
            rank=rank,
            phase=training.phase,
            kind=type(error).__name__,
            message=message,
            at=time.monotonic(),
            unavailable=isinstance(error, Unavailable),
        )
        write_atomically(exchange_file(training.folder, "error", rank), msgspec.json.encode(failure))
        # One write, so that the lines of several ranks do not mix in the log.
        sys.stderr.write(f"[adabench] rank {rank} failed in phase {training.phase}\n{traceback.format_exc()}")
        sys.stderr.flush()
        sys.stdout.flush()
        # Not sys.exit: threads that wait for the other workers would keep the process alive.
        os._exit(1)
    write_atomically(exchange_file(training.folder, "result", rank), msgspec.json.encode(result))
    return 0
