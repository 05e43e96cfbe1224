import errno
import hashlib
import io
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from tiny_archives import random_images

import pour.data.registry as registry
from pour.data import load_dataset
from pour.data.download import fetch
from pour.data.info import RemoteFile
from pour.errors import PourError, UsageError

pytest.importorskip("pooch")

CONTENT = np.random.default_rng(0).bytes(2_000_000)


class Server(ThreadingHTTPServer):
    """Serves one file; can hang up early or pretend not to know ranges."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.hang_up_after: int | None = None
        self.ranges = True
        self.status = 200
        self.asked: list[str | None] = []

    def handle_error(self, request, client_address):
        """A connection that the test broke off is no news."""


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        wanted = self.headers.get("Range")
        self.server.asked.append(wanted)
        content = self.server.content
        if self.server.status != 200:
            self.send_error(self.server.status)
            return
        start = 0
        if wanted and self.server.ranges:
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])
            if start >= len(content):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        stop = len(content) if self.server.hang_up_after is None else start + self.server.hang_up_after
        self.wfile.write(content[start:stop])

    def log_message(self, *_):
        """Keep quiet."""


@pytest.fixture
def server():
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def remote(server) -> RemoteFile:
    digest = hashlib.sha256(CONTENT).hexdigest()
    url = f"http://127.0.0.1:{server.server_port}/set.bin"
    return RemoteFile(url=url, filename="set.bin", checksum=f"sha256:{digest}")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize("algorithm", ["sha256", "md5"])
def test_a_file_arrives_whole_and_is_not_fetched_twice(tmp_path, server, remote, algorithm):
    file = RemoteFile(
        url=remote.url, filename="set.bin", checksum=f"{algorithm}:{hashlib.new(algorithm, CONTENT).hexdigest()}"
    )
    path = fetch(file, tmp_path / "new", progress=False)
    assert path.read_bytes() == CONTENT
    assert fetch(file, tmp_path / "new", progress=False) == path
    assert names(tmp_path / "new") == ["set.bin"]
    assert server.asked == [None]


def test_a_broken_download_goes_on_where_it_stopped(tmp_path, server, remote):
    server.hang_up_after = 600_000
    with pytest.raises(PourError, match=re.escape(remote.url)):
        fetch(remote, tmp_path, progress=False)
    assert names(tmp_path) == [".set.bin.part"]
    got = (tmp_path / ".set.bin.part").stat().st_size
    assert 0 < got <= 600_000
    server.hang_up_after = None
    assert fetch(remote, tmp_path, progress=False).read_bytes() == CONTENT
    assert server.asked == [None, f"bytes={got}-"]
    assert names(tmp_path) == ["set.bin"]


def test_a_server_without_ranges_starts_again(tmp_path, server, remote):
    (tmp_path / ".set.bin.part").write_bytes(b"x" * 1000)
    server.ranges = False
    assert fetch(remote, tmp_path, progress=False).read_bytes() == CONTENT


def test_a_part_that_is_complete_needs_nothing_more(tmp_path, server, remote):
    (tmp_path / ".set.bin.part").write_bytes(CONTENT)
    assert fetch(remote, tmp_path, progress=False).read_bytes() == CONTENT
    assert names(tmp_path) == ["set.bin"]


@pytest.mark.parametrize("part", [None, b"not the beginning of it", CONTENT + b"too long"])
def test_a_wrong_checksum_leaves_no_file(tmp_path, server, remote, part):
    if part is None:
        server.content = CONTENT[:-1] + b"?"
    else:
        (tmp_path / ".set.bin.part").write_bytes(part)
    with pytest.raises(PourError, match=f"The file from {remote.url} has another checksum than sha256"):
        fetch(remote, tmp_path, progress=False)
    assert names(tmp_path) == []
    server.content = CONTENT
    assert fetch(remote, tmp_path, progress=False).read_bytes() == CONTENT


def test_a_refusal_is_one_sentence(tmp_path, server, remote):
    server.status = 404
    with pytest.raises(PourError, match=r"the server answered 404 Not Found.*put it at .*set\.bin"):
        fetch(remote, tmp_path, progress=False)
    assert names(tmp_path) == []


def test_no_server_is_one_sentence_with_the_address(tmp_path, server, remote):
    server.shutdown()
    server.server_close()
    with pytest.raises(PourError) as caught:
        fetch(remote, tmp_path, progress=False)
    assert remote.url in str(caught.value)
    assert "no connection" in str(caught.value)
    assert str(tmp_path / "set.bin") in str(caught.value)
    assert names(tmp_path) == []


def test_a_full_disk_leaves_no_half_written_file(tmp_path, server, remote, monkeypatch):
    class Full(io.FileIO):
        def write(self, data):
            if self.tell() > 500_000:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    opened = Path.open
    monkeypatch.setattr(
        Path, "open", lambda path, mode="r", *a, **k: Full(path, "w") if mode == "wb" else opened(path, mode, *a, **k)
    )
    with pytest.raises(PourError, match="No space left on device; free space or choose another folder"):
        fetch(remote, tmp_path, progress=False)
    monkeypatch.undo()
    assert names(tmp_path) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_truly_full_device_is_one_sentence(tmp_path, server, remote):
    (tmp_path / ".set.bin.part").symlink_to("/dev/full")
    with pytest.raises(PourError, match="No space left on device"):
        fetch(remote, tmp_path, progress=False)
    assert names(tmp_path) == []


def test_without_pooch_the_extra_and_the_address_are_named(tmp_path, remote, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(UsageError, match=rf'pip install "pour-unlearning\[download\]".*{re.escape(remote.url)}'):
        fetch(remote, tmp_path, progress=False)


def test_the_progress_bar_goes_to_stderr(tmp_path, remote, capsys, monkeypatch):
    monkeypatch.setattr("pour._progress._SECONDS_BETWEEN_LINES", 0)
    fetch(remote, tmp_path, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "set.bin" in err


def test_loading_downloads_only_when_asked(tmp_path, server, monkeypatch):
    buffer = io.BytesIO()
    arrays = {f"{split}_images": random_images(2, 28)[..., 0] for split in ("train", "val", "test")}
    np.savez(buffer, **arrays, **{f"{split}_labels": np.array([[0], [1]]) for split in ("train", "val", "test")})
    server.content = buffer.getvalue()
    entry = registry._DATASETS["pneumoniamnist"]
    file = RemoteFile(
        url=f"http://127.0.0.1:{server.server_port}/p.npz",
        filename="pneumoniamnist.npz",
        checksum=f"md5:{hashlib.md5(server.content).hexdigest()}",
    )
    from dataclasses import replace

    monkeypatch.setitem(registry._DATASETS, "pneumoniamnist", replace(entry, info=replace(entry.info, files=(file,))))
    with pytest.raises(UsageError, match=r"p\.npz"):
        load_dataset("pneumoniamnist", tmp_path)
    assert server.asked == []
    assert load_dataset("pneumoniamnist", tmp_path, download=True).image_shape == (28, 28, 1)
    load_dataset("pneumoniamnist", tmp_path, download=True)
    assert len(server.asked) == 1
