"""The use case kge: scores by their formulas, ranks, and that another library's evaluator agrees."""

import importlib
import math
from typing import Any

import numpy as np
import pytest
import torch

from adabench.backends.external._shared import is_installed
from adabench.usecases.interface import DataError
from adabench.usecases.kge import KgeParams, KgeUseCase
from adabench.usecases.kge.model import MODELS, ModelName, new_model
from adabench.usecases.kge.ranking import FilteredRanks, summary
from adabench.usecases.kge.task import EVALUATED_SHARE, TRAINED_PAIR
from tests.unit.plain_training import epochs_of

SMALL: dict[str, Any] = {"triples": 4000, "batch": 64, "negatives": 32, "dim": 8}


def score(name: ModelName, head: torch.Tensor, link: torch.Tensor, tail: torch.Tensor) -> float:
    """The score of one triple by the published formula."""
    if name == "distmult":
        return float((head * link * tail).sum())
    if name == "transe":
        return -float((head + link - tail).abs().sum())
    one, other = (torch.complex(*row.chunk(2)) for row in (head, tail))
    if name == "rotate":
        return -float((one * torch.polar(torch.ones_like(link), link) - other).abs().sum())
    return float((one * torch.complex(*link.chunk(2)) * other.conj()).sum().real)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("at_once", [1, 1 << 20])
