"""Wrong parameters of every use case are named, with their values."""

from typing import Any

import pytest

from adabench.harness.plugins.registry import load_usecase

SMALLEST = "it must be 1 or more"


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("ctr", {"epochs": 0}, f"epochs is 0: {SMALLEST}"),
        ("ctr", {"batch": -1}, f"batch is -1: {SMALLEST}"),
        ("ctr", {"vocabulary": 0}, f"vocabulary is 0: {SMALLEST}"),
        ("ctr", {"hidden": ()}, "hidden is empty"),
        ("ctr", {"hidden": (8, 0)}, rf"hidden\[1\] is 0: {SMALLEST}"),
        ("ctr", {"lr": 0.0}, "lr is 0.0: it must be a positive number"),
        ("ctr", {"lr": float("nan")}, "lr is nan: it must be a positive number"),
        ("ctr", {"optimizer": "adam"}, "optimizer is 'adam': it must be one of adagrad, sgd"),
        ("gcn", {"batch": 0}, f"batch is 0: {SMALLEST}"),
        ("gcn", {"hidden": -4}, f"hidden is -4: {SMALLEST}"),
        ("gcn", {"vertices": 0}, f"vertices is 0: {SMALLEST}"),
        ("gcn", {"fanout": 0}, "fanout is 0: it must be 1 or more, or -1 for all neighbours"),
        ("gcn", {"lr": 0.0}, "lr is 0.0: it must be a positive number"),
        ("gcn", {"lr": float("nan")}, "lr is nan"),
        ("gcn", {"partition": "louvain"}, "partition is 'louvain': it must be one of metis, random, contig"),
        ("gcn", {"sampler": "dgl"}, "sampler is 'dgl': it must be one of native, pyg"),
        ("gcn", {"layers": 3}, "layers"),
        ("kge", {"model": "rescal"}, "model is 'rescal': it must be one of"),
        ("kge", {"dim": 7}, "dim is 7: it must be even for complex"),
        ("kge", {"negatives": 0}, f"negatives is 0: {SMALLEST}"),
        ("mf", {"dim": 0}, f"dim is 0: {SMALLEST}"),
        ("mf", {"lr": -1}, "lr is -1: it must be a positive number"),
        ("mf", {"regularization": -0.5}, "regularization is -0.5: it must be 0 or a positive number"),
        ("mf", {"optimizer": "adam"}, "optimizer is 'adam': it must be one of adagrad, sgd"),
        ("mf", {"fold": 5}, "fold is 5: it must be from 0 to 4"),
        ("word2vec", {"window": 0}, f"window is 0: {SMALLEST}"),
        ("word2vec", {"min_count": 0}, f"min_count is 0: {SMALLEST}"),
        ("word2vec", {"sample": -1e-3}, "sample is -0.001: it must be 0 or a positive number"),
        *(
            (name, given, message)
            for name in ("ctr", "mf")
            for given, message in (
                ({"keys": "none"}, "keys is 'none': it must be one of dense, hash"),
                ({"keys": "hash", "capacity": 0}, "capacity is 0"),
                ({"keys": "hash", "placement": "greedy"}, "placement is 'greedy', which needs row numbers"),
            )
        ),
    ],
)
def test_wrong_parameters_are_named(name: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        load_usecase(name).Params(**given)
