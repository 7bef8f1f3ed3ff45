"""A data loader that fetches batches ahead and signals intent for the rows that they will read."""

from __future__ import annotations

import inspect
import itertools
import logging
import threading
import weakref
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, Literal, cast

from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from autoada.loader.batch_stream import BatchStream, LoaderSource, answers
from autoada.loader.data_sharding import check_shardable, item_sampler, shard_loader
from autoada.loader.held_batch import HeldBatch
from autoada.loader.intent_source import HandWrittenKeys, IntentSource, Keys, PredictedKeys
from autoada.loader.lookahead import Lookahead
from autoada.loader.prefetch_queue import Models, PrefetchQueue
from autoada.model.wrapper import AdaModel, open_models, training_state_of
from autoada.prediction.argument_recording import Prepare
from autoada.prediction.random_generators import random_state
from autoada.training.loader_state import Epoch, LoaderState

_NO_INTENT = "no intent (not needed on one node)"
_log = logging.getLogger("autoada")


class AdaDataLoader:
    """Wraps any iterable of batches; iterate it in place of the wrapped iterable.

    While the model is in training mode, `lookahead` batches are fetched ahead. For each batch, the loader
    predicts the rows that it will read and signals intent for them to the parameter server, for the clock of
    their use. The clock advances when the loop requests the next batch. In evaluation mode the batches pass
    through.

    In any loop, the batches and random numbers are the same as with the unwrapped `loader`. A loader that
    draws from the global generators for each batch is not fetched ahead, and one warning reports this.
    RuntimeError is raised if the random numbers of a batch that was fetched ahead were drawn again since.

    If a step takes batches of several loaders, they are used at the same clock. Rows are predicted only for
    the batches of one loader, so wrap several loaders together: ``for a, b in AdaDataLoader(zip(first,
    second))``.

    Parameters
    ----------
    loader : iterable
        Iterable of batches: a `torch.utils.data.DataLoader`, a PyG loader, a generator. The wrapper has its
        attributes, such as ``dataset`` and ``sampler``, and its length.
    lookahead : int or "auto"
        Number of batches to fetch ahead. ``"auto"`` adapts to how late rows arrive, by the rule of
        `autoada.loader.lookahead.Lookahead`. It predicts no rows on a single node, where every row is local,
        unless a table gives rows to other ids or has limited memory. A number predicts rows on a single node
        as well.
    keys : callable or mapping, optional
        Hand-written intent: a function ``keys(batch)`` that returns ``{table: ids}``, or a mapping of tables
        to functions ``f(batch)`` that return ids. A table is a parameter's or module's qualified name, or the
        module. Without `keys`, rows are predicted.
    prepare : callable, optional
        Function for predictions: ``prepare(batch)`` returns ``(args, kwargs)`` of the model's call. It is
        only needed if a message asks for it, because the way from batch to call is normally recorded.
    model : AdaModel or sequence of them, optional
        Models that read the batches. By default, these are the models that the loop calls with its batches.
        With `keys` or `prepare`, the default is the last wrapped model that no loop of another thread calls.
    shard : bool
        Whether each worker of each node gets a separate part of the data. Otherwise every node trains on all
        batches of its `loader`, and a warning is logged if two nodes begin with equal batches. Sharding
        requires a `torch.utils.data.DataLoader` that iterates over its data set in order or shuffled, also by
        a `BatchSampler`. With one worker, the loader does not change. With n workers, each worker takes every
        n-th item of a common order. The last workers may repeat an item of another worker, so that all
        workers make the same number of steps. A shuffled order depends on the number of the pass and on the
        seed at worker 0, which is set in the sampler's generator or by ``torch.manual_seed``. All workers
        create and iterate such loaders in the same order.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        lookahead: int | Literal["auto"] = "auto",
        keys: Keys | None = None,
        *,
        prepare: Prepare | None = None,
        model: AdaModel | Sequence[AdaModel] | None = None,
        shard: bool = False,
    ) -> None:
        if shard:
            check_shardable(loader)
        if lookahead != "auto" and (not isinstance(lookahead, int) or lookahead < 0):
            raise ValueError(
                f"lookahead is {lookahead!r}: it must be 'auto' or a number of batches, 0 or more"
            )
        if keys is not None and not callable(keys) and not hasattr(keys, "items"):
            raise TypeError(
                f"keys is a {type(keys).__name__}: it must be a function or a mapping of tables to functions"
            )
        if keys is not None and prepare is not None:
            raise ValueError("keys and prepare exclude each other: hand-written keys need no prediction")
        given = [] if model is None else [model] if isinstance(model, nn.Module) else list(model)
        for each in given:
            if not isinstance(each, AdaModel):
                raise TypeError(
                    f"model is a {type(each).__name__}: it must be an AdaModel, or a sequence of them. "
                    "Wrap it first: AdaModel(model, optimizer)"
                )
        self.loader = loader
        self.lookahead = Lookahead(lookahead)
        self._keys = keys
        self._prepare = prepare
        self._given: Models = weakref.WeakKeyDictionary(dict.fromkeys(given))
        self._called: Models = weakref.WeakKeyDictionary()
        self._is_given = bool(given)
        self._sources: weakref.WeakKeyDictionary[AdaModel, IntentSource | None] = weakref.WeakKeyDictionary()
        self._running: weakref.ref[Pass] | None = None
        self._source: LoaderSource | None = None
        self._summarised = False
        self._to_shard = shard
        self._sharded = shard
        self.position = LoaderState()
        """Position of the training in the data, which `AdaModel.checkpoint` stores."""
        for name in sorted(name for name in _OWN if hasattr(loader, name)):
            _log.warning(
                "loader.%s is AdaDataLoader's attribute, and %s also has one of this name: "
                "use loader.loader.%s",
                name,
                type(loader).__name__,
                name,
            )

    def __len__(self) -> int:
        return len(self._own_loader())  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        own = name.startswith("_") or name in _OWN or hasattr(type(self), name)
        own = own or "loader" not in self.__dict__  # as in a subclass before it calls this class's __init__
        super().__setattr__(name, value) if own else setattr(self.loader, name, value)

    def __iter__(self) -> Iterator[Any]:
        models = self._candidates()
        loader = self._own_loader()
        if self._source is None:
            self._source = LoaderSource(loader, models[0].node.workers == 1)
        if isinstance(loader, Iterator) and self._running is not None:
            running = self._running()
            if running is not None and not running.is_over:
                return running  # An iterator returns itself.
        training = [model for model in models if model.training]
        run = self._run(training, self._source) if training else self._pass_through(models, self._source)
        next(run)  # An iterator of a loader draws its seed when it is made.
        batches = Pass(run)
        self._running = weakref.ref(batches)
        return batches

    @property
    def epoch(self) -> int:
        """Number of passes in training mode that have ended, including passes before a restore."""
        return self.position.epoch

    def explain(self, batch: Any) -> str:
        """Describe each table that `batch` will read: tier of prediction, rows, and source line."""
        source = self._intent_source(self._find_model())
        if isinstance(source, PredictedKeys):
            return source.explain(batch)
        if source is None:
            return f"{_NO_INTENT}; AdaDataLoader(loader, lookahead=2) predicts rows there, too"
        expected = source.expected(batch)
        assert expected is not None
        return "\n".join(f"{name}: {len(rows.keys)} rows by hand" for name, rows in expected.rows.items())

    def _pass_through(self, models: list[AdaModel], source: LoaderSource) -> Generator[Any, None, None]:
        """Yield the batches of an epoch in evaluation mode, until the loop puts a model into training mode.

        The first value is not a batch.
        """
        start = random_state()
        batches = iter(source)
        yield
        for used, batch in enumerate(answers(batches), 1):
            yield batch
            training = [model for model in models if model.training]
            if training and not self.position.resumes:
                epoch = self.position.continue_in_training(batches, start, used)
                run = self._run(training, source, epoch)
                next(run)
                yield from run
                return

    def _run(
        self, models: list[AdaModel], source: LoaderSource, epoch: Epoch | None = None
    ) -> Generator[Any, None, None]:
        """Yield the batches of an epoch in training mode, after a first value that is not a batch."""
        if self._sharded and isinstance(sampler := item_sampler(self.loader), DistributedSampler):
            sampler.set_epoch(self.position.epoch)
        epoch = epoch or self.position.begin(source)
        begun = False
        try:
            yield
            begun = True
            if self.position.resumes:  # A checkpoint was restored in between.
                epoch = self.position.begin(source)
            yield from self._steps(models, BatchStream(epoch, source))
        finally:
            self.position.end(epoch, begun)
        if not self._summarised:
            self._summarised = True
            _log.info(self.summary())

    def _steps(self, models: list[AdaModel], stream: BatchStream) -> Generator[Any, None, None]:
        """Yield the batches of an epoch, each through a queue for each model."""
        parts = itertools.tee(stream, len(models)) if len(models) > 1 else [stream]
        queues: list[PrefetchQueue] = []
        watches = self.lookahead.adapts and models[0].node.world_size > 1  # On one node, all is local.
        try:
            queues += [self._queue_for(model, part) for model, part in zip(models, parts, strict=True)]
            for model, queue in zip(models, queues, strict=True):
                # The loop is expected to call these models.
                if self._by_hand or model in self._given or model in self._called:
                    queue.attach()
            first, *others = queues
            if not others and first.announces_nothing:
                yield from _in_turn(first, stream)
                return
            while True:
                item = first.next_batch()
                for queue in others:
                    queue.next_batch()
                if item is None:
                    break
                batch = stream.deliver(item.held)
                if isinstance(batch, HeldBatch):
                    yield batch
                    continue
                for queue in queues:
                    queue.mark_in_use(batch)
                if watches:
                    self.lookahead.begin_step(models[0].node)
                yield batch
                if watches:
                    self.lookahead.end_step(models[0].node, item.signalled is not None)
        finally:
            stream.close()
            for queue in queues:
                queue.close()

    def summary(self) -> str:
        """Return one line with the tables, how their rows are found, and the share of local rows."""
        model = self._find_model()
        source = self._intent_source(model)
        stats = model.node.stats()
        local = stats["pulled_local"] + stats["pulled_replica"]
        share = local / max(1.0, local + stats["pulled_remote"])
        found = _NO_INTENT if source is None else source.describe()
        ahead = "" if source is None else f", lookahead {self.lookahead.batches}"
        return f"{len(model.tables)} tables, {found}, {share:.1%} of rows local{ahead}"

    def _own_loader(self) -> Iterable[Any]:
        """Return the loader, with this worker's part of the data if it is to be sharded."""
        if self._to_shard:
            access = training_state_of(self._find_model()).access
            self._to_shard = False
            self.loader = shard_loader(cast("DataLoader[Any]", self.loader), access)
        return self.loader

    def _queue_for(self, model: AdaModel, batches: Iterator[HeldBatch]) -> PrefetchQueue:
        source = self._intent_source(model)
        assert self._source is not None
        lookahead = Lookahead(0) if source is None else self.lookahead
        may_run_ahead = self._source.may_run_ahead
        return PrefetchQueue(model, source, batches, may_run_ahead, lookahead, self._called, self._sharded)

    def _find_model(self) -> AdaModel:
        """Return the most important model that reads the batches."""
        return next(iter(self._called), self._candidates()[0])

    def _candidates(self) -> list[AdaModel]:
        """Return the models that may read the batches, the most important model first."""
        if self._is_given:
            given = list(self._given)
            if not given:
                raise RuntimeError("the AdaModel that this loader was made for does not exist any more")
            return given
        models = open_models()
        free = [model for model in models if training_state_of(model).is_free] or models
        # Among the models of several workers, a thread prefers those that it made.
        free.sort(key=lambda model: training_state_of(model).thread != threading.get_ident())
        return free[:1] if self._by_hand else free

    @property
    def _by_hand(self) -> bool:
        return self._keys is not None or self._prepare is not None

    def _intent_source(self, model: AdaModel) -> IntentSource | None:
        """Return the source of the rows that the model will read; None if no intent is needed."""
        if model not in self._sources:
            state = training_state_of(model)
            self._sources[model] = (
                HandWrittenKeys(state, self._keys)
                if self._keys is not None
                else None
                if self.lookahead.adapts and not model.node.uses_intent
                else PredictedKeys(state, self._prepare)
            )
        return self._sources[model]


