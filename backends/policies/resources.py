"""A description of a cluster for builders: its nodes, and the links between them, in a TOML file."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any

import msgspec

import adaps
from adaps import Costs
from adaps.policy.toml_text import toml_string

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Link", "LinkBetween", "Node", "Resources", "ResourcesError"]

FORMAT = 1

Positive = Annotated[float, msgspec.Meta(gt=0)]
Natural = Annotated[float, msgspec.Meta(ge=0)]


class ResourcesError(ValueError):
    """A file of resources is invalid. The message names file and field."""


class Node(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A node of the cluster.

    Attributes
    ----------
    address : str
        Address for connections from other nodes.
    cores : int
        Number of cores that the node may use.
    speed : float
        Number of fixed computations per second with one thread. Only ratios matter.
    memory : int
        Memory in bytes; 0 if unknown.
    accelerators : tuple of str
        Names of its accelerators.
    gbit_per_second : float
        Bandwidth of its network card, which all its links share; 0 if it equals the bandwidth of its fastest
        link.
    host : str
        Name of the host. Nodes on one host share its cores, and each of them names all cores. An empty name
        means a separate host.
    """

    address: str = "127.0.0.1"
    cores: Annotated[int, msgspec.Meta(ge=1)] = 1
    speed: Positive = 1.0
    memory: Annotated[int, msgspec.Meta(ge=0)] = 0
    accelerators: tuple[str, ...] = ()
    gbit_per_second: Natural = 0.0
    host: str = ""


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A link between two nodes, as measured with TCP.

    Attributes
    ----------
    latency_ms : float
        Latency in one direction, half of the round trip of one byte, in milliseconds.
    gbit_per_second : float
        Throughput of one connection.
    """

    latency_ms: Annotated[float, msgspec.Meta(ge=0)] = 0.05
    gbit_per_second: Positive = 10.0


class LinkBetween(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A link that differs from the others.

    Attributes
    ----------
    between : tuple of int
        Ranks of the two nodes.
    latency_ms, gbit_per_second : float
        Latency and throughput, as in `Link`.
    """

    between: tuple[Annotated[int, msgspec.Meta(ge=0)], Annotated[int, msgspec.Meta(ge=0)]]
    latency_ms: Annotated[float, msgspec.Meta(ge=0)]
    gbit_per_second: Positive


