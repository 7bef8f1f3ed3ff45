"""Random policies and models, for tests."""

import random
from dataclasses import replace

from adaps.policy import (
    Admission,
    Aggregation,
    Catalogue,
    DataSharing,
    Eviction,
    Home,
    MadeFor,
    Memory,
    Policy,
    RowSelection,
    Rule,
    Synchronization,
)
from adaps.policy.eviction import ORDERS
from adaps.policy.fields import TECHNIQUES, WIRES
from adaps.policy.sections import AGGREGATIONS, EXPECTS_FAULTY

CATALOGUE = Catalogue.of_shapes(
    [("wide.weight", (100, 1)), ("deep.weight", (100, 16)), ("mlp.0.weight", (8, 16)), ("mlp.0.bias", (8,))],
    ["wide.weight", "deep.weight"],
)
"""Two tables and two dense parameters."""

# Characters that a document must preserve: quotes, escapes, control characters, multi-byte letters.
LETTERS = "abcXYZ019._-* ?\"'\\\n\t\r\x00\x1f\x7f#[]{}=äß€𝄞\u2028"


def random_policy(random_: random.Random) -> Policy:
    """Any document that can be written."""
    rules = [random_rule(random_, random_text(random_)) for _ in range(random_.randrange(5))]
    last = random_rule(random_, "*")
    rules.append(replace(last, rows=None))
    made_for = None
    if random_.random() < 0.5:
        digits = f"sha256:{random_.getrandbits(256):064x}" if random_.random() < 0.7 else None
        made_for = MadeFor(digits, random_.randrange(1, 4097) if random_.random() < 0.7 else None)
    return Policy(
        random_text(random_),
        rules,
        made_for,
        random_synchronization(random_),
        DataSharing(random_shares(random_) if random_.random() < 0.3 else random_.choice(["equal", "speed"])),
    )


def random_synchronization(random_: random.Random) -> Synchronization:
    every = random_.choice([0, 1, 10, 2**63 - 1])
    if every != 1:
        return Synchronization(every)
    rule = random_.choice(AGGREGATIONS)
    faulty = random_.choice([1, 2, 2**40]) if rule in EXPECTS_FAULTY else None
    keep = random_.choice([None, 1, 5]) if rule == "krum" else None
    return Synchronization(every, Aggregation(rule, faulty, keep))


def random_rule(random_: random.Random, parameters: str) -> Rule:
    return Rule(
        parameters,
        random_.choice([None, random_rows(random_)]),
        random_.choice(TECHNIQUES),
        random_home(random_),
        random_.choice([None, 0, 20, random_.randrange(2**40)]),
        "auto" if random_.random() < 0.3 else random_.choice([1, random_.randrange(1, 2**40)]),
        random_.choice(WIRES),
        random_.choice([None, *map(Eviction, ORDERS), Eviction("ttl", random_.randrange(1, 2**18))]),
        random_.choice([None, Admission(random_.randrange(1, 9))]),
        random_.choice([None, Memory(random_.randrange(1, 2**62)), Memory(2 ** random_.randrange(62))]),
    )


def random_rows(random_: random.Random) -> RowSelection:
    form = random_.randrange(3)
    if form == 0:
        ends = sorted(random_.sample(range(2 ** random_.randrange(6, 62)), 2 * random_.choice([1, 2, 4, 30])))
        return RowSelection(ranges=tuple(zip(ends[::2], ends[1::2], strict=True)))
    if form == 1:
        return RowSelection(file=random_text(random_))
    return RowSelection(hottest=random_.choice([1.0, 0.001, 1 - random_.random(), 5e-324]))


def random_home(random_: random.Random) -> Home:
    scheme = random_.choice(["hash", "blocks", "node", "shares", "with"])
    if scheme == "node":
        return Home("node", node=random_.randrange(4096))
    if scheme == "with":
        return Home("with", table=random_text(random_))
    if scheme == "shares":
        return Home("shares", shares=random_shares(random_))
    return Home("hash" if scheme == "hash" else "blocks")


def random_shares(random_: random.Random) -> tuple[float, ...]:
    weights = [1 - random_.random() for _ in range(random_.randrange(1, 9))]
    return tuple(weight / sum(weights) for weight in weights)


def random_text(random_: random.Random) -> str:
    return "".join(random_.choice(LETTERS) for _ in range(random_.randrange(1, 12)))
