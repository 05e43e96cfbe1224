from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import pytest
from report_samples import sample_report

from pour.errors import PourError, UsageError
from pour.report import ReportServer, write_report
from pour.report.folder import ReportFolder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two audits with pages, one without, a page alone, and things that are no reports."""
    folder = tmp_path / "runs"
    for name, methods, shift in (("a", ("pour-p",), 0.0), ("b", ("pour-d",), 0.3), ("deep/c", ("scrub",), 0.1)):
        report = sample_report(methods=methods, shift=shift)
        report.save(folder / f"{name}/report.json")
        if name != "deep/c":
            write_report(report, folder / f"{name}/report.html")
    (folder / "page.html").write_text("<p>alone</p>")
    (folder / "training.json").write_text('{"loss": 1}')
    (folder / "broken.json").write_text("{")
    (folder / "weights.safetensors").write_bytes(b"secret")
    (folder / ".hidden.html").write_text("secret")
    (tmp_path / "outside.html").write_text("secret")
    (folder / "link.html").symlink_to(tmp_path / "outside.html")
    return folder


@contextmanager
def running(folder: Path) -> Iterator[ReportServer]:
    with ReportServer(folder) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(5)
            assert not thread.is_alive()


def get(
    server: ReportServer, path: str, *, method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], str]:
    # http.client sends the path as it is; urllib would tidy a traversal away.
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=5)
    try:
        connection.request(method, path, headers=headers or {})
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read().decode()
    finally:
        connection.close()


def test_finds_reports_at_any_depth_and_nothing_else(runs: Path) -> None:
    found = {entry.name: entry for entry in ReportFolder(runs).reports()}
    assert list(found) == ["a/report", "b/report", "deep/c/report", "page"]
    assert found["a/report"].page == "a/report.html"
    assert found["deep/c/report"].page is None
    assert found["page"].report is None
    assert found["b/report"].report.data.forgotten_names == ("three",)


def test_a_changed_report_is_read_again(runs: Path) -> None:
    folder = ReportFolder(runs)
    before = folder.reports()[0].report
    assert folder.reports()[0].report is before
    sample_report(shift=0.2).save(runs / "a/report.json")
    os.utime(runs / "a/report.json", ns=(1, 1))
    after = folder.reports()[0].report
    assert before is not None
    assert after is not None
    assert after.value("acc_r") == pytest.approx(before.value("acc_r") + 0.2)


def test_index_lists_and_links(runs: Path) -> None:
    with running(runs) as server:
        status, headers, text = get(server, "/")
        assert status == 200
        assert headers["Content-Type"].startswith("text/html")
        assert "default-src &#39;none&#39;" in text
        links = re.findall(r'href="(/files/[^"]+)"', text)
        assert "/files/a/report.html" in links
        for link in links:
            assert get(server, link)[0] == 200
        assert "pour-d" in text
        assert "secret" not in text
        assert text.count('name="run"') == 3


def test_side_by_side_uses_the_comparison_of_reports(runs: Path) -> None:
    with running(runs) as server:
        status, _, text = get(server, f"/compare?run={quote('a/report')}&run={quote('b/report')}&run=deep/c/report")
        assert status == 200
        rows = re.findall(r"<tr>.*?</tr>", text, re.DOTALL)[1:]
        first, other = sample_report(), sample_report(shift=0.3)
        comparison = first.compare(other)
        assert len(rows) == len(comparison.rows)
        for difference, row in zip(comparison.rows, rows, strict=True):
            assert f"{difference.change:+.3f}" in row
            assert ('title="clear"' in row) or not difference.clear
        for wrong in ("run=a/report", "run=a/report&run=nowhere", "run=a/report&run=a/report", ""):
            assert get(server, f"/compare?{wrong}")[0] == 400


def test_reports_of_other_data_are_marked(runs: Path) -> None:
    sample_report(forgotten=(0,)).save(runs / "other.json")
    folder = ReportFolder(runs)
    warning = "These reports are of different data"
    for other, is_marked in (("b/report", False), ("other", True)):
        (comparison,) = folder.side_by_side(["a/report", other])["comparisons"]
        assert comparison.same_data != is_marked
        with running(runs) as server:
            assert (warning in get(server, f"/compare?run=a/report&run={other}")[2]) == is_marked


@pytest.mark.parametrize(
    "path",
    [
        "/files/../outside.html",
        "/files/%2e%2e/outside.html",
        "/files/..%2foutside.html",
        "/files/a/../../outside.html",
        "/files/..%5coutside.html",
        "/files//etc/passwd",
        "/files/%2fetc/passwd",
        "/files/link.html",
        "/files/.hidden.html",
        "/files/weights.safetensors",
        "/files/a",
        "/files/",
        "/files/a%00.html",
        pytest.param("/files/" + "x" * 5000 + ".html", id="long"),
        "/nowhere",
    ],
)
def test_nothing_outside_the_folder_is_sent(path: str, runs: Path) -> None:
    with running(runs) as server:
        status, _, text = get(server, path)
        assert status == 404
        assert "secret" not in text
        assert "root:x" not in text


def test_files_are_sent_with_a_policy_and_head_sends_no_body(runs: Path) -> None:
    with running(runs) as server:
        status, headers, text = get(server, "/files/page.html")
        assert (status, text) == (200, "<p>alone</p>")
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        status, headers, text = get(server, "/files/page.html", method="HEAD")
        assert (status, headers["Content-Length"], text) == (200, "12", "")
        assert get(server, "/", method="POST")[0] == 501


def test_a_foreign_host_name_is_refused(runs: Path) -> None:
    with running(runs) as server:
        port = server.server_address[1]
        for host, status in ((f"evil.example:{port}", 403), (f"localhost:{port}", 200), ("[::1]", 200), ("", 403)):
            assert get(server, "/", headers={"Host": host})[0] == status


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "example.org"])
def test_only_loopback_unless_told(host: str, runs: Path) -> None:
    with pytest.raises(UsageError, match=r"Other machines could read the reports at .*allow_remote=True\.$"):
        ReportServer(runs, host=host)


def test_other_addresses_when_told(runs: Path) -> None:
    with ReportServer(runs, host="0.0.0.0", allow_remote=True) as server:
        assert server.url.startswith("http://0.0.0.0:")


def test_bad_folder_and_port(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder"):
        ReportServer(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="0 to 65535"):
        ReportServer(runs, port=70000)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(PourError, match="try another port"):
            ReportServer(runs, port=taken.getsockname()[1])


def test_serve_ends_cleanly_when_interrupted(runs: Path) -> None:
    code = """
