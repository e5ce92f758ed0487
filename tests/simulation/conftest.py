from collections.abc import Callable, Iterator
from concurrent.futures import Future
from threading import Thread

import pytest
from tests.servers.postgres import Server
from tests.servers.redis import Server as RedisServer

SCHEMA = PREFIX = "simulation"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool:
    """Run a test in a thread of its own: each call of the main thread waits for another one (`signal_shield`).

    That would take a third of the time, and proves nothing about histories.
    """
    done: Future[None] = Future()
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    def run() -> None:
        try:
            done.set_result(pyfuncitem.obj(**arguments))
        except BaseException as error:
            done.set_exception(error)

    Thread(target=run, daemon=True).start()
    done.result()
    return True


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def place(request: pytest.FixtureRequest) -> Iterator[Callable[[str], str]]:
    """Gives the URL of an empty store, for a run that has this folder. The run before is over then."""
    if request.param == "memory":
        yield lambda folder: "memory://"
    elif request.param == "sqlite":
        yield lambda folder: f"sqlite:///{folder}/redrive.db"
    elif request.param == "redis":
        redis: RedisServer = request.getfixturevalue("redis_server")

        def emptied(folder: str) -> str:
            redis.remove(PREFIX)
            return f"{redis.url}?prefix={PREFIX}"

        yield emptied
        emptied("")
    else:
        server: Server = request.getfixturevalue("postgres")

        def empty(folder: str) -> str:
            server.empty(SCHEMA)
            return f"{server.url}?schema={SCHEMA}"

        yield empty


@pytest.fixture
def slower(request: pytest.FixtureRequest) -> int:
    """By what to divide the number of runs: a call to a server takes longer than one to a file."""
    return 3 if request.node.callspec.params["place"] in ("postgres", "redis") else 1
