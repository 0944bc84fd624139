import io
import threading
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from data import ogb_files

from mnagt.data.download import DIGESTS, digest_contents, download_ogb, download_tu
from mnagt.data.readers.dataset_files import find_ogb_files, find_tu_files
from mnagt.data.registry import EMBEDDED, load_dataset, locate_dataset
from mnagt.errors import InputError

MUTAG = (EMBEDDED / "MUTAG.zip").read_bytes()


def zip_of(**files: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            archive.writestr(f"{name}.txt", text)
    return content.getvalue()


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Serve some bytes under any path, and give the address."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    servers: list[ThreadingHTTPServer] = []

    def start(content: bytes, status: int = 200, promised: int | None = None) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status)
                if promised != 0:
                    self.send_header("Content-Length", str(promised or len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("promised", [None, 0], ids=["length said", "length not said"])
def test_a_data_set_is_fetched_into_the_root(serve, tmp_path, promised):
    path = download_tu("MUTAG", tmp_path / "new" / "root", serve(MUTAG, promised=promised))
    assert path == tmp_path / "new" / "root" / "MUTAG.zip"
    assert path.read_bytes() == MUTAG
    assert len(load_dataset(path)) == 188


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"content": b"gone", "status": 404}, r"cannot fetch http://.*/MUTAG.zip \(Not Found\); fetch it elsewhere"),
        ({"content": b"<html>hello</html>"}, "what came is not a zip"),
        ({"content": MUTAG[:9000]}, "what came is not a zip"),
        ({"content": MUTAG[:9000], "promised": len(MUTAG)}, "the connection ended after 9,000 of"),
        ({"content": zip_of(NCI1_A="1, 2")}, "no MUTAG_A.txt in the zip"),
    ],
    ids=["not there", "a page", "cut", "cut short of its length", "another data set"],
)
def test_what_is_no_data_set_is_not_kept(serve, tmp_path, answer, message):
    with pytest.raises(InputError, match=message) as caught:
        download_tu("MUTAG", tmp_path, serve(**answer))
    assert str(tmp_path / "MUTAG.zip") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_download_has_a_largest_size(serve, tmp_path):
    with pytest.raises(InputError, match="over 10,000 bytes"):
        download_tu("MUTAG", tmp_path, serve(MUTAG), largest=10_000)
    assert not list(tmp_path.iterdir())


def test_an_older_file_survives_a_failed_download(serve, tmp_path):
    (tmp_path / "MUTAG.zip").write_text("older")
    with pytest.raises(InputError):
        download_tu("MUTAG", tmp_path, serve(b"", status=500))
    assert (tmp_path / "MUTAG.zip").read_text() == "older"


def test_offline_the_address_and_the_place_are_named(serve, tmp_path):
    with pytest.raises(InputError) as caught:
        download_tu("NCI1", tmp_path, "http://127.0.0.1:9")
    assert "http://127.0.0.1:9/NCI1.zip" in str(caught.value)
    assert f"put it at {tmp_path / 'NCI1.zip'}" in str(caught.value)


def test_a_root_that_cannot_be_written_is_said(serve, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot write"):
        download_tu("MUTAG", tmp_path / "file", serve(MUTAG))


def repack(change: Callable[[str, bytes], bytes]) -> bytes:
    """MUTAG in another folder, each file changed."""
    content = io.BytesIO()
    with zipfile.ZipFile(EMBEDDED / "MUTAG.zip") as old, zipfile.ZipFile(content, "w") as new:
        for name in old.namelist():
            new.writestr(f"other/{name.rpartition('/')[2]}", change(name, old.read(name)))
    return content.getvalue()


def test_known_data_sets_are_compared_with_their_digest(serve, tmp_path, caplog):
    """However they are packed, and whatever the line ends; one changed label is refused."""
    same = repack(lambda name, text: text.replace(b"\n", b"\r\n"))
    assert len(load_dataset(download_tu("MUTAG", tmp_path, serve(same)))) == 188
    assert "Nobody publishes" not in caplog.text
    (tmp_path / "MUTAG.zip").unlink()
    changed = repack(lambda name, text: b"-1" + text[1:] if name.endswith("graph_labels.txt") else text)
    with pytest.raises(InputError, match=r"MUTAG\.zip: not the MUTAG that mnagt knows .*; fetch it elsewhere"):
        download_tu("MUTAG", tmp_path, serve(changed))
    assert not list(tmp_path.iterdir())


@pytest.mark.real_data
@pytest.mark.parametrize("name", sorted(DIGESTS))
def test_the_digests_are_those_of_the_real_files(name, data_root):
    path = locate_dataset(name, data_root)
    assert path is not None
    files = find_ogb_files(path) if name.startswith("ogbg") else find_tu_files(path)
    assert digest_contents(files) == DIGESTS[name]


@pytest.mark.parametrize("name", ["COLLAB", "ENZYMES"])
def test_a_named_data_set_that_is_not_there_is_fetched(serve, tmp_path, monkeypatch, caplog, name):
    content = zip_of(
        **{f"{name}_A": "1, 2\n", f"{name}_graph_indicator": "1\n1\n2\n", f"{name}_graph_labels": "0\n1\n"}
    )
    monkeypatch.setattr("mnagt.data.download.download_tu", partial(download_tu, site=serve(content)))
    dataset = load_dataset(name, root=tmp_path)
    assert dataset.sizes.tolist() == [2, 1]
    assert (tmp_path / f"{name}.zip").exists()
    assert f"Nobody publishes a digest of it to compare: its SHA-256 is {sha256(content).hexdigest()}" in caplog.text


def test_a_set_of_ogb_is_fetched_into_the_root(serve, tmp_path, monkeypatch):
    files = ogb_files.zipped(ogb_files.folder(tmp_path / "files"), tmp_path / "files.zip", "lipophilicity/")
    monkeypatch.setattr("mnagt.data.download.download_ogb", partial(download_ogb, site=serve(files.read_bytes())))
    dataset = load_dataset("ogbg-mollipo", root=tmp_path / "root")
    assert (dataset.name, dataset.task.metric, len(dataset)) == ("ogbg-mollipo", "rmse", 4)
    assert (tmp_path / "root" / "ogbg-mollipo.zip").exists()


def test_a_zip_of_something_else_is_no_set_of_ogb(serve, tmp_path):
    with pytest.raises(InputError, match=r"no num-node-list\.csv\.gz in the zip that came; fetch it elsewhere"):
        download_ogb("ogbg-molhiv", "csv_mol_download/hiv.zip", tmp_path, serve(MUTAG))
