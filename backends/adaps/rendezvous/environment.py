"""torchrun's environment variables, which describe a cluster to its processes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from adaps.errors import RendezvousError
from adaps.rendezvous import host_addresses

__all__ = ["Place", "integer_variable", "place_in_environment", "variable"]

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that torchrun sets for every process."""

MAX_NODES = 4096
"""Maximum number of nodes. The core uses 12 bits for a rank."""


@dataclass(frozen=True)
class Place:
    """The rank of this process in its cluster, and the address of the cluster's store."""

    rank: int
    world_size: int
    host: str
    port: int
    hosted: bool
    """Whether torchrun's agent runs the store. Otherwise rank 0 does."""
    one_host: bool
    """Whether torchrun reports that all nodes are on this host."""

    def interface(self) -> str:
        """Return the default listening address of a node. As few processes as possible can reach it."""
        if self.one_host:
            return host_addresses.LOOPBACK
        return host_addresses.address_towards(self.host, self.port)


def place_in_environment(environment: Mapping[str, str] = os.environ) -> Place | None:
    """Return the place that torchrun's variables describe; None for a cluster of one node.

    Raises
    ------
    RendezvousError
        If only some of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set, or a value is invalid.
    """
    if "RANK" not in environment and "WORLD_SIZE" not in environment:
        return None
    rank, world_size = integer_variable(environment, "RANK"), integer_variable(environment, "WORLD_SIZE")
    if world_size < 1 or not 0 <= rank < world_size:
        raise RendezvousError(
            f"RANK={rank} and WORLD_SIZE={world_size} do not fit: the rank must be in [0, WORLD_SIZE)"
        )
    if world_size > MAX_NODES:
        raise RendezvousError(f"WORLD_SIZE is {world_size}; at most {MAX_NODES} nodes are possible")
    if world_size == 1:
        return None
    return Place(
        rank=rank,
        world_size=world_size,
        host=variable(environment, "MASTER_ADDR"),
        port=integer_variable(environment, "MASTER_PORT"),
        hosted=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        one_host=environment.get("LOCAL_WORLD_SIZE") == environment["WORLD_SIZE"],
    )


def variable(environment: Mapping[str, str], name: str, together: Sequence[str] = VARIABLES) -> str:
    """Return an environment variable; RendezvousError, which names its companions, if it is missing."""
    value = environment.get(name)
    if not value:
        raise RendezvousError(
            f"the environment variable {name} is missing; a cluster needs {', '.join(together)}"
        )
    return value


def integer_variable(environment: Mapping[str, str], name: str, together: Sequence[str] = VARIABLES) -> int:
    """Return an environment variable that must be an integer."""
    text = variable(environment, name, together)
    try:
        return int(text)
    except ValueError:
        raise RendezvousError(f"the environment variable {name} is {text!r}; it must be an integer") from None
