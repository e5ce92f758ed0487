"""Servers that refuse: HTTP, which answers with the status in the path, and SMTP, with the codes in its table."""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
from collections.abc import Iterator, Mapping
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.clients.report import NOW

RETRY_AFTER = {429: "7", 503: formatdate(NOW / 1_000_000 + 120, usegmt=True)}
"""Seconds, and a date two minutes from now."""


class _Http(BaseHTTPRequestHandler):
    """`/429/some_code/…` is answered with this status, and with this code as each of the clients expects it."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        _, first, code, *_ = f"{self.path}//".split("/")
        if first == "close":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        body = json.dumps({"__type": code, "error": {"message": "no", "type": code, "code": code}}).encode()
        self.send_response(int(first))
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if int(first) in RETRY_AFTER:
            self.send_header("Retry-After", RETRY_AFTER[int(first)])
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


_USUAL = {"EHLO": "250-localhost\r\n250 AUTH PLAIN", "DATA": "354 go on", "QUIT": "221 bye"}


class _Smtp(socketserver.StreamRequestHandler):
    """Answers each command with what the table of the server has for it, else with 250."""

    def handle(self) -> None:
        table: Mapping[str, str] = self.server.table  # type: ignore[attr-defined]
        self._say(table.get("CONNECT", "220 ready"))
        while line := self.rfile.readline().decode():
            command = line.split()[0].upper() if line.split() else ""
            answer = table.get(f"RCPT {line.partition('<')[2].partition('@')[0]}") if command == "RCPT" else None
            answer = answer or table.get(command) or _USUAL.get(command, "250 ok")
            if answer == "close":
                return
            self._say(answer)
            if command == "DATA" and answer.startswith("354"):
                while self.rfile.readline().strip() != b".":
                    pass
                self._say(table.get("END", "250 ok"))

    def _say(self, answer: str) -> None:
        self.wfile.write(f"{answer}\r\n".encode())


class _SmtpServer(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, table: Mapping[str, str]) -> None:
        self.table = table
        super().__init__(("127.0.0.1", 0), _Smtp)


@contextlib.contextmanager
def http_server() -> Iterator[str]:
    """The URL of a server that refuses everything."""
    with _running(ThreadingHTTPServer(("127.0.0.1", 0), _Http)) as port:
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def smtp_server(**table: str) -> Iterator[int]:
    """The port of a server with these answers by command: `RCPT_someone` is for one recipient, `END` for a message."""
    with _running(_SmtpServer({name.replace("_", " "): answer for name, answer in table.items()})) as port:
        yield port


@contextlib.contextmanager
def _running(server: socketserver.BaseServer) -> Iterator[int]:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]  # type: ignore[misc]
    finally:
        server.shutdown()
        server.server_close()


_reserved: list[socket.socket] = []


def closed_port() -> int:
    """A port that nothing listens on, and that no other process gets as long as this one runs."""
    found = socket.socket()
    found.bind(("127.0.0.1", 0))
    _reserved.append(found)
    port: int = found.getsockname()[1]
    return port
