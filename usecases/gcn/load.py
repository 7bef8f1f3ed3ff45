"""Reads a graph by its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from adabench.usecases.gcn.generate import generate
from adabench.usecases.gcn.graph import Graph
from adabench.usecases.gcn.read_musae import MUSAE, read_musae
from adabench.usecases.gcn.read_npz import read_npz
from adabench.usecases.gcn.read_ogb import read_ogb
from adabench.usecases.gcn.read_planetoid import PLANETOID, read_planetoid
from adabench.usecases.interface import DataError

__all__ = ["load"]

NPZ_FILES = {"arxiv_like": "arxivlike.npz"}


def load(name: str, folder: Path | None) -> Graph:
    """Read or generate a graph.

    Parameters
    ----------
    name : str
        Name of the graph: ``generated``, which takes no data; ``facebook``, ``github``, ``twitch_de`` (MUSAE
        csv); ``cora``, ``citeseer``, ``pubmed`` (Planetoid npz or pickles); ``ogbn-…`` (OGB's csv.gz layout);
        otherwise ``NAME.npz`` (compressed rows or an edge list; ``arxiv_like`` is in arxivlike.npz).
    folder : Path or None
        Folder of the files.

    Raises
    ------
    DataError
        If the graph is missing or invalid.
    """
    if name == "generated":
        if folder is not None:
            raise DataError(
                f"graph=generated reads no data, so {folder} would be ignored: leave --data out, or name the "
                "graph that is there, such as graph=cora"
            )
        return generate()
    if folder is None:
        raise DataError(
            f"graph={name} is read from files: name their folder with --data, or use graph=generated"
        )
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder, so graph={name} cannot be read from it")
    return _reader(name)(name, folder)


def _reader(name: str) -> Callable[[str, Path], Graph]:
    if name in MUSAE:
        return read_musae
    if name in PLANETOID:
        return read_planetoid
    if name.startswith("ogbn-"):
        return read_ogb
    return _read_named_npz


def _read_named_npz(name: str, folder: Path) -> Graph:
    file = folder / NPZ_FILES.get(name, f"{name}.npz")
    if not file.is_file():
        known = ", ".join(["generated", *MUSAE, *PLANETOID, *NPZ_FILES, "ogbn-arxiv", "ogbn-products"])
        raise DataError(
            f"{file}: there is no such file; graph={name} must be one of {known}, or have its own npz"
        )
    return read_npz(file)
