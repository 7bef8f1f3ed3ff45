"""PyKEEN's training loop with negative sampling, in one process; only for ComplEx and DistMult of `kge`.

Width, scale of the initial weights, batch, learning rate, Adagrad and epochs are taken from the use case. The
loss is InfoNCE, a cross-entropy like the use case's loss, without regularization. PyKEEN's defaults for these
models use larger initial weights, and a few epochs would hardly improve them.
"""

from __future__ import annotations

import functools
import os
import tempfile
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from adabench.backends.external._shared import PeerBackend, PeerSession, require_usecase
from adabench.backends.interface import Options as BackendOptions
from adabench.backends.interface import Unavailable, WorkerContext
from adabench.usecases.interface import UseCase


class PyKeenOptions(BackendOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `pykeen`.

    Attributes
    ----------
    corruptions : int
        Number of corrupted triples for each triple. Triples do not share them.
    """

    corruptions: int = 16


class PyKeen(PeerBackend):
    name = "pykeen"
    Options = PyKeenOptions
    packages = ("pykeen",)

    def open(self, usecase: UseCase, context: WorkerContext, options: PyKeenOptions) -> PyKeenSession:
        require_usecase(self.name, usecase, "kge")
        return PyKeenSession(usecase, context, options)


class PyKeenSession(PeerSession):
    def __init__(self, usecase: Any, context: WorkerContext, options: PyKeenOptions) -> None:
        params = usecase.params
        self._home = tempfile.TemporaryDirectory()  # PyKEEN creates folders there when it is imported
        os.environ.setdefault("PYSTOW_HOME", self._home.name)
        from pykeen import models
        from pykeen.training import SLCWATrainingLoop
        from pykeen.triples import CoreTriplesFactory

        kinds = {"complex": (models.ComplEx, params.dim // 2), "distmult": (models.DistMult, params.dim)}
        if params.model not in kinds:
            raise Unavailable(f"pykeen trains {' and '.join(kinds)} here: use model=complex")
        kind, width = kinds[params.model]
        self.model: nn.Module = usecase.model()
        triples = torch.cat([batch.triples for batch in usecase.loaders(0, 1).train])
        self._batch, self._epochs, self._samples = params.batch, 0, len(triples)
        self._factory = CoreTriplesFactory(
            triples,
            num_entities=len(self.model.get_parameter("entities.weight")),
            num_relations=len(self.model.get_parameter("relations.weight")),
        )
        initial = functools.partial(nn.init.normal_, std=params.scale)
        self._theirs = kind(
            triples_factory=self._factory,
            embedding_dim=width,
            random_seed=context.seed,
            loss="infonce",
            regularizer_kwargs={"weight": 0.0, "p": 2.0},
            entity_initializer=initial,
            relation_initializer=initial,
        )
        self._loop = SLCWATrainingLoop(
            model=self._theirs,
            triples_factory=self._factory,
            optimizer=torch.optim.Adagrad(self._theirs.get_grad_params(), lr=params.lr),
            negative_sampler="basic",
            negative_sampler_kwargs={"num_negs_per_pos": options.corruptions},
        )

    def train_epoch(self, loader: Iterable[Any]) -> int:
        self._epochs += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyKEEN warns about its own calls
            self._loop.train(
                self._factory,
                num_epochs=self._epochs,
                batch_size=self._batch,
                use_tqdm=False,
                pin_memory=False,
            )
        return self._samples

    def synchronize(self) -> None:
        """Copy the learned rows into the model that the use case evaluates."""
        kinds = ("entity", "relation")
        with torch.no_grad():
            rows = [getattr(self._theirs, f"{kind}_representations")[0]() for kind in kinds]
        names = ("entities.weight", "relations.weight")
        self.model.load_state_dict({name: _real(each) for name, each in zip(names, rows, strict=True)})

    def close(self) -> None:
        self._home.cleanup()


def _real(rows: Tensor) -> Tensor:
    """Return rows with real parts before imaginary parts, if there are any."""
    return torch.cat([rows.real, rows.imag], dim=1) if rows.is_complex() else rows


BACKEND = PyKeen
