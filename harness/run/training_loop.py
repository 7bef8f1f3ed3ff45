"""What runs inside a run: every rank of a process group trains its workers and writes what it measured."""

from __future__ import annotations

import math
import os
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from adabench.backends.interface import (
    Backend,
    Choosing,
    Cluster,
    OwnLoop,
    Session,
    TableCounting,
    Traceable,
    Unavailable,
)
from adabench.backends.policies.interface import Policy
from adabench.harness.machine.namespaces import address
from adabench.harness.plugins.registry import load_backend, load_usecase
from adabench.harness.run.interleaving import TurnTaker
from adabench.harness.run.profile import Profile
from adabench.harness.run.progress_log import ProgressLog
from adabench.harness.run.spec import (
    RankError,
    RankResult,
    RankState,
    RunSpec,
    error_file,
    result_file,
    state_file,
)
from adabench.harness.run.tracing import begin_trace
from adabench.harness.study.data_partition import partitioned
from adabench.results.record import Choice
from adabench.results.store import write_atomically
from adabench.usecases.interface import UseCase

__all__ = ["RankTraining", "train_rank"]


class RankTraining:
    """One rank's part of a run.

    Parameters
    ----------
    spec : RunSpec
    rank : int
        This process's number among the run's node processes.
    """

    def __init__(self, spec: RunSpec, rank: int) -> None:
        self.spec = spec
        self.rank = rank
        self.phase = "setup"
        self.folder = Path(spec.folder)
        self.profile = None if spec.profile is None else Profile(Path(spec.profile), rank)
        self._shared: _Shared = _Shared()
        self._failed: list[BaseException] = []

    def run(self) -> RankResult:
        """Train, evaluate, tear down; collective over the ranks of the run.

        Raises
        ------
        Exception
            The first one of any worker of this rank.
        """
        self._enter("setup")
        backend = load_backend(self.spec.backend)()
        kind = load_usecase(self.spec.usecase)
        data = Path(self.spec.data) if self.spec.data is not None else None
        usecase: UseCase = kind(msgspec.convert(self.spec.params, kind.Params), data, self.spec.seed)
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
        failed = threading.Event()

        def guarded(worker: TrainingLoop) -> None:
            try:
                worker.run()
            except BaseException as error:
                self._failed.append(error)
            finally:
                ended.release()
                if self._failed:
                    failed.set()

        ended = threading.Semaphore(0)
        threads = [threading.Thread(target=guarded, args=(worker,), daemon=True) for worker in workers]
        for thread in threads:
            thread.start()
        for _ in threads:
            # After a failure of one worker the others hang in a collective, so nobody waits for them.
            ended.acquire()
            if failed.is_set():
                raise self._failed[0]

    def _result(self, workers: list[TrainingLoop], usecase: UseCase) -> RankResult:
        first = workers[0]
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return RankResult(
            rank=self.rank,
            counters=first.counters,
            tables=first.tables,
            choices=first.choices,
            cpu_seconds=sum(usage.ru_utime + usage.ru_stime for usage in used),
            peak_rss_mib=used[0].ru_maxrss / (1024**2 if sys.platform == "darwin" else 1024),
            context_switches=sum(usage.ru_nvcsw + usage.ru_nivcsw for usage in used),
            samples=sum(worker.samples for worker in workers),
            setup_seconds=first.setup_seconds,
            train_seconds=sum(first.epoch_seconds),
            train_cpu_seconds=first.train_cpu_seconds,
            eval_seconds=first.eval_seconds,
            paused_seconds=first.turn.paused_seconds,
            epoch_seconds=first.epoch_seconds,
            data=usecase.fingerprint,
            metrics=first.metrics,
            history=first.history,
            best_epoch=first.best_epoch,
            trace=first.trace,
            budget=None if self.profile is None else self.profile.budget.result(self.rank),
        )

    def _enter(self, phase: str, epoch: int = 0) -> None:
        self.phase = phase
        state = RankState(pid=os.getpid(), phase=phase, epoch=epoch)
        write_atomically(state_file(self.folder, self.rank), msgspec.json.encode(state))


