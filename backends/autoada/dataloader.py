"""A data loader that fetches batches before they are used and announces the rows that they will read."""

from __future__ import annotations

import functools
import itertools
import logging
import weakref
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler

from autoada.access.binding import Prepare
from autoada.intent import HandWrittenKeys, Keys, KeySource, PredictedKeys
from autoada.lookahead import Lookahead
from autoada.model import AdaModel, current_models
from autoada.position import Pass, Position
from autoada.random_state import random_state
from autoada.rows import Expected
from autoada.shards import check_shardable, sharded, tell_same_data

_log = logging.getLogger("autoada")


class AdaDataLoader:
    """Wraps any iterable of batches; iterate it in the place of the one that it wraps.

    While the model is in training mode, `lookahead` batches are fetched before their turn, the rows that
    each will read are found and announced to the parameter server for the clock of its use, and the clock
    advances when the loop comes for the next batch. In evaluation mode the batches pass through.

    Where a step takes batches of several loaders, they are used at the same clock. Rows are predicted only
    for what comes from one loader, so wrap them together: ``for a, b in AdaDataLoader(zip(first, second))``.

    Parameters
    ----------
    loader : iterable
        Any: a `torch.utils.data.DataLoader`, a PyG loader, a generator. Its attributes, such as ``dataset``
        and ``sampler``, are this one's too, and so is its length.
    lookahead : int or "auto"
        How many batches to fetch ahead. ``"auto"`` follows how late rows come, by the rule of
        `autoada.lookahead.Lookahead`.
    keys : callable or mapping, optional
        Hand-written intent: ``keys(batch)`` -> ``{table: ids}``, or a mapping of tables to functions
        ``f(batch)`` -> ids. A table is a parameter's or module's qualified name, or the module. Without it
        rows are predicted.
    prepare : callable, optional
        ``prepare(batch)`` -> ``(args, kwargs)`` of the model's call. Only for prediction, and only where a
        message asks for it: the way from batch to call is normally recorded.
    model : AdaModel or sequence of them, optional
        The models that read; by default all that this thread wrapped and did not close, or with `keys` or
        `prepare` the last of them.
    shard : bool
        Give each worker of each node its own part of the data. Otherwise every node trains on all that
        `loader` gives it, and a warning says so if two begin with equal batches. Takes a
        `torch.utils.data.DataLoader` that goes through its data set in order or shuffled; with one worker it
        stays as it is. Of several, each takes every n-th item of a common order, and the last ones may get
        an item that another has, too, so that all make as many steps. The order of a shuffled one follows
        from the seed that worker 0 has, that of ``loader.generator`` or ``torch.manual_seed``, and from the
        number of the pass. All workers make and iterate such loaders in the same order.
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
        self.loader = loader
        self.lookahead = Lookahead(lookahead)
        self._keys = keys
        self._prepare = prepare
        given = [] if model is None else [model] if isinstance(model, AdaModel) else list(model)
        self._given = [weakref.ref(each) for each in given]
        self._sources: weakref.WeakKeyDictionary[AdaModel, KeySource] = weakref.WeakKeyDictionary()
        self._running: weakref.ref[Generator[Any, None, None]] | None = None
        self._summarised = False
        self._to_shard = shard
        self._shards = shard
        self.position = Position()
        """Where the training is; `AdaModel.checkpoint` keeps it."""

    def __len__(self) -> int:
        return len(self._own_loader())  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __iter__(self) -> Iterator[Any]:
        models = self._find_models()
        self._own_loader()
        if self._running is not None and (running := self._running()) is not None:
            running.close()
        training = [model for model in models if model.training]
        run = self._run(training) if training else self._pass_through(models)
        self._running = weakref.ref(run)
        return run

    @property
    def epoch(self) -> int:
        """Passes in training mode that have ended, those before a restore included."""
        return self.position.epoch

    def explain(self, batch: Any) -> str:
        """For each table that `batch` will read: tier of prediction, rows, and where in the source."""
        source = self._key_source(self._find_model())
        if isinstance(source, PredictedKeys):
            return source.explain(batch)
        expected = source.expected(batch)
        assert expected is not None
        return "\n".join(f"{name}: {len(rows.keys)} rows by hand" for name, rows in expected.rows.items())

    def _pass_through(self, models: list[AdaModel]) -> Generator[Any, None, None]:
        """In evaluation mode: until the loop has put a model into training mode, if it does."""
        start = random_state()
        batches = iter(self.loader)
        for used, batch in enumerate(batches, 1):
            yield batch
            training = [model for model in models if model.training]
            if training and not self.position.resumes:
                yield from self._run(training, self.position.join(batches, start, used))
                return

    def _run(self, models: list[AdaModel], batches: Pass | None = None) -> Generator[Any, None, None]:
        if self._shards and isinstance(sampler := getattr(self.loader, "sampler", None), DistributedSampler):
            sampler.set_epoch(self.position.epoch)
        batches = batches or self.position.begin(self.loader)
        parts = itertools.tee(batches, len(models)) if len(models) > 1 else [batches]
        followers = [
            _Ahead(model, self._key_source(model), part, self.lookahead)
            for model, part in zip(models, parts, strict=True)
        ]
        turns: list[_Turn] = []
        try:
            while True:
                for ahead in followers:
                    ahead.model.turn(ahead, None)
                items = [item for ahead in followers if (item := ahead.take()) is not None]
                if not items:
                    break
                for ahead, item in zip(followers, items, strict=True):
                    if ahead.model.begins_data() and not self._shards:
                        tell_same_data(ahead.model, item.batch)
                turns = [_Turn(ahead, item) for ahead, item in zip(followers, items, strict=True)]
                batches.hand_out()
                with self.lookahead.watching(models[0].node, functools.partial(_was_announced, items[0])):
                    yield items[0].batch
        finally:
            batches.end()
            for ahead in followers:
                ahead.source.abandon()
            for turn in turns:
                turn.abandon()
            for ahead in followers:
                ahead.withdraw()
        if not self._summarised:
            self._summarised = True
            _log.info(self.summary())

    def summary(self) -> str:
        """One line: tables, how their rows are found, and the share that was local."""
        model = self._find_model()
        how = self._key_source(model).describe()
        stats = model.node.stats()
        local = stats["pulled_local"] + stats["pulled_replica"]
        share = local / max(1.0, local + stats["pulled_remote"])
        tables, batches = len(model.tables), self.lookahead.batches
        return f"{tables} tables, {how}, {share:.1%} of rows were local, lookahead {batches}"

    def _own_loader(self) -> Iterable[Any]:
        """The loader, with this worker's part of the data if that is wanted."""
        if self._to_shard:
            model = self._find_model()
            self._to_shard = False
            self.loader = sharded(cast("DataLoader[Any]", self.loader), model, model.count_shared())
        return self.loader

    def _find_model(self) -> AdaModel:
        return self._find_models()[0]

    def _find_models(self) -> list[AdaModel]:
        """Those whose rows are announced, the most important one first."""
        if not self._given:
            models = current_models()
            return models[:1] if self._keys is not None or self._prepare is not None else models
        given = [model for model in (reference() for reference in self._given) if model is not None]
        if not given:
            raise RuntimeError("the AdaModel that this loader was made for does not exist any more")
        return given

    def _key_source(self, model: AdaModel) -> KeySource:
        if model not in self._sources:
            self._sources[model] = (
                PredictedKeys(model, self._prepare)
                if self._keys is None
                else HandWrittenKeys(model, self._keys)
            )
        return self._sources[model]


