"""The use case word2vec: windows and losses by their definitions, and what another library learns."""

import math
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare, spearmanr

from adabench.usecases.common.batches import Draw
from adabench.usecases.common.negatives import Weighted
from adabench.usecases.word2vec import Word2VecParams, Word2VecUseCase
from adabench.usecases.word2vec.analogies import Analogies, accuracy
from adabench.usecases.word2vec.data import Sentences
from adabench.usecases.word2vec.model import SkipGram
from adabench.usecases.word2vec.pairs import Pairs, correlation
from adabench.usecases.word2vec.task import _kept
from adabench.usecases.word2vec.windows import Windows

SMALL: dict[str, Any] = {"words": 20_000, "batch": 16, "dim": 8}
TEXT = Sentences(np.arange(30, dtype=np.int32), np.array([0, 2, 15, 15, 16, 30]))


def windows(window: int, kept: torch.Tensor, negatives: int = 1) -> Windows:
    return Windows(TEXT, kept, window, negatives, Weighted(np.ones(30)))


def pairs_of(dataset: Windows, rows: list[int], seed: int) -> list[tuple[int, int]]:
    batch = dataset[Draw(torch.tensor(rows), seed)]
    return list(zip(batch.words.tolist(), batch.contexts[:, 0].tolist(), strict=True))


def test_windows_end_with_their_sentences() -> None:
    """Over many draws, a word at distance d is met in window - d + 1 of window widths."""
    window, draws = 4, 4000
    dataset, rows = windows(window, torch.ones(30)), [4, 1, 2, 3, 0]
    met = Counter(pair for seed in range(draws) for pair in pairs_of(dataset, rows, seed))
    bounds = TEXT.starts.tolist()
    for one in range(30):
        for other in range(30):
            same = any(start <= min(one, other) <= max(one, other) < end for start, end in pairwise(bounds))
            distance = abs(one - other)
            if one == other or not same or distance > window:
                assert met[one, other] == 0
            else:
                likely = (window - distance + 1) / window
                deviation = math.sqrt(draws * likely * (1 - likely))
                assert abs(met[one, other] - draws * likely) <= 5 * deviation


def test_windows_reach_over_what_is_left_out() -> None:
    kept = torch.ones(30)
    kept[16:29:2] = 0
    met = {pair for seed in range(50) for pair in pairs_of(windows(1, kept), [4], seed)}
    assert met == {(one, one + 2) for one in range(17, 29, 2)} | {(one + 2, one) for one in range(17, 29, 2)}


def test_a_step_without_pairs_trains_nothing() -> None:
    usecase = Word2VecUseCase(Word2VecParams(**SMALL), None, 1)
    batch = windows(2, torch.zeros(30), 3)[Draw(torch.tensor([1]), 1)]
    assert (batch.words.shape, batch.contexts.shape) == ((0,), (0, 4))
    loss = usecase.loss(usecase.model(), batch)
    loss.backward()
    assert loss.item() == 0


def test_words_are_drawn_by_their_weights() -> None:
    weights = np.array([0, 1, 5, 0, 2.5, 0])
    drawn = Weighted(weights)((100, 1000), torch.Generator().manual_seed(3))
    found = np.bincount(drawn.flatten().numpy(), minlength=6)
    assert found[weights == 0].sum() == 0
    expected = weights[weights > 0] / weights.sum() * 100_000
    assert chisquare(found[weights > 0], expected).pvalue > 0.001


def test_frequent_words_are_left_out() -> None:
    counts = np.array([1000, 100, 10, 0])
    kept = _kept(counts, 0.01)
    share = 1000 / 1110
    assert kept[0].item() == pytest.approx(math.sqrt(0.01 / share) + 0.01 / share)
    assert kept[2:].tolist() == [1, 1]
    assert _kept(counts, 0).tolist() == [1, 1, 1, 1]


def test_the_loss_is_that_of_negative_sampling() -> None:
    usecase = Word2VecUseCase(Word2VecParams(**SMALL, negatives=40), None, 1)
    model: Any = usecase.model()
    with torch.no_grad():
        model.inputs.weight.normal_(generator=torch.Generator().manual_seed(1))
        model.outputs.weight.normal_(generator=torch.Generator().manual_seed(2))
    batch = next(iter(usecase.loaders(0, 1).train))
    inputs, outputs = (table.weight.detach().double().numpy() for table in (model.inputs, model.outputs))
    total, same = 0.0, 0
    for word, (near, *drawn) in zip(batch.words.tolist(), batch.contexts.tolist(), strict=True):
        total += np.logaddexp(0, -inputs[word] @ outputs[near])
        total += sum(np.logaddexp(0, inputs[word] @ outputs[other]) for other in drawn if other != near)
        same += drawn.count(near)
    assert same > 0
    assert usecase.loss(model, batch).item() == pytest.approx(total / len(batch.words), rel=1e-4)


