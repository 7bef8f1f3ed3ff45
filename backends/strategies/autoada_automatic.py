"""AutoAda without a key function: the rows of a batch are predicted from the model's own forward."""

from collections.abc import Iterable, Iterator
from typing import Any

import autoada
from adabench.backends.interface import ServerOptions, WorkerContext
from adabench.backends.strategies._server_session import OnServer, ServerSession
from adabench.usecases.interface import UseCase


class AutoAdaAutomaticSession(ServerSession):
    def __init__(self, usecase: UseCase, context: WorkerContext, options: ServerOptions) -> None:
        super().__init__(usecase, context, options)
        self._of: Iterable[Any] | None = None
        self._loader: autoada.AdaDataLoader

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        if self._of is not loader:
            batches = self.drawn(loader)
            self._of = loader
            self._loader = autoada.AdaDataLoader(batches, self.options.lookahead, model=self.model)
        return iter(self._loader)


class AutoAdaAutomatic(OnServer):
    name = "autoada-automatic"
    session = AutoAdaAutomaticSession


BACKEND = AutoAdaAutomatic