import sys
from pour.report import ReportServer

with ReportServer(sys.argv[1]) as server:
    print(server.url, flush=True)
    server.run()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(runs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A suite that runs in the background of a shell has its interrupts ignored, and hands that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        assert process.stdout is not None
        port = urlsplit(process.stdout.readline().decode().strip()).port
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/")
        assert connection.getresponse().status == 200
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=15)
        assert process.returncode == 0
        assert errors == b""
    finally:
        process.kill()
        process.wait()


def test_empty_folder(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        assert "This folder contains no report" in get(server, "/")[2]


def test_odd_files_and_requests_are_answered(runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (runs / "nested.json").write_text("[" * 100_000)
    (runs / os.fsdecode(b"\xff.html")).write_text("x")
    with running(runs) as server:
        status, _, page = get(server, "/")
        assert status == 200
        assert "deep/c/report" in page
        for request in (b"GET / HTTP/1.1\r\nHost: [\r\n\r\n", b"GET http://[ HTTP/1.1\r\nHost: localhost\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=5) as client:
                client.sendall(request)
                assert client.recv(100).startswith(b"HTTP/1.1 400")
        # A reader who goes away in the middle.
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=5) as client:
                client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert get(server, "/")[0] == 200
    assert "Traceback" not in capfd.readouterr().err
