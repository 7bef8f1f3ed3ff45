"""Optimizer state travels with the value, and what replicas do to it is added up at the owner."""

from tests.conftest import Launch


def test_optimizer_state_is_that_of_one_node(launch: Launch) -> None:
    lives = [(4, "adaptive"), (3, "static"), (2, "replication")]
    ranks = launch("tests.integration.guarantees.optimizers", 4, lives=lives)
    assert sum(rank["replica_gradients"] for rank in ranks) > 10_000
    for rank in ranks:
        for name, error in rank["largest"].items():
            # A sum of some thousand squares, added up in another order in 24 bits.
            assert error < (2e-3 if name == "accumulator" else 1e-5), (name, error)
