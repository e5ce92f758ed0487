# /// script
# requires-python = ">=3.12"
# dependencies = ["weakincentives==0.27.0", "redis==8.1.0", "hiredis==3.5.0"]
# ///
"""weakincentives, RedisMailbox and InMemoryMailbox: one mailbox and one client for all threads, as it documents.

Bodies are JSON values without a type, since its decoding of dataclasses costs more. In memory it copies nothing.
"""

import json
import platform
import sys
from importlib.metadata import version

from redis import Redis
from weakincentives.contrib.mailbox import RedisMailbox
from weakincentives.runtime.mailbox import InMemoryMailbox

from benchmarks.mailbox_load import by_threads

MEMORY = "memory"


def main() -> None:
    """Arguments: threads, and the URL of an empty server or `memory`. Prints one line of JSON."""
    threads, url = int(sys.argv[1]), sys.argv[2]
    mailbox = InMemoryMailbox(name="q") if url == MEMORY else RedisMailbox(name="q", client=Redis.from_url(url))
    items, seconds = by_threads(mailbox, threads)
    mailbox.close()
    answer = {"peer": "weakincentives", "version": version("weakincentives"), "python": platform.python_version()}
    print(json.dumps({**answer, "threads": threads, "items": items, "seconds": seconds}))


if __name__ == "__main__":
    main()
