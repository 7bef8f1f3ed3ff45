"""Simulates worlds whose jobs and faults follow from a seed.

``python -m tests.simulation.explore 10000 [FIRST [MUTANT]]`` tries 10,000 seeds; a violation is printed with
its seed, which reproduces it.
"""

from __future__ import annotations

import contextlib
import sys
import time

from tests.simulation.job import Job, Simulation, simulated
from tests.simulation.mutants import MUTANTS
from tests.simulation.world import Violation

__all__ = ["explore", "try_seed"]

FAULTS = [
    *("kill", "kill", "stop", "stop for long", "kill an agent", "lose power", "resize"),
    *("cut off", "cut off", "cut off"),
]
MOST_FAULTS = 5


def try_seed(seed: int, mutant: str | None = None) -> dict[str, int]:
    """Simulate the world of a seed; raises Violation if an invariant is broken."""
    simulation = Simulation(seed)
    world, numbers = simulation.world, simulation.world.numbers
    agree = numbers.random() < 0.7
    exports = seed % 3 == 2
    jobs = [Job(simulation, "job", numbers.choice([1, 2, 2, 3]), agree, exports)]
    if numbers.random() < 0.3:
        jobs.append(Job(simulation, "other job", 1, True, exports))
    times = [numbers.randint(1, 700) for _ in range(numbers.randint(0, MOST_FAULTS))]
    faults = {time: numbers.choice(FAULTS) for time in times}

    def strike() -> None:
        fault = faults.pop(world.turns, None)
        if fault is None or all(job.done for job in jobs):
            return
        likely = {"publish": 0.4, "remove": 0.1}.get(world.doing, 0.01)
        if fault == "cut off" and (not simulation.disk.holders or numbers.random() > likely):
            # waits until a process has a lock and, most likely, writes, which is the most critical time
            faults.setdefault(world.turns + 1, fault)
            return
        happen(simulation, fault)

    world.at_turn = strike
    with simulated(simulation), MUTANTS[mutant](simulation) if mutant else contextlib.nullcontext():
        for job in jobs:
            job.start()
        world.run()
    for job in jobs:
        if not job.done:
            raise Violation(f"{job} has ended without being done")
    return {
        "turns": world.turns,
        "processes": len(world.processes),
        "meetings": len(simulation.checker.meetings),
    }


def happen(simulation: Simulation, fault: str) -> None:
    """Inject a fault into a random job."""
    world, numbers = simulation.world, simulation.world.numbers
    job = numbers.choice(simulation.jobs)
    workers = [process for process in job.workers if not process.is_gone]
    if fault == "lose power":
        simulation.lose_power()
    elif fault == "cut off":
        # For a while, the hosts of lock holders reach neither the file server nor other hosts.
        for process in list(simulation.disk.holders):
            process.stopped_until = world.now + numbers.choice([5.0, 15.0, 60.0])
            simulation.disk.free(process)
            for other in simulation.jobs:
                if process in other.workers:
                    replace_agent(simulation, other, other.workers[process])
    elif fault == "resize":
        job.resize(numbers.choice([1, 2, 3]))
    elif fault == "kill an agent" and job.agents:
        replace_agent(simulation, job, numbers.choice(sorted(job.agents)))
    elif workers and fault == "kill":
        world.kill(numbers.choice(workers))
    elif workers:
        numbers.choice(workers).stopped_until = world.now + (120.0 if fault == "stop for long" else 6.0)


def replace_agent(simulation: Simulation, job: Job, host: int) -> None:
    """A new agent takes care of a host; the processes of the old one continue."""
    if host in job.agents:
        simulation.world.kill(job.agents[host])
        job.start_agent(host)


def explore(seeds: range, mutant: str | None = None) -> tuple[int, str] | None:
    """The first seed with a violation, and its description."""
    for seed in seeds:
        try:
            try_seed(seed, mutant)
        except Violation as violation:
            return seed, str(violation)
        except Exception as error:
            raise RuntimeError(f"seed {seed}") from error
    return None


def main() -> None:
    count, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    begin = time.monotonic()
    found = explore(range(first, first + count), sys.argv[3] if len(sys.argv) > 3 else None)
    print(f"{count} seeds from {first}: {found or 'nothing wrong'} ({time.monotonic() - begin:.0f} s)")
    sys.exit(found is not None)


if __name__ == "__main__":
    main()
