"""AutoAda without a key function: which rows a batch reads is predicted from the model's own forward."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import autoada
from adabench.backends.interface import ServerOptions, WorkerContext
from adabench.backends.strategies._server_session import OnServer, ServerSession
from adabench.usecases.interface import UseCase


class AutoAdaAutomatic(OnServer):
    name: ClassVar[str] = "autoada-automatic"

    def open(
        self, usecase: UseCase, cluster: WorkerContext, options: ServerOptions
    ) -> AutoAdaAutomaticSession:
        return AutoAdaAutomaticSession(usecase, cluster, options)


class AutoAdaAutomaticSession(ServerSession):
    def __init__(self, usecase: UseCase, cluster: WorkerContext, options: ServerOptions) -> None:
        super().__init__(usecase, cluster, options)
        self._of: Iterable[Any] | None = None
        self._loader: autoada.AdaDataLoader

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        if self._of is not loader:
            batches = self.drawn(loader)
            self._of = loader
            self._loader = autoada.AdaDataLoader(batches, self.options.lookahead, model=self.model)
        return iter(self._loader)


BACKEND = AutoAdaAutomatic
