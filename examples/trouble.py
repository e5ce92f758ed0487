"""Makes a store with trouble in it, to practise on: `python examples/trouble.py jobs.db`.

It is what `redrive demo --url sqlite:///jobs.db` makes, with the actor "deploy". Of 140 orders and mails, 110 died of
three causes. Everything in docs/guides/on-call.md can be tried on it.
"""

import sys

from redrive import connect
from redrive.cli.demo import fill


def main(path: str = "jobs.db") -> None:
    with connect(f"sqlite:///{path}", actor="deploy", lifecycle=False) as broker:
        fill(broker)
        dead = sum(broker.stats(queue.name).dead_letters for queue in broker.list_queues())
        print(f"{path}: {dead} dead letters in {len(broker.groups())} groups")


if __name__ == "__main__":
    main(*sys.argv[1:])
