"""`FrozenStore`: the contract, spoken to a process that runs the SQLite store of an earlier commit."""

from __future__ import annotations

import fcntl
import io
import os
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from tests.simulation.frozen.server import LENGTH

from benchmarks.peers.environment import interpreter
from redrive.clock import Clock, Instant
from redrive.contract import Call, Query
from redrive.contract.item_calls import Put
from redrive.model.item import Receipt
from redrive.store import Commit, Durability
from redrive.wire.error_codec import SentError, decode_error
from redrive.wire.messages import CommitRequest, read_commit
from redrive.wire.result_codec import decode_answer, encode

COMMIT = "f7986d81dabf1da14245cdfad438656345d98f25"
"""The last one at which the SQL stores had all rules in SQL."""
ROOT = Path(__file__).resolve().parents[3]
CACHE = ROOT / ".bench" / "frozen"
SERVER = Path(__file__).parent / "server.py"
_decode_sent = msgspec.msgpack.Decoder(SentError).decode


class FrozenProcess:
    """The process, in a separate environment. It serves one store at a time."""

    def __init__(self) -> None:
        CACHE.mkdir(parents=True, exist_ok=True)
        with (CACHE / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another comparison may begin too
            source, python = _source(), interpreter(SERVER, CACHE)
        self._process = subprocess.Popen(
            [python, SERVER],
            env={**os.environ, "PYTHONPATH": str(source)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def ask(self, operation: str, now: int, body: bytes) -> bytes:
        """One request and its answer. Raises what the store raised."""
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        frame = msgspec.msgpack.encode((operation, now, body))
        requests.write(LENGTH.pack(len(frame)) + frame)
        requests.flush()
        refused, answer = msgspec.msgpack.decode(answers.read(*LENGTH.unpack(answers.read(LENGTH.size))))
        if refused:
            raise decode_error(_decode_sent(answer))
        given: bytes = answer
        return given

    def close(self) -> None:
        """End it."""
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()


class FrozenStore:
    """A file of the frozen store."""

    namespace = "default"

    def __init__(self, process: FrozenProcess, path: Path, clock: Clock, name: str) -> None:
        self.clock = clock
        self.name = name
        self._process = process
        process.ask("open", clock.now(), msgspec.msgpack.encode((str(path), name)))

    def commit(self, calls: Sequence[Call], now: Instant | None = None) -> Commit:
        request = msgspec.msgpack.decode(encode(CommitRequest("", "", list(calls), now)))
        for call in request["calls"]:
            _say_as_it_was(call)
        _, commit = read_commit(calls, self._process.ask("commit", self.clock.now(), encode(request)))
        return commit

    def read(self, query: Query) -> Any:
        return decode_answer(query, self._process.ask("read", self.clock.now(), encode(query)))

    def put_in_transaction(self, connection: Any, put: Put) -> tuple[Receipt, ...]:
        raise NotImplementedError("its transactions are in another process")

    def poll_changes(self) -> tuple[str, ...]:
        return ()

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Nothing else writes to it."""

    def durability(self) -> Durability:
        return Durability("none", "nothing", "everything")

    def warnings(self) -> tuple[str, ...]:
        return ()

    def reopen(self) -> None:
        raise NotImplementedError("the process has one parent")

    def close(self) -> None:
        """The next one closes it."""


def _say_as_it_was(call: dict[str, Any]) -> None:
    """Put a call into the words of the frozen store, where those have changed since."""
    if call.get("outcome_kind") == "extra_failed":
        call |= {"outcome_kind": "failed", "is_counted": False}


def _source() -> Path:
    """The package as it was, unpacked once. It needs a clone that has the commit."""
    home = CACHE / COMMIT
    if not home.exists():
        packed = subprocess.run(["git", "archive", COMMIT, "src/redrive"], cwd=ROOT, capture_output=True)
        if packed.returncode:
            raise SystemExit(
                f"the frozen store is commit {COMMIT[:7]}, and this clone does not have it: "
                f"git fetch --unshallow\n{packed.stderr.decode()}"
            )
        with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
            archive.extractall(home.with_suffix(".partly"), filter="data")
        home.with_suffix(".partly").rename(home)
    return home / "src"