class TrainingLoop:
    """One worker: the loop that trains every pair of backend and use case."""

    def __init__(self, trial: RankTraining, backend: Backend, usecase: UseCase, worker: int) -> None:
        self.trial, self.backend, self.usecase = trial, backend, usecase
        spec = trial.spec
        self.cluster = Cluster(
            rank=trial.rank,
            world_size=spec.nodes,
            worker=worker,
            workers=spec.workers,
            seed=spec.seed,
            network="loopback" if spec.namespaces else spec.network,
            host=address(trial.rank) if spec.namespaces else None,
            share=trial._shared,
            policy=None if spec.policy is None else Policy.parse(spec.policy),
        )
        # Here and not in `run`, which threads call: msgspec learns what a class is made of when it first
        # meets it, and a second thread that meets it meanwhile dies of what is not learned yet (0.22).
        self.options = msgspec.convert(spec.options, backend.Options)
        self.turn = TurnTaker(spec.turns, spec.turn_steps)
        self.epoch_seconds: list[float] = []
        self.setup_seconds = self.eval_seconds = self.train_cpu_seconds = 0.0
        self.samples = 0
        self.history: list[dict[str, float]] = []
        self.metrics: dict[str, float] = {}
        self.best_epoch: int | None = None
        self.counters: dict[str, float] = {}
        self.tables: dict[str, dict[str, float]] = {}
        self.choices: list[Choice] = []
        self.trace: list[dict[str, Any]] = []
        watched = spec.watched and worker == 0
        self.sampler = ProgressLog(trial.folder, trial.rank) if watched else None

    def run(self) -> None:
        spec, usecase, cluster = self.trial.spec, self.usecase, self.cluster
        loaders = usecase.loaders(cluster.index, cluster.world_size * cluster.workers)
        session = self.backend.open(usecase, cluster, self.options)
        session.synchronize()
        if spec.trace:
            first = 0 if spec.place is None else spec.place.ranks[0]
            leads = (cluster.rank, cluster.worker) == (first, 0)
            begin_trace(session, usecase, cluster, self.trial.folder, leads)
        self.setup_seconds = time.monotonic() - spec.launched_at
        profile = None
        if self.trial.profile is not None:
            if isinstance(session, OwnLoop):
                raise Unavailable(f"backend {spec.backend!r} has a loop of its own: its steps cannot be seen")
            profile = self.trial.profile.of_worker(session, usecase, loaders, leads=cluster.worker == 0)
        for epoch in range(1, usecase.params.epochs + 1):
            self.turn.wait()
            self._enter("train", epoch)
            before, tables_before = session.counters(), _tables_of(session)
            session.synchronize()  # nobody's first step is counted by nodes that have not looked yet
            start, cpu = self._now(), time.process_time()
            if isinstance(session, OwnLoop):
                self.samples += session.train_epoch(loaders.train)
                session.synchronize()
            elif profile is None:
                for batch in session.batches(loaders.train):
                    # A turn ends here, with a batch at hand: by now every strategy has handed the last step's
                    # gradients to its server. Before the batch is asked for, some have not, and would leave
                    # that work to their next turn.
                    self.turn.step()
                    if self.sampler is None:
                        session.step(usecase.loss(session.model, batch))
                    else:
                        self._step_watched(session, usecase.loss(session.model, batch), epoch, before)
                    self.samples += usecase.samples(batch)
                self.turn.at_end()
                session.synchronize()
                self.turn.synchronized()
            else:
                self.samples += profile.train()
            self.epoch_seconds.append(self._now() - start)
            self.train_cpu_seconds += time.process_time() - cpu
            self._count(self.counters, before, session.counters())
            for table, counted in _tables_of(session).items():
                self._count(self.tables.setdefault(table, {}), tables_before[table], counted)
            session.synchronize()  # nor is the evaluation
            if spec.trace and epoch == 1 and cluster.worker == 0 and isinstance(session, Traceable):
                events = session.traced().to_dict("records")
                self.trace = [{str(name): value for name, value in event.items()} for event in events]
            self._enter("eval", epoch)
            start = time.monotonic()
            if cluster.index == 0:
                valid = usecase.evaluate(session.model, loaders.valid)
                self._keep(epoch, valid, usecase.evaluate(session.model, loaders.test))
            # The others wait here until the evaluation is over.
            session.synchronize()
            self.eval_seconds += time.monotonic() - start
            if self.sampler is not None:
                found = self.history[-1] if cluster.index == 0 else {}
                quality = {name: value for name, value in found.items() if name != "epoch"}
                self.sampler.take(epoch, self.counters, quality=quality)
        self.turn.close()
        if isinstance(session, Choosing):
            self.choices = [Choice(rank=cluster.rank, **asdict(one)) for one in session.chosen()]
        if profile is not None:
            profile.draw_flames()
        self._enter("teardown")
        session.close()

    def _step_watched(self, session: Session, loss: Tensor, epoch: int, before: dict[str, float]) -> None:
        assert self.sampler is not None
        session.step(loss)
        if self.sampler.due():
            counters = dict(self.counters)
            self._count(counters, before, session.counters())
            self.sampler.take(epoch, counters, loss)

    def _now(self) -> float:
        """Seconds on a clock that stands while it is other runs' turn."""
        return time.monotonic() - self.turn.paused_seconds

    def _count(self, total: dict[str, float], before: dict[str, float], after: dict[str, float]) -> None:
        """Counters, like epoch seconds, are those of training: evaluation pulls its rows without any
        intent.
        """
        for name, value in after.items():
            if not math.isfinite(value):
                raise ArithmeticError(f"counter {name} of backend {self.trial.spec.backend!r} is {value}")
            if name.endswith(("_max", "_mean")):
                total[name] = value
            else:
                total[name] = total.get(name, 0.0) + value - before.get(name, 0.0)

    def _keep(self, epoch: int, valid: dict[str, float], test: dict[str, float]) -> None:
        """Remember an epoch's quality; the run's metrics are those of the best epoch by validation."""
        usecase = self.usecase
        for split, values in (("validation", valid), ("test", test)):
            for name, value in values.items():
                if not math.isfinite(value):
                    raise ArithmeticError(f"{split} {name} is {value} after epoch {epoch}: training diverged")
        self.history.append({"epoch": epoch, **test, **{f"valid_{name}": one for name, one in valid.items()}})
        sign = 1 if usecase.maximize else -1
        best = max(self.history, key=lambda entry: sign * entry[f"valid_{usecase.metric}"])
        self.best_epoch = int(best["epoch"])
        self.metrics = {name: best[name] for name in test}

    def _enter(self, phase: str, epoch: int = 0) -> None:
        if self.cluster.worker == 0:
            self.trial._enter(phase, epoch)


def _tables_of(session: Session) -> dict[str, dict[str, float]]:
    return session.table_counters() if isinstance(session, TableCounting) else {}


class _Shared:
    """Gives all worker threads of a process the object that the first of them makes."""

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
    trial = RankTraining(spec, rank)
    try:
        result = trial.run()
    except Exception as error:
        message = " ".join(str(error).split())
        failure = RankError(
            rank=rank,
            phase=trial.phase,
            kind=type(error).__name__,
            message=message,
            at=time.monotonic(),
            unavailable=isinstance(error, Unavailable),
        )
        write_atomically(error_file(trial.folder, rank), msgspec.json.encode(failure))
        # One write, so that the lines of several ranks do not mix in the log.
        sys.stderr.write(f"[adabench] rank {rank} failed in phase {trial.phase}\n{traceback.format_exc()}")
        sys.stderr.flush()
        sys.stdout.flush()
        # Not sys.exit: threads that wait for the other workers would keep the process alive.
        os._exit(1)
    write_atomically(result_file(trial.folder, rank), msgspec.json.encode(result))
    return 0
