"""Moves between stores that outlive a process: files and servers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.until import until

from redrive import Broker, connect
from redrive.testing.conformance.actions import kill, values


@pytest.mark.parametrize("direction", ["to the server", "from the server"])
def test_items_go_to_a_server_and_back_by_themselves(tmp_path: Path, postgres_url: str, direction: str) -> None:
    urls = [f"sqlite:///{tmp_path}/jobs.db", postgres_url]
    here, there = urls if direction == "to the server" else urls[::-1]
    with connect(here, store_name="here", stores={"there": there}) as broker:
        other = broker.on_store("there")
        other.create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue@there")
        for n in range(20):
            kill(broker, n)
        until(lambda: other.count(queue="morgue") == 20 and broker.count(status="any") == 0)
        other.redrive([item.id for item in other.find(queue="morgue").items])
        until(lambda: broker.stats("jobs").pending == 20)
        assert sorted(values(broker.lease("jobs", 20))) == list(range(20))
        until(lambda: other.count(status="any") == 0)


def test_another_process_goes_on_after_the_store_was_away(tmp_path: Path) -> None:
    folder = tmp_path / "mounted"
    url = f"sqlite:///{tmp_path}/jobs.db"
    stores = {"there": f"sqlite:///{folder}/there.db"}

    def open_one() -> Broker:
        return connect(url, store_name="here", stores=stores, maintenance=False)

    folder.mkdir()
    with open_one() as broker:
        broker.on_store("there").create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue@there")
    away = folder.rename(tmp_path / "away")
    with open_one() as broker:
        kill(broker, "x")
        assert broker.run_maintenance().moved == 0
        assert "does not exist" in (broker.moves()[0].problem or "")
    away.rename(folder)
    with open_one() as broker:
        assert broker.run_maintenance().moved == 1
        assert broker.on_store("there").count() == 1
