"""What may stand before servers of HTTP: a balancer that takes turns, a gateway that answers by itself."""

from __future__ import annotations

import http.client
import itertools
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

Given = tuple[int, str, bytes]
"""A status, a content type, a body."""
Meddle = Callable[[Callable[[], Given]], Given | None]
"""Called for a commit with what forwards it: gives what is answered. None: the connection is closed instead."""


class Front(ThreadingHTTPServer):
    """Forwards each request to the next of some servers, in turns. `meddle` sees to the next commit, once."""

    daemon_threads = True

    def __init__(self, *urls: str) -> None:
        self._turns = itertools.cycle(urls)
        self.meddle: Meddle | None = None
        self.always: Meddle | None = None
        """The same for every commit."""
        self.asked: Counter[str] = Counter()
        """How often each route was."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, path: str, headers: dict[str, str], body: bytes) -> Given | None:
        route = path.rpartition("/")[2]
        self.asked[route] += 1
        meddle: Meddle | None = None
        if route == "store.commit":
            meddle, self.meddle = self.meddle or self.always, None
        if meddle is None:
            return self._forward(path, headers, body)
        return meddle(lambda: self._forward(path, headers, body))

    def _forward(self, path: str, headers: dict[str, str], body: bytes) -> Given:
        parts = urlsplit(next(self._turns))
        line = http.client.HTTPConnection(parts.netloc, timeout=60)
        try:
            line.request("POST", parts.path + path, body, headers)
            response = line.getresponse()
            return response.status, response.headers["content-type"], response.read()
        finally:
            line.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asked is gone."""

    def __exit__(self, *args: object) -> None:
        self.shutdown()
        self._thread.join()
        super().__exit__(*args)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_POST(self) -> None:
        front: Any = self.server
        body = self.rfile.read(int(self.headers["content-length"]))
        kept = ("content-type", "redrive-namespace", "authorization")
        headers = {name: self.headers[name] for name in kept if name in self.headers}
        given = front.answer(self.path, headers, body)
        if given is None:
            self.close_connection = True
            return
        status, content_type, told = given
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    def log_message(self, format: str, *args: Any) -> None:
        pass
