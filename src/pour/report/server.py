"""`pour view`: show a folder of reports in the browser, by default on this machine only."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from mimetypes import MimeTypes
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from pour._version import __version__
from pour.errors import PourError, UsageError
from pour.report.folder import ReportFolder
from pour.report.page.rendering import render

if TYPE_CHECKING:
    import os

__all__ = ["ReportServer"]

_SUFFIXES = (".html", ".json", ".svg", ".png", ".pdf", ".csv", ".txt")
_TYPES = MimeTypes()
# The pages in the folder can come from other people, so they can load nothing.
_FILE_POLICY = (
    "default-src 'none'; img-src 'self' data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)


class ReportServer(ThreadingHTTPServer):
    """An HTTP server for one folder of reports: an index, the pages, and comparisons of several reports.

    Args:
        folder: Folder with reports at any depth. No file outside it is sent.
        port: Port; 0 selects a free port.
        host: Address to listen on.
        allow_remote: Allow an address that other machines can reach.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, ReportServer(folder) as server:
        ...     server.url.startswith("http://127.0.0.1:")
        True
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        port: int = 0,
        host: str = "127.0.0.1",
        allow_remote: bool = False,
    ) -> None:
        self.reports = ReportFolder(Path(folder))
        if not 0 <= port <= 65535:
            raise UsageError(f"A port is a number from 0 to 65535, not {port}.")
        self.loopback = _is_loopback(host)
        if not self.loopback and not allow_remote:
            raise UsageError(
                f"Other machines could read the reports at {host}; use 127.0.0.1, or allow them with allow_remote=True."
            )
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            reason = error.strerror or error
            raise PourError(f"Cannot listen on {host} port {port}: {reason}; try another port.") from error

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore closed connections; report any other error."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    def run(self) -> None:
        """Answer requests until interrupted (Ctrl-C)."""
        with contextlib.suppress(KeyboardInterrupt):
            self.serve_forever(poll_interval=0.2)

    @property
    def url(self) -> str:
        """Address of the index."""
        host, port = str(self.server_address[0]), self.server_address[1]
        return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer
    server_version = "pour"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        try:
            host = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
            address = urlsplit(self.path)
        except ValueError:
            return self._fail(HTTPStatus.BAD_REQUEST, "This is not a valid address.")
        # A foreign page can define a name for this machine, so only requests to loopback names are answered.
        if self.server.loopback and not _is_loopback(host):
            return self._fail(HTTPStatus.FORBIDDEN, "This server answers to loopback names only.")
        path = unquote(address.path)
        if path == "/":
            return self._page("index.html.j2", reports=self.server.reports.reports())
        if path == "/compare":
            return self._compare(parse_qs(address.query).get("run", []))
        if path.startswith("/files/"):
            return self._file(path.removeprefix("/files/"))
        return self._fail(HTTPStatus.NOT_FOUND, "There is nothing at this address.")

    do_HEAD = do_GET  # noqa: N815

    def _compare(self, names: list[str]) -> None:
        try:
            comparison = self.server.reports.side_by_side(names)
        except UsageError as error:
            return self._fail(HTTPStatus.BAD_REQUEST, str(error))
        return self._page("compare.html.j2", **comparison)

    def _file(self, relative: str) -> None:
        path = self.server.reports.inside(relative)
        if path is None or path.suffix not in _SUFFIXES:
            return self._fail(HTTPStatus.NOT_FOUND, "There is no such report.")
        try:
            content = path.read_bytes()
        except OSError:
            return self._fail(HTTPStatus.NOT_FOUND, "The report cannot be read.")
        return self._send(HTTPStatus.OK, path.name, content, policy=_FILE_POLICY)

    def _page(self, template: str, *, status: HTTPStatus = HTTPStatus.OK, **context: Any) -> None:
        folder = self.server.reports.root.name
        text = render(template, scripts=("page.js",), form="self", folder=folder, version=__version__, **context)
        return self._send(status, template.removesuffix(".j2"), text.encode(), policy="frame-ancestors 'none'")

    def _fail(self, status: HTTPStatus, sentence: str) -> None:
        return self._page("problem.html.j2", status=status, title=status.phrase, sentence=sentence)

    def _send(self, status: HTTPStatus, name: str, content: bytes, *, policy: str) -> None:
        self.send_response(status)
        kind = str(_TYPES.guess_type(name)[0])
        headers = {
            "Content-Type": f"{kind}; charset=utf-8" if kind.startswith("text/") else kind,
            "Content-Length": str(len(content)),
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-store",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing, because the terminal shows the address only."""
