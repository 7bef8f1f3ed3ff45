"""Downloads public data sets."""

import http.client
import os
import urllib.error
import urllib.request
import zipfile
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from adabench.usecases.common.cache import file_digest
from adabench.usecases.gcn.read_musae import MUSAE
from adabench.usecases.gcn.read_planetoid import PLANETOID, PLANETOID_PARTS
from adabench.usecases.interface import DataError

CHUNK = 1 << 16
TIMEOUT_SECONDS = 30.0


class Remote(NamedTuple):
    """A file to download, and its required SHA-256."""

    url: str
    sha256: str


_GITHUB = "https://raw.githubusercontent.com"
_OGB = "https://snap.stanford.edu/ogb/data/nodeproppred"
_MUSAE = f"{_GITHUB}/benedekrozemberczki/MUSAE/5f901232957b6c9985d750aac48cda39a4b24285/input"
_PLANETOID = f"{_GITHUB}/kimiyoung/planetoid/af6abf468a772cc055bec88c52e4d6f51b7c37e3/data"

_ARCHIVES = {
    "ogbn-arxiv": Remote(
        f"{_OGB}/arxiv.zip", "49f85c801589ecdcc52cfaca99693aaea7b8af16a9ac3f41dd85a5f3193fe276"
    ),
    "ogbn-products": Remote(
        f"{_OGB}/products.zip", "5ea0a112edaec2141c0a2a612dd4aed58df97ff3e1ab1a0ca8238f43cbbb50a8"
    ),
}
_MUSAE_SHA256 = {
    "git_edges.csv": "34c57382246949d1b3b7fa641a8532672001ecae8e9558f0b3c113cc035bd781",
    "git_target.csv": "3a8582f0c55d6f605df5f45bde28a90561be9517b40226c5e6bbce253679906a",
    "facebook_edges.csv": "7c50d8f02a75cc0829577814a1fc14535164daa38d79c3612340c9e9cdbd4022",
    "facebook_target.csv": "7bd96eafea3c2ca40f44bfa9e73642194696c21e38c7b29ed409c32ad14075cd",
    "DE_edges.csv": "54feaf3e3e70a485fe07f8611e4d2677841b97f77b8358204bcf4a48cc884d86",
    "DE_target.csv": "2188f58a093bb9db363d3eaf7c3a52c2adc8ff6b23cbcb4f53875f87061c0321",
}
_PLANETOID_SHA256 = {
    "ind.cora.graph": "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
    "ind.cora.ally": "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
    "ind.cora.ty": "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
    "ind.cora.test.index": "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
    "ind.citeseer.graph": "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
    "ind.citeseer.ally": "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
    "ind.citeseer.ty": "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
    "ind.citeseer.test.index": "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
    "ind.pubmed.graph": "5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9",
    "ind.pubmed.ally": "0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e",
    "ind.pubmed.ty": "ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd",
    "ind.pubmed.test.index": "b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5",
}


def fetch(name: str, folder: Path) -> Path:
    """Download a data set into the layout that `graph=NAME` reads.

    Each file is checked against its known SHA-256 before it gets its name, so an interrupted or modified
    download is never used. A file that already exists and is correct is not downloaded again. Progress is
    shown on standard error.

    Parameters
    ----------
    name : str
        Name of the data set: ``facebook``, ``github``, ``twitch_de``, ``cora``, ``citeseer``, ``pubmed``,
        ``ogbn-arxiv`` or ``ogbn-products``.
    folder : Path
        Folder for the files, which is created if needed.

    Returns
    -------
    Path
        Folder that `--data` accepts.

    Raises
    ------
    DataError
        If the name is unknown, if the network or the folder cannot be used, or if a file is incorrect.
    """
    remotes = _remotes(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, remote in remotes.items():
            _download(remote, folder / file)
            if name in _ARCHIVES:
                _extract(folder / file, folder)
    except OSError as error:
        raise DataError(f"{folder}: {name} cannot be stored there ({error})") from error
    return folder


def _remotes(name: str) -> dict[str, Remote]:
    if name in _ARCHIVES:
        remote = _ARCHIVES[name]
        return {PurePosixPath(remote.url).name: remote}
    if name in MUSAE:
        edges, targets = MUSAE[name].edges, MUSAE[name].targets
        return {
            edges: Remote(f"{_MUSAE}/edges/{edges}", _MUSAE_SHA256[edges]),
            targets: Remote(f"{_MUSAE}/target/{targets}", _MUSAE_SHA256[targets]),
        }
    if name in PLANETOID:
        files = [f"ind.{name}.{part}" for part in PLANETOID_PARTS]
        return {file: Remote(f"{_PLANETOID}/{file}", _PLANETOID_SHA256[file]) for file in files}
    known = ", ".join([*MUSAE, *PLANETOID, *_ARCHIVES])
    raise DataError(f"{name!r} is not a data set that can be downloaded; there is {known}")


def _download(remote: Remote, file: Path) -> None:
    if file.is_file() and file_digest(file) == remote.sha256:
        return
    partial = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        _transfer(remote.url, partial)
        found = file_digest(partial)
        if found != remote.sha256:
            raise DataError(
                f"{remote.url}: its SHA-256 is {found} where {remote.sha256} is expected; not kept"
            )
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def _transfer(url: str, file: Path) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    try:
        with (
            urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer,
            file.open("wb") as stream,
            Progress(*columns, console=Console(stderr=True)) as progress,
        ):
            length = answer.headers.get("Content-Length")
            task: TaskID = progress.add_task(PurePosixPath(url).name, total=int(length) if length else None)
            while chunk := answer.read(CHUNK):
                stream.write(chunk)
                progress.advance(task, len(chunk))
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", error)
        raise DataError(
            f"{url}: cannot be downloaded ({reason}); check the network connection, "
            f"or copy the file to {file.parent} by hand"
        ) from error


def _extract(archive: Path, folder: Path) -> None:
    """Unpack the folders `raw` and `split`. `zipfile` keeps members inside the target folder."""
    try:
        with zipfile.ZipFile(archive) as content:
            for member in content.namelist():
                if {"raw", "split"} & set(PurePosixPath(member).parts):
                    content.extract(member, folder)
    except zipfile.BadZipFile as error:
        raise DataError(f"{archive}: not a zip archive ({error})") from error
