"""AutoAda with key functions by hand: model and loader are wrapped, the loop is plain PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import autoada
from adabench.backends.interface import ServerOptions, WorkerContext
from adabench.backends.strategies._server_session import OnServer, ServerSession
from adabench.usecases.interface import UseCase


class AutoAdaManual(OnServer):
    name: ClassVar[str] = "autoada-manual"

    def open(self, usecase: UseCase, cluster: WorkerContext, options: ServerOptions) -> AutoAdaManualSession:
        return AutoAdaManualSession(usecase, cluster, options)


class AutoAdaManualSession(ServerSession):
    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        batches = autoada.AdaDataLoader(loader, self.options.lookahead, keys=self.keys, model=self.model)
        return iter(self.drawn(batches))


BACKEND = AutoAdaManual
