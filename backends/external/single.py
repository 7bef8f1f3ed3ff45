"""Plain PyTorch in one process, without a parameter server: the reference for every other backend."""

from adabench.backends.external._shared import PeerBackend, PlainSession
from adabench.backends.interface import Options, WorkerContext
from adabench.usecases.interface import UseCase


class Single(PeerBackend):
    """Plain PyTorch in one process, with the use case's own optimizer."""

    name = "single"

    def open(self, usecase: UseCase, context: WorkerContext, options: Options) -> PlainSession:
        model = usecase.model()
        return PlainSession(model, usecase.optimizer(model))


BACKEND = Single
