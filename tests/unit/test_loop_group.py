"""Loops in the threads of one process: health checks, a watchdog, one shutdown."""

import json
import os
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from tests.until import until

from redrive import Broker, connect
from redrive.mailbox import InvalidParameterError, LoopGroup, Mailbox, MainLoop, MainLoopRequest, MainLoopResult

Ask = MainLoopRequest[str]
Answer = MainLoopResult[int]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with connect("memory://") as broker:
        yield broker


def loop_on(broker: Broker, name: str, handler: Any = len) -> MainLoop[str, int]:
    return MainLoop(requests=Mailbox(broker, name, body=Ask, reply=Answer), handler=handler)


def get(port: int | None, path: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


class Running:
    """A group that runs in another thread."""

    def __init__(self, group: LoopGroup) -> None:
        self.group = group
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.group.run()
        except BaseException as error:
            self.error = error

    def __enter__(self) -> LoopGroup:
        self.thread.start()
        until(lambda: self.group.is_ready)
        return self.group

    def __exit__(self, *error: object) -> None:
        assert self.group.shutdown()
        self.thread.join(30)
        assert not self.thread.is_alive()


def test_loops_handle_requests_side_by_side_until_one_shutdown(broker: Broker) -> None:
    first, second = loop_on(broker, "first"), loop_on(broker, "second", lambda text: -len(text))
    with Running(LoopGroup([first, second])):
        assert first.mailbox.request(MainLoopRequest("abc"), "30s").output == 3
        assert second.mailbox.request(MainLoopRequest("abc"), "30s").output == -3
    assert (first.running, second.running) == (False, False)


def test_health_says_live_ready_and_degraded(broker: Broker) -> None:
    dead: Mailbox[int, None] = Mailbox(broker, "first-dlq", body=int)
    group = LoopGroup([loop_on(broker, "first")], health_port=0, dlq=[dead], dlq_threshold=2)
    with Running(group):
        for path in ("/health/live", "/health/ready"):
            status, report = get(group.health_port, path)
            assert (status, report["status"]) == (200, "healthy")
            assert report["dlq"] == {"name": "first-dlq", "depth": 0, "threshold": 2}
            assert [(loop["mailbox"], loop["running"]) for loop in report["loops"]] == [("first", True)]
        dead.send(1)
        dead.send(2)
        assert get(group.health_port, "/health/ready")[1]["status"] == "degraded"
        assert get(group.health_port, "/else")[0] == 404
        assert group.loops[0].shutdown()
        status, report = get(group.health_port, "/health/ready")
        assert (status, report["status"]) == (503, "unhealthy")
    assert group.health_port is None


def test_watchdog_ends_the_process_when_a_loop_hangs(broker: Broker) -> None:
    go, hung = threading.Event(), threading.Event()

    def hang(text: str) -> int:
        go.wait(30)
        return 0

    loop = loop_on(broker, "first", hang)
    group = LoopGroup([loop], watchdog_threshold=0.05, watchdog_interval=0.01, terminate=hung.set)
    loop.mailbox.send(MainLoopRequest("x"))
    with Running(group):
        assert hung.wait(30)
        assert not group.is_alive
        go.set()


def test_loop_that_cannot_start_ends_the_others_and_its_error_is_raised(broker: Broker) -> None:
    broken = loop_on(broker, "broken")
    broken.mailbox.close()
    good = loop_on(broker, "good")
    with pytest.raises(Exception, match="closed"):
        LoopGroup([good, broken]).run()
    assert not good.running
    with pytest.raises(InvalidParameterError):
        LoopGroup([])


def test_sigterm_is_one_shutdown_for_all_and_the_handler_of_before_comes_back(broker: Broker) -> None:
    loop = loop_on(broker, "first")
    group = LoopGroup([loop])
    before = signal.getsignal(signal.SIGTERM)

    def end() -> None:
        until(lambda: group.is_ready)
        os.kill(os.getpid(), signal.SIGTERM)

    killer = threading.Thread(target=end)
    killer.start()
    group.run()
    killer.join()
    assert not loop.running
    assert signal.getsignal(signal.SIGTERM) is before
