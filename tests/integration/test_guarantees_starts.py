"""A cluster starts every time, on a machine that has other things to do."""

from tests.conftest import Launch


def test_every_start_beside_busy_loops_succeeds(launch: Launch, full: bool) -> None:
    starts = 200 if full else 4
    (outcome,) = launch(
        "tests.integration.guarantees.starts", 1, 3600 if full else 240, nodes=4, loops=8, starts=starts
    )
    assert outcome["starts"] == starts
    print(outcome)
