"""Reads a graph by its name."""

from collections.abc import Callable
from pathlib import Path

from adabench.usecases.gcn.generate import generate
from adabench.usecases.gcn.graph import Graph
from adabench.usecases.gcn.read_musae import MUSAE, read_musae
from adabench.usecases.gcn.read_npz import read_npz
from adabench.usecases.gcn.read_ogb import read_ogb
from adabench.usecases.gcn.read_planetoid import PLANETOID, read_planetoid
from adabench.usecases.interface import DataError

NPZ_FILES = {"arxiv_like": "arxivlike.npz"}


def load(name: str, folder: Path | None, features: bool = False, vertices: int = 10_000) -> Graph:
    """Read or generate a graph.

    Parameters
    ----------
    name : str
        Name of the graph: ``generated``, which takes no data; ``facebook``, ``github``, ``twitch_de`` (MUSAE
        csv); ``cora``, ``citeseer``, ``pubmed`` (Planetoid npz or pickles); ``ogbn-…`` (OGB's csv.gz layout);
        otherwise ``NAME.npz`` (compressed rows or an edge list; ``arxiv_like`` is in arxivlike.npz).
    folder : Path or None
        Folder of the files.
    features : bool
        Whether to read node features, which only npz files have.
    vertices : int
        Number of nodes of a generated graph.

    Raises
    ------
    DataError
        If the graph is missing or invalid, or has no features although they are wanted.
    """
    if name == "generated":
        if folder is not None:
            raise DataError(
                f"graph=generated reads no data, so {folder} would be ignored: leave --data out, or name "
                f"the graph in this folder, such as graph=cora"
            )
        if features:
            raise _no_features(name)
        return generate(nodes=vertices)
    if folder is None:
        raise DataError(
            f"graph={name} is read from files: name their folder with --data, or use graph=generated"
        )
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder, so graph={name} cannot be read from it")
    reader = _reader(name)
    if reader is None:
        return read_npz(_npz(name, folder), features)
    if not features:
        return reader(name, folder)
    if name in PLANETOID and (folder / f"{name}.npz").is_file():
        return read_npz(folder / f"{name}.npz", features)
    raise _no_features(name)


def _no_features(name: str) -> DataError:
    return DataError(f"graph={name} has no node features here, only npz files do: leave out features=on")


def _reader(name: str) -> Callable[[str, Path], Graph] | None:
    """Return the reader of a public graph's own layout; None for npz files."""
    if name in MUSAE:
        return read_musae
    if name in PLANETOID:
        return read_planetoid
    if name.startswith("ogbn-"):
        return read_ogb
    return None


def _npz(name: str, folder: Path) -> Path:
    file = folder / NPZ_FILES.get(name, f"{name}.npz")
    if not file.is_file():
        known = ", ".join(["generated", *MUSAE, *PLANETOID, *NPZ_FILES, "ogbn-arxiv", "ogbn-products"])
        raise DataError(
            f"{file}: there is no such file; graph={name} must be one of {known}, or have its own npz"
        )
    return file
