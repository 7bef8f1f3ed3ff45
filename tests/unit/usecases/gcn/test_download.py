"""Downloading data sets, from a server on this machine."""

import gzip
import hashlib
import socket
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from adabench.usecases.gcn import download, fetch
from adabench.usecases.gcn.download import Remote
from adabench.usecases.gcn.load import load
from adabench.usecases.interface import DataError

GITHUB = {
    "edges/git_edges.csv": b"id_1,id_2\n0,1\n1,2\n",
    "target/git_target.csv": b"id,name,ml_target\n0,a,0\n1,b,1\n2,c,1\n",
}
OGB = {
    "mine/raw/edge.csv.gz": gzip.compress(b"0,1\n1,2\n"),
    "mine/raw/node-label.csv.gz": gzip.compress(b"0\n1\n1\n"),
    "mine/raw/node-feat.csv.gz": gzip.compress(b"0.5\n0.5\n0.5\n"),
    "mine/split/time/train.csv.gz": gzip.compress(b"0\n"),
    "mine/split/time/valid.csv.gz": gzip.compress(b"1\n"),
    "mine/split/time/test.csv.gz": gzip.compress(b"2\n"),
    "mine/mapping/README.md": b"not needed",
}


class Server:
    """A server of a folder that records the requested paths."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []
        asked = self.asked

        class Handler(SimpleHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:
                asked.append(self.path)

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Replaces the sites of the data sets `github` and `ogbn-mine`."""
    folder = tmp_path / "site"
    for name, content in GITHUB.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        monkeypatch.setitem(download._MUSAE_SHA256, Path(name).name, digest)
    archive = folder / "mine.zip"
    with zipfile.ZipFile(archive, "w") as content_of:
        for name, content in OGB.items():
            content_of.writestr(name, content)
    server = Server(folder)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    monkeypatch.setitem(download._ARCHIVES, "ogbn-mine", Remote(f"{server.url}/mine.zip", digest))
    monkeypatch.setattr(download, "_MUSAE", server.url)
    yield server
    server.close()


def test_what_is_fetched_can_be_read(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "new" / "data"
    assert fetch("github", data) == data
    assert load("github", data).num_nodes == 3
    output = capsys.readouterr()
    assert "git_edges.csv" in output.err
    assert "100%" in output.err or "18/18" in output.err
    assert output.out == ""


def test_an_archive_is_unpacked_but_for_what_nobody_reads(server: Server, tmp_path: Path) -> None:
    data = fetch("ogbn-mine", tmp_path / "data")
    graph = load("ogbn-mine", data)
    assert graph.split is not None
    assert graph.labels.tolist() == [0, 1, 1]
    assert not (data / "mine" / "mapping").exists()


def test_a_file_that_is_there_is_not_fetched_again_unless_it_is_wrong(server: Server, tmp_path: Path) -> None:
    fetch("github", tmp_path)
    assert len(server.asked) == 2
    fetch("github", tmp_path)
    assert len(server.asked) == 2
    (tmp_path / "git_edges.csv").write_text("altered")
    fetch("github", tmp_path)
    assert server.asked[2:] == ["/edges/git_edges.csv"]
    assert (tmp_path / "git_edges.csv").read_bytes() == GITHUB["edges/git_edges.csv"]


def test_a_download_with_another_checksum_is_not_kept(server: Server, tmp_path: Path) -> None:
    (server.folder / "edges" / "git_edges.csv").write_text("altered on the way")
    data = tmp_path / "data"
    with pytest.raises(DataError, match=r"git_edges\.csv: its SHA-256 is \w{64} where \w{64} is expected"):
        fetch("github", data)
    assert list(data.iterdir()) == []


def test_a_file_that_the_site_does_not_have_is_named(server: Server, tmp_path: Path) -> None:
    (server.folder / "target" / "git_target.csv").unlink()
    with pytest.raises(DataError, match=r"git_target\.csv: cannot be downloaded \(File not found\)"):
        fetch("github", tmp_path / "data")


def test_without_a_network_there_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setattr(download, "_MUSAE", f"http://127.0.0.1:{port}")
    with pytest.raises(DataError, match=r"facebook_edges\.csv: cannot be downloaded \(.*refused\)") as error:
        fetch("facebook", tmp_path)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_name_and_a_folder_that_is_a_file_are_refused(server: Server, tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match="'imdb' is not a data set that can be downloaded; there is facebook, git"
    ):
        fetch("imdb", tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file: github cannot be stored there"):
        fetch("github", tmp_path / "file")


def test_known_checksums_are_those_of_the_real_files(shared_data: Path) -> None:
    folders = {"musae_social": download._MUSAE_SHA256, "planetoid": download._PLANETOID_SHA256}
    for folder, known in folders.items():
        for name, digest in known.items():
            assert hashlib.sha256((shared_data / folder / name).read_bytes()).hexdigest() == digest


@pytest.mark.parametrize("name", ["facebook", "github", "twitch_de", "cora", "citeseer", "pubmed"])
def test_every_data_set_has_a_checksum(name: str) -> None:
    remotes = download._remotes(name)
    assert len(remotes) == (2 if name in ("facebook", "github", "twitch_de") else 4)
    for file, remote in remotes.items():
        assert remote.url.startswith("https://")
        assert remote.url.endswith(f"/{file}")
        assert len(bytes.fromhex(remote.sha256)) == 32
