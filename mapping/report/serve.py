"""A server, for this host alone, of the page about runs that go on."""

from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock

from parallel_core.report import Run, html, page_of
from parallel_core.report.document import as_json

HOST = "127.0.0.1"


class Watched:
    """The page of runs, and its data; `data` reads the runs' files again, and makes the data in its first call, then
    only if one of them may have changed."""

    def __init__(self, runs: Sequence[Run], script: str) -> None:
        self._runs, self._script = runs, script
        self._lock = Lock()
        self._data, self._version = "", 0

    def page(self) -> str:
        """The page as HTML, by what was read last of the files."""
        with self._lock:
            return html(page_of(self._runs), self._script, watched=True)

    def data(self) -> tuple[str, str]:
        """The data of the page as JSON, and its version, for an ETag. Raises OSError if a file of a run cannot be
        read."""
        with self._lock:
            if any([run.refresh() for run in self._runs]) or not self._data:
                self._data, self._version = as_json(page_of(self._runs)), self._version + 1
            return self._data, f'"{self._version}"'


class Server(ThreadingHTTPServer):
    """A server on 127.0.0.1 that gives the page and its data only to requests whose Host is 127.0.0.1 or localhost,
    with its port."""

    def __init__(self, watched: Watched, port: int) -> None:
        super().__init__((HOST, port), Handler)
        self.watched = watched
        self.names = {f"{name}:{self.server_port}" for name in (HOST, "localhost")}


class Handler(BaseHTTPRequestHandler):
    """The answers to requests: `/` is the page, `/data.json` its data."""

    server: Server

    def do_GET(self) -> None:
        """Answer a request; 304 if the client has the data already, 403 for another host's name, 404 for another path,
        503 if a run's file cannot be read."""
        if self.headers.get("Host") not in self.server.names:
            self.send_error(HTTPStatus.FORBIDDEN)
        elif self.path == "/":
            self._send(self.server.watched.page(), "text/html; charset=utf-8")
        elif self.path == "/data.json":
            self._send_data()
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _send_data(self) -> None:
        try:
            data, version = self.server.watched.data()
        except OSError as error:  # the folder may be missing for a moment
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, str(error.strerror))
            return
        if self.headers.get("If-None-Match") == version:
            self.send_response(HTTPStatus.NOT_MODIFIED)
            self.end_headers()
        else:
            self._send(data, "application/json", ETag=version)

    def _send(self, text: str, kind: str, **headers: str) -> None:
        content = text.encode()
        self.send_response(HTTPStatus.OK)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing about a request."""


def serve(runs: Sequence[Run], script: str, port: int) -> int:
    """Serve the page of runs on `port` (0: a free one) until Ctrl-C; returns the exit code 0. script: the text of
    plotly.js. Raises OSError for a port that is taken or not allowed."""
    with Server(Watched(runs, script), port) as server:
        print(f"http://{HOST}:{server.server_port}/  (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0
