"""What a mailbox is put through, ours and the peer's alike: a message is sent, one is received, and acknowledged.

Both have the same methods. Standard library only: the peer's environment imports it too.
"""

from typing import Any

from benchmarks.load import Step, payload, run_one, run_threads

CALLERS = 64
WARM_UP_SECONDS = 0.2
"""In it connections are made, and scripts known."""
BODY = payload()


class Ledger:
    """Which messages were sent and which acknowledged, so that nothing can be lost or delivered twice unseen."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.acknowledged: list[str] = []

    def only(self, messages: Any) -> Any:
        """The one message that was received: whoever asks has sent one before, so there is always one."""
        if len(messages) != 1 or messages[0].body != BODY:
            raise RuntimeError(f"received {len(messages)} messages: {[message.body for message in messages]}")
        return messages[0]

    def check(self, left: int) -> None:
        """Everything that was sent was acknowledged, once, and the mailbox is empty."""
        sent, acknowledged = set(self.sent), set(self.acknowledged)
        if sent != acknowledged or len(self.sent) != len(sent) or len(self.acknowledged) != len(sent) or left:
            raise RuntimeError(f"sent {len(self.sent)}, acknowledged {len(self.acknowledged)}, left {left}")


def cycle(mailbox: Any, ledger: Ledger) -> Step:
    """Sends one message, and receives and acknowledges one: its own, or that of another caller."""

    def step() -> int:
        ledger.sent.append(mailbox.send(BODY))
        message = ledger.only(mailbox.receive())
        message.acknowledge()
        ledger.acknowledged.append(message.id)
        return 1

    return step


def by_threads(mailbox: Any, threads: int) -> tuple[int, float]:
    """Messages and seconds of so many blocking callers of one mailbox."""
    ledger = Ledger()
    step = cycle(mailbox, ledger)
    run_threads([step] * threads, WARM_UP_SECONDS)
    items, seconds = run_one(step) if threads == 1 else run_threads([step] * threads)
    ledger.check(mailbox.approximate_count())
    return items, seconds
