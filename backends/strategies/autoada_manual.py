"""AutoAda with hand-written key functions: model and loader are wrapped, and the loop is plain PyTorch."""

from collections.abc import Iterable, Iterator
from typing import Any

import autoada
from adabench.backends.strategies._server_session import OnServer, ServerSession


class AutoAdaManualSession(ServerSession):
    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        batches = autoada.AdaDataLoader(loader, self.options.lookahead, keys=self.keys, model=self.model)
        return iter(self.drawn(batches))


class AutoAdaManual(OnServer):
    name = "autoada-manual"
    session = AutoAdaManualSession


BACKEND = AutoAdaManual
