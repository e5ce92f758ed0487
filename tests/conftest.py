import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest
from hypothesis import settings
from tests.servers.postgres import Server
from tests.servers.redis import Cluster as RedisCluster
from tests.servers.redis import Server as RedisServer
from tests.sizes import THOROUGH

pytest_plugins = ["tests.run_report", "tests.servers.failure_log"]

# In memory a sync costs nothing. What a power cut does is shown by faults of the tests' own, whatever the disk.
_MEMORY, _ENOUGH_BYTES = "/dev/shm", 4 << 30
if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ENOUGH_BYTES:
    os.environ["TMPDIR"] = tempfile.tempdir = _MEMORY

# Hundreds of tests start a Python of their own: without bytecode it compiles all of Redrive before it does anything.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Where tests run in parallel their workers have one, and what commands print would be cut to it.
os.environ.pop("COLUMNS", None)

# A shell starts what it runs in the background deaf to Ctrl-C, and Python then leaves it so, as do its children.
signal.signal(signal.SIGINT, signal.default_int_handler)

# `ci` finds the same things on every run; `thorough` looks for new ones.
settings.register_profile("ci", derandomize=True, max_examples=30, deadline=None, database=None)
settings.register_profile("thorough", max_examples=1000, deadline=None, print_blob=True)
settings.load_profile("thorough" if THOROUGH else "ci")


def pytest_collection_finish() -> None:
    """What was collected lives as long as the run: no garbage collection goes through all of it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """One server for all tests of a process; each test has a schema of its own."""
    server = Server()
    yield server
    server.destroy()


@pytest.fixture
def postgres_url(postgres: Server) -> Iterator[str]:
    """A schema of its own for each test, which is gone afterwards."""
    schema = f"test_{uuid4().hex}"
    yield f"{postgres.url}?schema={schema}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One server for all tests of a process; each test has a prefix of its own."""
    server = RedisServer()
    yield server
    server.destroy()


@pytest.fixture
def redis_url(redis_server: RedisServer) -> Iterator[str]:
    """Keys of its own for each test, which are gone afterwards."""
    prefix = f"test_{uuid4().hex}"
    yield f"{redis_server.url}?prefix={prefix}"
    redis_server.remove(prefix)


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    """Three servers that share the slots, for all tests of a process."""
    cluster = RedisCluster()
    yield cluster
    cluster.destroy()


@pytest.fixture
def redis_cluster_url(redis_cluster: RedisCluster) -> Iterator[str]:
    prefix = f"test_{uuid4().hex}"
    yield f"{redis_cluster.url}?prefix={prefix}"
    for server in redis_cluster.servers:
        server.remove(prefix)
