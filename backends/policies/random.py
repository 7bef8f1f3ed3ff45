"""A random technique and home for each parameter, from a seed: for tests, and as a search's first guess.

Dense parameters share one technique, because they are stored together in blocks.
"""

from __future__ import annotations

from random import Random as Generator

from adabench.backends.policies._building import RuleBuilder
from adabench.backends.policies.interface import BuilderOptions
from adabench.backends.policies.resources import Resources
from adaps.policy import Catalogue, Home, Rule

TECHNIQUES = ("adaptive", "relocation", "replication", "static", "full_replication")


class RandomOptions(BuilderOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `random`.

    Attributes
    ----------
    seed : int
        Seed; equal seeds give equal policies.
    """

    seed: int = 0


class Random(RuleBuilder):
    name = "random"
    Options = RandomOptions

    def rules(self, catalogue: Catalogue, resources: Resources, options: RandomOptions) -> list[Rule]:
        generator = Generator(options.seed)
        dense = generator.choice(TECHNIQUES)
        rules = [
            Rule(
                one.name,
                technique=dense if one.kind == "dense" else generator.choice(TECHNIQUES),
                home=_home(generator, resources.nodes),
            )
            for one in catalogue.parameters
        ]
        return [*rules, Rule("*")]


def _home(generator: Generator, nodes: int) -> Home:
    scheme = generator.choice(("hash", "blocks", "node", "shares"))
    if scheme == "node":
        return Home("node", node=generator.randrange(nodes))
    if scheme == "shares":
        weights = [generator.random() + 0.1 for _ in range(nodes)]
        return Home("shares", shares=tuple(weight / sum(weights) for weight in weights))
    return Home("hash" if scheme == "hash" else "blocks")


BUILDER = Random