def test_scores_are_those_of_the_formulas(
    name: ModelName, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adabench.usecases.kge.model.PAIRS_AT_ONCE", at_once)
    model = new_model(name, 7, 3, 6, 0.5, torch.Generator().manual_seed(1))
    triples, candidates = torch.tensor([[0, 1, 2], [6, 0, 6], [3, 2, 4]]), torch.tensor([5, 0, 5, 6])
    scores = model(triples, candidates)
    rows, links = model.entities.weight.detach(), model.relations.weight.detach()
    for place, (head, link, tail) in enumerate(triples.tolist()):
        expected = score(name, rows[head], links[link], rows[tail])
        assert scores.own[place].item() == pytest.approx(expected, abs=1e-5)
        for number, candidate in enumerate(candidates.tolist()):
            as_tail = score(name, rows[head], links[link], rows[candidate])
            as_head = score(name, rows[candidate], links[link], rows[tail])
            assert scores.tails[place, number].item() == pytest.approx(as_tail, abs=1e-5)
            assert scores.heads[place, number].item() == pytest.approx(as_head, abs=1e-5)


@pytest.mark.parametrize("width", [5, 2])
def test_ranks_of_ties_and_of_filtered_entities(width: int) -> None:
    nan = torch.nan
    scores = torch.tensor([[3.0, 2, 2, 1, 5], [0, 0, 0, 0, 0], [1, 2, 3, 4, 5], [0, 1, nan, 2, 3]])
    right, filtered = torch.tensor([2, 1, 0, 2]), torch.tensor([[0, 0, 2], [4, 2, 4]])
    own = scores.gather(1, right[:, None])[:, 0]
    ranking = FilteredRanks(right, filtered)
    for block in scores.split(width, dim=1):
        ranking.add(block, own)
    *ranks, last = ranking.ranks().tolist()
    assert ranks == [2.5, 3.0, 4.0]
    assert math.isnan(last)


def test_summary_of_ranks() -> None:
    found = summary(torch.tensor([1.0, 2, 4, 20], dtype=torch.float64))
    assert found == pytest.approx({"mrr": 0.45, "hits@1": 0.25, "hits@3": 0.5, "hits@10": 0.75})


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_scores_everything_alike_gets_what_chance_gets(name: ModelName) -> None:
    usecase = KgeUseCase(KgeParams(**SMALL, model=name), None, 1)
    model: Any = usecase.model()
    torch.nn.init.zeros_(model.entities.weight)
    metrics = usecase.evaluate(model, usecase.loaders(0, 1).test)
    assert 0 < metrics["mrr"] < 4 / usecase._graph.sizes.entities
    assert metrics["hits@10"] == 0


def test_evaluation_is_a_loop_over_all_entities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adabench.usecases.kge.task.CANDIDATES_AT_ONCE", 61)
    monkeypatch.setattr("adabench.usecases.kge.task.EVALUATED_SHARE", math.inf)
    usecase = KgeUseCase(KgeParams(**SMALL), None, 1)
    model: Any = usecase.model()
    graph = usecase._graph
    known = {tuple(row) for split in graph[:3] for row in split.tolist()}
    rows, links = model.entities.weight.detach(), model.relations.weight.detach()
    reciprocal = []
    for head, link, tail in graph.valid[:40].tolist():
        for side in (2, 0):
            right, better, equal = score("complex", rows[head], links[link], rows[tail]), 0, 1
            for entity in range(graph.sizes.entities):
                corrupted = (head, link, entity) if side == 2 else (entity, link, tail)
                if corrupted not in known:
                    other = score("complex", rows[corrupted[0]], links[link], rows[corrupted[2]])
                    better += other > right
            reciprocal.append(1 / (better + (equal + 1) / 2))
    monkeypatch.setattr(usecase, "_valid", usecase._valid[:40])
    found = usecase.evaluate(model, usecase.loaders(0, 1).valid)
    assert found["mrr"] == pytest.approx(np.mean(reciprocal), abs=1e-6)


def triples_of(loader: Any) -> list[tuple[int, ...]]:
    return [tuple(triple) for batch in loader for triple in batch.triples.tolist()]


@pytest.mark.parametrize(("negatives", "sampled"), [(4, True), (32, True), (1000, False)])
def test_an_evaluation_after_an_epoch_costs_at_most_a_share_of_the_training(
    negatives: int, sampled: bool
) -> None:
    params = KgeParams(**{**SMALL, "negatives": negatives})
    one, other = (KgeUseCase(params, None, seed) for seed in (1, 2))
    graph, loaders, facts = one._graph, one.loaders(0, 1), one.data_facts
    evaluated = 0
    for split, loader, again in zip(("valid", "test"), loaders[1:], other.loaders(0, 1)[1:], strict=True):
        whole, found = [tuple(triple) for triple in getattr(graph, split).tolist()], triples_of(loader)
        assert found == triples_of(again)
        assert (found != whole) == sampled
        assert set(found) <= set(whole)
        assert facts[f"{split}_triples"] == len(whole)
        assert facts[f"{split}_triples_after_each_epoch"] == len(found)
        evaluated += len(found)
    trained = TRAINED_PAIR * negatives * len(graph.train)
    assert evaluated * graph.sizes.entities <= EVALUATED_SHARE * trained
    tested = one.whole_test()
    assert (tested is not None) == sampled
    if tested is not None:
        assert triples_of(tested) == [tuple(triple) for triple in graph.test.tolist()]


@pytest.mark.parametrize("name", MODELS)
def test_a_copy_has_all_rows_and_does_not_change(name: ModelName, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adabench.usecases.kge.task.CANDIDATES_AT_ONCE", 7)
    usecase = KgeUseCase(KgeParams(**SMALL, model=name), None, 1)
    model: Any = usecase.model()
    copied = usecase.copy_of(model)
    assert model.training
    before = {key: value.clone() for key, value in model.state_dict().items()}
    torch.nn.init.zeros_(model.entities.weight)
    assert all(torch.equal(value, before[key]) for key, value in copied.state_dict().items())
    assert usecase.copy_of(model).entities.weight.count_nonzero() == 0


def test_what_is_drawn_and_right_is_no_negative() -> None:
    usecase = KgeUseCase(KgeParams(**SMALL, regularization=0.0), None, 1)
    model = usecase.model()
    batch = next(iter(usecase.loaders(0, 1).train))
    one = batch._replace(triples=batch.triples[:1], negatives=batch.triples[0, [0, 2]])
    with torch.no_grad():
        scores: Any = model(one.triples, one.negatives)
    own, as_tail, as_head = scores.own[0], scores.tails[0, 0], scores.heads[0, 1]
    expected = sum(torch.logaddexp(own, other) - own for other in (as_tail, as_head))
    assert usecase.loss(model, one).item() == pytest.approx(float(expected), abs=1e-5)


def test_shares_are_disjoint() -> None:
    usecase = KgeUseCase(KgeParams(**SMALL), None, 1)
    shares = [torch.cat([batch.triples for batch in usecase.loaders(rank, 2).train]) for rank in (0, 1)]
    assert len(shares[0]) == len(shares[1])
    assert len(torch.cat(shares).unique(dim=0)) == 2 * len(shares[0])
    with pytest.raises(DataError, match="workers with batches of 64 need at least"):
        usecase.loaders(0, 1000)


@pytest.mark.parametrize("name", MODELS)
def test_plain_pytorch_learns(name: ModelName) -> None:
    epochs = 4 if name == "transe" else 2  # by when it is 2.5 times as good, and the others 9 times at least
    usecase = KgeUseCase(KgeParams(model=name, triples=20_000, epochs=epochs, batch=128), None, 1)
    before = usecase.evaluate(usecase.model(), usecase.loaders(0, 1).test)["mrr"]
    *_, (model, loaders, _) = epochs_of(usecase)
    assert usecase.evaluate(model, loaders.test)["mrr"] > 2 * before


@pytest.mark.parametrize("name", MODELS)
def test_pykeen_agrees(name: ModelName, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyKEEN's evaluator ranks the same scores, filtered by all splits, in the same way."""
    if not is_installed("pykeen"):
        pytest.skip("pykeen is not installed: say 'make models'")
    monkeypatch.setenv("PYSTOW_HOME", str(tmp_path))
    monkeypatch.setattr("adabench.usecases.kge.task.EVALUATED_SHARE", math.inf)
    evaluation = importlib.import_module("pykeen.evaluation")
    usecase = KgeUseCase(KgeParams(**SMALL, model=name), None, 1)
    model: Any = usecase.model()
    with torch.no_grad():
        model.entities.weight[:40] = model.entities.weight[0]  # ties
    graph = usecase._graph
    triples, *known = (
        torch.from_numpy(split.astype(np.int64)) for split in (graph.test, graph.train, graph.valid)
    )
    everyone = torch.arange(graph.sizes.entities)
    evaluator = evaluation.RankBasedEvaluator(filtered=True)
    with torch.no_grad():
        scores = model(triples, everyone)
    everything = torch.cat([*known, triples])
    masks = importlib.import_module("pykeen.evaluation.evaluator")
    for target, found, column in (("tail", scores.tails, 2), ("head", scores.heads, 0)):
        positive, _ = masks.create_sparse_positive_filter_(
            hrt_batch=triples, all_pos_triples=everything, filter_col=column
        )
        own = found.gather(1, triples[:, column, None])
        filtered = masks.filter_scores_(scores=found.clone(), filter_batch=positive)
        filtered.scatter_(1, triples[:, column, None], own)
        evaluator.process_scores_(
            hrt_batch=triples, target=target, scores=filtered, true_scores=own, dense_positive_mask=None
        )
    theirs = evaluator.finalize()
    ours = usecase.evaluate(model, usecase.loaders(0, 1).test)
    assert ours["mrr"] == pytest.approx(
        theirs.get_metric("both.realistic.inverse_harmonic_mean_rank"), abs=1e-6
    )
    for most in (1, 3, 10):
        assert ours[f"hits@{most}"] == pytest.approx(
            theirs.get_metric(f"both.realistic.hits_at_{most}"), abs=1e-6
        )
