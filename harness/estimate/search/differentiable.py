"""The differentiable solver: gradient descent on probabilities of choices, which are rounded at the end."""

import numpy as np

from adabench.harness.estimate.search.local_search import improved, limited_memory
from adabench.harness.estimate.search.problem import Choices, Problem, Solution

_WARM, _COLD = 1.0, 0.05
_RATE = 0.2
_ROUNDINGS = 6


def descend(problem: Problem, start: Choices, effort: float, seed: int) -> Solution:
    """Minimise the expected loads of a softmax over choices, at a falling temperature.

    The largest load is smoothed as temperature · log Σ exp(load / temperature). Memory above a limit is
    multiplied by a penalty, which grows as long as the limit is exceeded (the augmented Lagrangian). At some
    temperatures the most probable choices are taken. They are changed until they keep the limits, and then
    improved by changes of single units.
    """
    import torch

    steps = max(30, int(effort * 250))
    best = start
    value = problem.value(best)
    scale = max(value, 1e-300)
    random = torch.Generator().manual_seed(seed)
    loads, base = torch.from_numpy(problem.loads / scale), torch.from_numpy(problem.base / scale)
    memory = torch.from_numpy(limited_memory(problem)[0])
    there = torch.from_numpy(np.arange(problem.loads.shape[1])[None, :] < problem.counts[:, None])
    logits = (0.01 * torch.randn(there.shape, generator=random, dtype=torch.float64)).requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=_RATE)
    prices = torch.zeros(memory.shape[2], dtype=torch.float64)
    rounded_at = set(np.linspace(steps / 4, steps - 1, _ROUNDINGS).astype(int).tolist())
    for step, temperature in enumerate(np.geomspace(_WARM, _COLD, steps)):
        shares = torch.softmax((logits / temperature).masked_fill(~there, -torch.inf), dim=1)
        totals = base + torch.einsum("uk,ukr->r", shares, loads)
        smooth = 0.05 * temperature
        loss = smooth * torch.logsumexp(totals / smooth, 0)
        over = torch.einsum("uk,ukn->n", shares, memory) - 1.0
        loss = loss + (prices * over + 5.0 * over.clamp(min=0.0) ** 2).sum()
        prices = (prices + 0.5 * over.detach()).clamp(min=0.0)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        if step in rounded_at:
            likeliest = logits.detach().masked_fill(~there, -torch.inf).argmax(dim=1).numpy()
            candidate = improved(problem, likeliest)
            if problem.fits(candidate) and problem.value(candidate) < value:
                best, value = candidate, problem.value(candidate)
    return Solution(best, value, -np.inf, "differentiable")
