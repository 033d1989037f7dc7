"""Where the data lies, and that a download leaves whole files or none. No test uses the network."""

from __future__ import annotations

import gzip
import hashlib
import socket
import zipfile
from pathlib import Path
from urllib.error import URLError

import pytest

from mrfquant.data import data_root
from mrfquant.data.root import TIMEOUT, Download, fetch, read_checked
from mrfquant.data.torchvision_import import import_torchvision
from mrfquant.errors import BadInput


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


@pytest.fixture
def utils():
    return import_torchvision().datasets.utils


@pytest.fixture
def server(tmp_path, monkeypatch, utils) -> Path:
    """A folder whose files torchvision finds under http://server/, without a network."""
    folder = tmp_path / "server"
    folder.mkdir()

    def retrieve(url: str, filename: str) -> None:
        assert socket.getdefaulttimeout() == TIMEOUT
        Path(filename).write_bytes((folder / url.rsplit("/", 1)[1]).read_bytes())

    monkeypatch.setattr(utils, "_get_redirect_url", lambda url, max_hops: url)
    monkeypatch.setattr(utils, "_urlretrieve", retrieve)
    return folder


def zip_on(server: Path, **files: bytes) -> str:
    """Put an archive of pack/NAME files on the server; its md5."""
    with zipfile.ZipFile(server / "pack.zip", "w") as archive:
        for name, content in files.items():
            archive.writestr(f"pack/{name}", content)
    return md5((server / "pack.zip").read_bytes())


def test_root_is_the_given_then_the_variable_then_the_cache(monkeypatch):
    monkeypatch.setenv("MRFQUANT_DATA", "/from/variable")
    assert data_root("/given") == Path("/given")
    assert data_root(Path("~/given")) == Path.home() / "given"
    assert data_root(None) == Path("/from/variable")
    monkeypatch.delenv("MRFQUANT_DATA")
    assert data_root() == Path.home() / ".cache" / "mrfquant" / "data"


def test_archive_is_unpacked_in_its_place_and_nothing_else_remains(tmp_path, server):
    root = tmp_path / "root"
    archive = zip_on(server, a=b"alpha", b=b"beta", other=b"not asked for")
    fetch(root, [Download("http://server/pack.zip", archive, ("pack/a", "pack/b"))])
    assert (root / "pack" / "a").read_bytes() == b"alpha"
    assert (root / "pack" / "b").read_bytes() == b"beta"
    assert sorted(path.name for path in root.rglob("*")) == ["a", "b", "pack"]
    assert socket.getdefaulttimeout() is None


def test_compressed_file_is_unpacked_into_its_folder(tmp_path, server):
    packed = gzip.compress(b"content")
    (server / "file.gz").write_bytes(packed)
    fetch(tmp_path, [Download("http://server/file.gz", md5(packed), ("deep/er/file",), unpack_in="deep/er")])
    assert (tmp_path / "deep" / "er" / "file").read_bytes() == b"content"


def test_a_whole_folder_can_be_provided(tmp_path, server):
    fetch(tmp_path, [Download("http://server/pack.zip", zip_on(server, a=b"alpha", b=b"beta"), ("pack",))])
    assert sorted(path.name for path in (tmp_path / "pack").iterdir()) == ["a", "b"]


def test_present_files_are_kept_and_only_the_missing_come(tmp_path, server):
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "a").write_bytes(b"mine")
    fetch(tmp_path, [Download("http://server/pack.zip", zip_on(server, a=b"alpha", b=b"beta"), ("pack/a", "pack/b"))])
    assert (tmp_path / "pack" / "a").read_bytes() == b"mine"
    assert (tmp_path / "pack" / "b").read_bytes() == b"beta"


def test_nothing_is_downloaded_when_nothing_is_missing(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr("mrfquant.data.root.import_torchvision", lambda: pytest.fail("torchvision was imported"))
    fetch(tmp_path, [Download("http://server/pack.zip", "", ("file",))])


def test_altered_archive_leaves_nothing(tmp_path, server):
    root = tmp_path / "root"
    zip_on(server, a=b"alpha")
    with pytest.raises(BadInput, match="corrupted"):
        fetch(root, [Download("http://server/pack.zip", "0" * 32, ("pack/a",))])
    assert list(root.iterdir()) == []


@pytest.mark.parametrize(
    "failure", [URLError("no route"), RuntimeError("corrupted"), TimeoutError("timed out"), KeyboardInterrupt()]
)
def test_interrupted_download_leaves_nothing(tmp_path, monkeypatch, utils, failure):
    def partial(url, download_root, *args, **kwargs):
        Path(download_root, "pack.zip").write_bytes(b"half")
        raise failure

    monkeypatch.setattr(utils, "download_and_extract_archive", partial)
    with pytest.raises((BadInput, KeyboardInterrupt)):
        fetch(tmp_path, [Download("http://server/pack.zip", "", ("pack/a",))])
    assert list(tmp_path.iterdir()) == []
    assert socket.getdefaulttimeout() is None


def test_failed_download_says_what_is_missing_and_what_to_do(tmp_path, monkeypatch, utils):
    def fail(*args, **kwargs):
        raise URLError("no route")

    monkeypatch.setattr(utils, "download_and_extract_archive", fail)
    downloads = [Download("http://server/1.gz", "", ("one", "two")), Download("http://server/2.gz", "", ("three",))]
    (tmp_path / "two").touch()
    with pytest.raises(BadInput) as caught:
        fetch(tmp_path, downloads)
    message = str(caught.value)
    assert "\n" not in message
    for part in (
        f"{tmp_path} lacks one, three,",
        "http://server/1.gz, http://server/2.gz",
        "no route",
        "gin/ref_lenet300_digits.gin",
    ):
        assert part in message


def test_checked_file_is_read_plain_or_compressed(tmp_path):
    content = bytes(range(10))
    plain, packed = tmp_path / "file", tmp_path / "file.gz"
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content))
    for path in (plain, packed):
        assert read_checked(path, 10, md5(content)).tolist() == list(range(10))


def test_file_that_is_not_as_published_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"abcd")
    with pytest.raises(BadInput, match="file holds 4 bytes instead of 5: delete it"):
        read_checked(path, 5)
    with pytest.raises(BadInput, match=r"file has been altered, its md5 is not 0+: delete it"):
        read_checked(path, 4, "0" * 32)


def test_compressed_file_cut_short_is_refused(tmp_path):
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(bytes(1000))[:-9])
    with pytest.raises(BadInput, match=r"file\.gz cannot be read .*: delete it"):
        read_checked(path, 1000)


def test_a_home_that_is_not_known_is_told(monkeypatch):
    monkeypatch.delenv("MRFQUANT_DATA", raising=False)

    def unknown(path):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", unknown)
    with pytest.raises(BadInput, match="give another one by --data"):
        data_root()
