"""`python -m benchmarks.pipelining_attack [CONNECTIONS] [KIBIBYTES]`: how a server answers another client, and how much
memory it takes, while connections without a token send requests of 18 bytes and read no answers, or all of them."""

import contextlib
import http.client
import multiprocessing
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.scenarios.http import free_port

REQUEST = b"GET / HTTP/1.1\r\n\r\n"
SECONDS = 20.0
REST_SECONDS = 5.0


def main() -> None:
    connections, kibibytes = map(int, (*sys.argv[1:], 1000, 256)[:2])
    for reads in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            print(_measured(connections, kibibytes, folder, reads=reads))


def _measured(connections: int, kibibytes: int, folder: str, *, reads: bool) -> str:
    port = free_port()
    command = [sys.executable, "-m", "redrive", "--url", f"sqlite:///{folder}/jobs.db"]
    subprocess.run([*command, "token", "create", "ann", "--role", "admin"], check=True, capture_output=True)
    serve = [*command, "serve", "--port", str(port)]
    server = subprocess.Popen(serve, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    attack = multiprocessing.get_context("spawn").Process(target=_attack, args=(port, connections, kibibytes, reads))
    try:
        while _request(port) is None:
            time.sleep(0.05)
        before, peak, is_over = _resident(server.pid), [0], threading.Event()

        def watch() -> None:
            while not is_over.wait(0.02):
                peak[0] = max(peak[0], _resident(server.pid))

        threading.Thread(target=watch, daemon=True).start()
        attack.start()
        took: list[float] = []
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            took.append(_request(port) or 0.0)
            time.sleep(0.005)
        attack.kill()
        attack.join()
        is_over.set()
        time.sleep(REST_SECONDS)
        cut = statistics.quantiles([seconds * 1000 for seconds in took], n=100)
        return (
            f"{connections:,} connections with {kibibytes} KiB each, answers {'read' if reads else 'not read'}: "
            f"{len(took):,} requests of another client, p50 {cut[49]:.0f} ms, p99 {cut[98]:.0f} ms; "
            f"memory {before} MB before, {peak[0]} MB at most, {_resident(server.pid)} MB after"
        )
    finally:
        server.kill()
        server.wait()


def _attack(port: int, connections: int, kibibytes: int, reads: bool) -> None:
    """Send until this process is killed."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    data = REQUEST * (kibibytes * 1024 // len(REQUEST))
    for _ in range(connections):
        threading.Thread(target=_send, args=(port, data, reads), daemon=True).start()
    threading.Event().wait()


def _send(port: int, data: bytes, reads: bool) -> None:
    connection = socket.create_connection(("127.0.0.1", port))
    if reads:
        threading.Thread(target=_read, args=(connection,), daemon=True).start()
    with contextlib.suppress(OSError):
        connection.sendall(data)
    threading.Event().wait()


def _read(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while connection.recv(1 << 20):
            pass


def _request(port: int) -> float | None:
    """Seconds of a request on a connection of its own; None if nothing listens."""
    began = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=200)
    try:
        connection.request("GET", "/health/live")
        connection.getresponse().read()
    except ConnectionRefusedError:
        return None
    finally:
        connection.close()
    return time.monotonic() - began


def _resident(process: int) -> int:
    """Megabytes of memory."""
    return int(Path(f"/proc/{process}/status").read_text().split("VmRSS:")[1].split()[0]) // 1024


if __name__ == "__main__":
    main()