class Resources(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes and links of a cluster.

    Attributes
    ----------
    node : tuple of Node
        Nodes in the order of their ranks.
    links : Link
        Link between two nodes without an entry in `link`.
    link : tuple of LinkBetween
        Other links.
    costs : adaps.Costs, optional
        Measured costs of the server.
    steps : dict of str to float
        Milliseconds of computation per step, on a machine with the costs' speed, by use case as on the
        command line.
    format : int
        Format of the file: 1.
    """

    node: Annotated[tuple[Node, ...], msgspec.Meta(min_length=1)]
    links: Link = Link()
    link: tuple[LinkBetween, ...] = ()
    costs: adaps.Costs | None = None
    steps: dict[str, Positive] = {}
    format: int = FORMAT

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"format is {self.format}; this version reads format {FORMAT}")
        seen = set()
        for number, one in enumerate(self.link, 1):
            a, b = sorted(one.between)
            if b >= len(self.node):
                raise ValueError(f"link {number} names node {b}; there are {len(self.node)}, from 0 on")
            if a == b:
                raise ValueError(f"link {number} is between node {a} and itself; name two nodes")
            if (a, b) in seen:
                raise ValueError(f"link {number} is the second between nodes {a} and {b}; give one")
            seen.add((a, b))
        hosts: dict[str, Node] = {}
        for number, node in enumerate(self.node):
            first = hosts.setdefault(node.host, node) if node.host else node
            if (node.cores, node.speed) != (first.cores, first.speed):
                raise ValueError(
                    f"node {number} has another number of cores, or another speed, than the first node of "
                    f"its host {node.host!r}"
                )

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.node)

    @property
    def shares(self) -> list[float]:
        """Each node's part of the total speed. The parts add up to 1."""
        total = sum(node.speed for node in self.node)
        return [node.speed / total for node in self.node]

    @classmethod
    def alike(cls, nodes: int) -> Resources:
        """Return a cluster of equal nodes and links, without measurements.

        Parameters
        ----------
        nodes : int
            Number of nodes, at least 1.
        """
        return cls(node=(Node(),) * nodes)

    def between(self, one: int, other: int) -> Link:
        """Return the link between two nodes.

        Parameters
        ----------
        one, other : int
            Ranks of the nodes.
        """
        for link in self.link:
            if sorted(link.between) == sorted((one, other)):
                return Link(latency_ms=link.latency_ms, gbit_per_second=link.gbit_per_second)
        return self.links

    def cluster(self) -> adaps.Cluster:
        """Return the cluster for a simulation, with measured costs or the costs of a common machine."""
        costs = self.costs or Costs(speed=max(node.speed for node in self.node))
        return adaps.Cluster(
            [
                adaps.Machine(node.cores, node.speed, node.gbit_per_second or None, node.host or None)
                for node in self.node
            ],
            _line(self.links),
            {(min(one.between), max(one.between)): _line(one) for one in self.link},
            costs,
        )

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Resources:
        """Read a file.

        Parameters
        ----------
        path : path
            File, as `text` writes it.

        Raises
        ------
        ResourcesError
            If the file is invalid. The message names the file and the error.
        """
        file = Path(path)
        try:
            document = tomllib.loads(file.read_text(encoding="utf-8"))
            return _from(document)
        except OSError as error:
            raise ResourcesError(f"{file}: {(error.strerror or str(error)).lower()}") from error
        except UnicodeDecodeError as error:
            raise ResourcesError(f"{file}: it is not UTF-8") from error
        except RecursionError as error:
            raise ResourcesError(f"{file}: it is nested too deeply") from error
        except tomllib.TOMLDecodeError as error:
            raise ResourcesError(f"{file}: it is not valid TOML: {error}") from error
        except (msgspec.ValidationError, ValueError) as error:
            said = str(error)
            raise ResourcesError(f"{file}: {said[:1].lower()}{said[1:]}") from error

    def text(self) -> str:
        """Return the resources as TOML, from which `read` creates equal resources."""
        parts = [f"format = {self.format}"]
        if self.costs is not None:
            costs = asdict(self.costs)
            parts.append("\n".join(["[costs]", *(f"{name} = {cost!r}" for name, cost in costs.items())]))
        if self.steps:
            steps = [f"{toml_string(usecase)} = {step!r}" for usecase, step in self.steps.items()]
            parts.append("\n".join(["[steps]", *steps]))
        for node in self.node:
            accelerators = ", ".join(map(toml_string, node.accelerators))
            parts.append(
                f"[[node]]\naddress = {toml_string(node.address)}\ncores = {node.cores}\n"
                f"speed = {float(node.speed)!r}\nmemory = {node.memory}\naccelerators = [{accelerators}]"
                + (f"\ngbit_per_second = {node.gbit_per_second!r}" if node.gbit_per_second else "")
                + (f"\nhost = {toml_string(node.host)}" if node.host else "")
            )
        parts.append(f"[links]\n{_link_text(self.links)}")
        parts += [
            f"[[link]]\nbetween = [{one.between[0]}, {one.between[1]}]\n{_link_text(one)}"
            for one in self.link
        ]
        return "\n\n".join(parts) + "\n"


def _line(link: Link | LinkBetween) -> adaps.NetworkLink:
    return adaps.NetworkLink(link.latency_ms, link.gbit_per_second)


def _from(document: Mapping[str, Any]) -> Resources:
    if "format" not in document:
        raise ValueError(f"format is missing; this version reads format = {FORMAT}")
    if isinstance(costs := document.get("costs"), dict):
        known = [one.name for one in fields(Costs)]
        if unknown := [name for name in costs if name not in known]:
            raise ValueError(f"[costs] has unknown {', '.join(unknown)}; its fields are {', '.join(known)}")
        if missing := [name for name in known if name not in costs]:
            raise ValueError(
                f"[costs] has no {', '.join(missing)}: measure all of them with adabench resources --costs"
            )
    # TOML may contain an integer for a float field, which is converted.
    return msgspec.convert(document, Resources)


def _link_text(link: Link | LinkBetween) -> str:
    return f"latency_ms = {float(link.latency_ms)!r}\ngbit_per_second = {float(link.gbit_per_second)!r}"
