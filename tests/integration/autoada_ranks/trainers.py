"""Trains the examples of trainers with plain PyTorch, or on the parameter server, and reports the weights.

``python -m tests.integration.autoada_ranks.trainers FOLDER NAMES`` trains each example plainly with one batch
size and with twice this size, and wrapped. A rank of torchrun trains each example with synchronous steps. The
report and the warnings of the wrapper are files in the folder.
"""

import functools
import importlib
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import adaps
import autoada
from adaps.policy import Rule, Synchronization

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "trainers"
SAMPLES, EPOCHS, BATCH = 512, 2, 32
WRAPPERS = {name: getattr(autoada, name) for name in ("AdaModel", "AdaDataLoader", "unwrap")}


def train(name: str, batch_size: int, wrappers: dict[str, Any]) -> dict[str, Any]:
    """Train an example; the stand-ins for parts of `autoada` are in `wrappers`."""
    for part, value in wrappers.items():
        setattr(autoada, part, value)
    model = importlib.import_module(name).main(samples=SAMPLES, epochs=EPOCHS, batch_size=batch_size)
    state = {name: value.flatten().tolist() for name, value in model.state_dict().items()}
    if not isinstance(model, WRAPPERS["AdaModel"]):
        return {"state": state}
    workers = model.num_workers
    model.worker.barrier()
    model.close()
    return {"state": state, "workers": workers}


def plainly(value: Any, *_: object, **__: object) -> Any:
    return value


def alone(name: str) -> dict[str, Any]:
    """Train an example in one process."""
    plain = dict.fromkeys(WRAPPERS, plainly)
    return {
        "plain": train(name, BATCH, plain),
        "plain, double batches": train(name, 2 * BATCH, plain),
        "wrapped": train(name, BATCH, WRAPPERS),
    }


def together(name: str) -> dict[str, Any]:
    """Train an example as one of several nodes."""
    policy = adaps.Policy("together", [Rule("*")], synchronization=Synchronization(every=1))
    model = functools.partial(WRAPPERS["AdaModel"], policy=policy)
    report = train(name, BATCH, {**WRAPPERS, "AdaModel": model})
    return {**report, "refused": error_of(REFUSED[name])} if name in REFUSED else report


def prepare() -> None:
    """Have Accelerate add DistributedDataParallel to a wrapped model."""
    net = torch.nn.Linear(2, 1)
    model = WRAPPERS["AdaModel"](net, torch.optim.SGD(net.parameters()))
    try:
        importlib.import_module("accelerate").Accelerator(cpu=True).prepare(model)
    finally:
        model.close()


def use_ddp() -> None:
    """Have Lightning add DistributedDataParallel before the model is wrapped."""
    trainer = importlib.import_module("lightning").Trainer(
        accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_checkpointing=False
    )
    trainer.fit(importlib.import_module("lightning_module").LitClicks(SAMPLES, BATCH))


REFUSED = {"accelerate_loop": prepare, "lightning_module": use_ddp}
"""Examples, and uses of their trainers that add DistributedDataParallel."""


def error_of(use: Callable[[], None]) -> str:
    try:
        use()
    except TypeError as error:
        return str(error)
    return ""


def main() -> None:
    folder, *names = sys.argv[1:]
    place = os.environ.get("RANK", "alone")
    os.chdir(folder)  # trainers write files
    sys.path.insert(0, str(EXAMPLES))
    torch.set_num_threads(1)
    logging.basicConfig(filename=f"{place}.log", level=logging.WARNING)
    run = together if "RANK" in os.environ else alone
    Path(f"{place}.json").write_text(json.dumps({name: run(name) for name in names}))


if __name__ == "__main__":
    main()