class Pass(Iterator[Any]):
    """The batches of one pass.

    An error of the loader is raised in place of its batch, and the next request gets the next batch, as with
    a `DataLoader`. Any other error ends the pass, and later requests for batches are refused.
    """

    def __init__(self, batches: Generator[Any, None, None]) -> None:
        self._batches = batches
        self._failed = False

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            if self._failed:
                raise RuntimeError(
                    "an error has ended this pass over the loader: begin another pass"
                ) from None
            raise
        except BaseException:
            self._failed = True
            raise
        if not isinstance(batch, HeldBatch):
            return batch
        assert batch.end is not None
        error, batch.end = batch.end, None
        try:
            raise error
        finally:
            del error, self  # The error refers to this frame. It must not keep the pass open.

    @property
    def is_over(self) -> bool:
        """Whether there are no more batches."""
        return inspect.getgeneratorstate(self._batches) == inspect.GEN_CLOSED


_OWN = {"loader", "lookahead", "position"} | {name for name in vars(AdaDataLoader) if name[0] != "_"}
"""Public names of `AdaDataLoader`; all others are those of the loader."""


def _in_turn(queue: PrefetchQueue, stream: BatchStream) -> Generator[Any, None, None]:
    """Yield the batches of a loop that announces nothing and therefore fetches no batch ahead."""
    while True:
        queue.finish_previous()
        try:
            batch = stream.take()
        except StopIteration:
            return
        if not isinstance(batch, HeldBatch):
            queue.mark_in_use(batch)
        yield batch