@dataclass
class _Item:
    batch: Any
    clock: int
    expected: Expected | None = None
    announced: Tensor | None = None


def _was_announced(item: _Item) -> bool:
    return item.announced is not None


class _Turn:
    """The use of one batch: until the loop comes for another one, of this loader or of another."""

    def __init__(self, ahead: _Ahead, item: _Item) -> None:
        self._model = model = ahead.model
        self._source = source = ahead.source
        self._ahead = ahead
        self._item = item
        self._over = False
        model.turn(ahead, self._end)
        model.expect(item.expected)
        source.hand_out(item.batch, functools.partial(ahead.find_now, item))

    def abandon(self) -> None:
        """The loop has ended, maybe in the middle of it."""
        if self._over:
            return
        self._over = True
        self._model.expect(None)
        self._model.end_loop()

    def _end(self, loader: object) -> None:
        if self._over:
            return
        self._over = True
        calls = self._model.calls
        again = self._source.returned(self._item.expected)
        self._model.expect(None)
        self._model.end_clock(calls, loader)
        if again:
            self._ahead.ask_again()


class _Ahead:
    """The batches that are fetched but not used yet, each announced for the clock of its use."""

    def __init__(
        self, model: AdaModel, source: KeySource, batches: Iterator[Any], lookahead: Lookahead
    ) -> None:
        self.model = model
        self._worker = model.worker
        self.source = source
        self._batches = batches
        self._lookahead = lookahead
        self._queue: deque[_Item] = deque()
        self._announced_until = 0

    def take(self) -> _Item | None:
        """The next batch, after the queue behind it was filled; None at the end."""
        now = int(self._worker.current_clock)
        self._realign(now)
        starting = not self._queue
        if starting and not self._fetch(now):
            return None
        item = self._queue.popleft()
        while len(self._queue) < self._lookahead.batches and self._fetch(now + 1 + len(self._queue)):
            pass
        if starting:
            self._wait(item)
        return item

    def find_now(self, item: _Item) -> None:
        """How rows are found has changed while `item` is in use."""
        self._find(item)
        self.ask_again()
        self._wait(item)
        self.model.expect(item.expected)

    def ask_again(self) -> None:
        """Find the rows of all batches in the queue again, in order, and announce them."""
        for item in self._queue:
            self._find(item)

    def withdraw(self) -> None:
        """Let the clock pass whatever was announced and will not happen."""
        while not self.model.closed and self._worker.current_clock < self._announced_until:
            self._worker.advance_clock()

    def _realign(self, now: int) -> None:
        """Another loop on the same worker may have moved the clock."""
        if self._queue and self._queue[0].clock != now:
            for i, item in enumerate(self._queue):
                item.clock = now + i
                self._announce(item)

    def _fetch(self, clock: int) -> bool:
        """Fetch the batch that will be used at `clock`; False if there is none."""
        try:
            batch = next(self._batches)
        except StopIteration:
            return False
        item = _Item(batch, clock)
        self._queue.append(item)
        self._find(item)
        return True

    def _wait(self, item: _Item) -> None:
        """Nobody could announce this batch earlier; the rows of the later ones come while it is in use."""
        if item.announced is not None:
            self._worker.wait_intent(item.announced)

    def _find(self, item: _Item) -> None:
        item.expected = self.source.expected(item.batch)
        self._announce(item)

    def _announce(self, item: _Item) -> None:
        expected = item.expected
        if expected is None or self._lookahead.batches == 0:
            return
        keys = [rows.keys for table, rows in expected.rows.items() if table not in expected.whole]
        keys += [self.model.tables[table].all_keys for table in sorted(expected.whole)]
        if not keys:
            return
        item.announced = keys[0] if len(keys) == 1 else torch.cat(keys)
        self._worker.intent(item.announced, item.clock)
        self._announced_until = max(self._announced_until, item.clock + 1)