@pytest.mark.parametrize("at_once", [1, 100, 1 << 20])
def test_logits_and_gradients_are_those_of_the_formula(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adabench.usecases.word2vec.model.NUMBERS_AT_ONCE", at_once)
    generator = torch.Generator().manual_seed(1)
    model = SkipGram(20, 6, generator)
    with torch.no_grad():
        model.outputs.weight.normal_(generator=generator)
    words = torch.randint(15, (40,), generator=generator)
    contexts = torch.randint(20, (40, 4), generator=generator)
    weights = torch.randn(40, 4, generator=generator)
    logits = model(words, contexts)
    (logits * weights).sum().backward()
    inputs, outputs = (table.weight.detach().requires_grad_() for table in (model.inputs, model.outputs))
    expected = torch.einsum("nd,nkd->nk", inputs[words], outputs[contexts])
    torch.testing.assert_close(logits, expected)
    (expected * weights).sum().backward()
    for table, plain in ((model.inputs, inputs), (model.outputs, outputs)):
        assert table.weight.grad is not None
        torch.testing.assert_close(table.weight.grad.to_dense(), plain.grad)
        assert len(table.weight.grad._values()) < words.numel()


def test_every_worker_evaluates_alike() -> None:
    usecase = Word2VecUseCase(Word2VecParams(**SMALL), None, 1)
    alone, second = (
        usecase.evaluate(usecase.model(), usecase.loaders(*place).valid) for place in ((0, 1), (1, 2))
    )
    assert alone == second


def test_correlations_are_scipys() -> None:
    generator = torch.Generator().manual_seed(7)
    vectors = torch.randn(80, 6, generator=generator)
    scores = torch.randint(5, (40,), generator=generator).double().numpy()
    pairs = Pairs(np.arange(80).reshape(2, 40), scores)
    cosines = torch.cosine_similarity(vectors[:40], vectors[40:]).numpy()
    assert correlation(pairs, vectors) == pytest.approx(spearmanr(cosines, scores).statistic, abs=1e-6)
    assert correlation(pairs, torch.ones(80, 6)) == 0
    assert math.isnan(correlation(pairs, vectors * math.nan))


def trained(usecase: Word2VecUseCase) -> dict[str, float]:
    """Held-out metrics after training with plain PyTorch."""
    model, loaders = usecase.model(), usecase.loaders(0, 1)
    optimizer = usecase.optimizer(model)
    for _ in range(usecase.params.epochs):
        for batch in loaders.train:
            optimizer.zero_grad()
            usecase.loss(model, batch).backward()
            optimizer.step()
    return usecase.evaluate(model, loaders.test)


def test_plain_pytorch_learns() -> None:
    usecase = Word2VecUseCase(Word2VecParams(words=60_000, batch=16), None, 1)
    before = usecase.evaluate(usecase.model(), usecase.loaders(0, 1).test)
    after = trained(usecase)
    assert before["loss"] == pytest.approx(6 * math.log(2), rel=0.01)
    assert after["loss"] < before["loss"] / 2
    # Two values can correlate with many by no more than this.
    alike = usecase.text.pairs["topics"].scores
    most = spearmanr(alike, alike + np.linspace(0, 0.5, len(alike))).statistic
    assert after["topics"] > 0.95 * most > 0.8


def test_analogies_are_answered_by_the_nearest_word_that_is_not_asked_about() -> None:
    generator = torch.Generator().manual_seed(1)
    places = torch.randn(6, 20, generator=generator)
    towards = torch.randn(20, generator=generator)
    vectors = torch.cat([places, places + 0.8 * towards, torch.randn(30, 20, generator=generator)])
    pairs = [(one, other) for one in range(6) for other in range(6) if one != other]
    words = np.array([[one, one + 6, other, other + 6] for one, other in pairs]).T
    lengths = torch.rand(42, 1, generator=generator) + 0.5
    units = torch.nn.functional.normalize(vectors)
    right = 0
    for one, its, other, answer in words.T.tolist():
        wanted = units[its] - units[one] + units[other]
        left = [word for word in range(42) if word not in (one, its, other)]
        right += max(left, key=lambda word: float(wanted @ units[word])) == answer
    assert right > len(pairs) / 2
    assert accuracy(Analogies(words, 42), vectors * lengths) == pytest.approx(right / len(pairs))
    assert math.isnan(accuracy(Analogies(words, 42), vectors * math.nan))
