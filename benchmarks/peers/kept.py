"""What a library keeps of a failure, read back after a run. Standard library only: peers import it."""

from dataclasses import dataclass

from benchmarks.load import payload

MESSAGE = "the other side does not answer"
MARKS = {
    "payload": str(payload()["user"]),
    "type": TimeoutError.__name__,
    "message": MESSAGE,
    "traceback": "Traceback (most recent call last)",
}
"""What the text of a failure contains if it was kept: no line of a traceback has the payload."""


@dataclass(frozen=True, slots=True)
class Kept:
    """How many failures are there, and all that is known of one of them."""

    count: int
    text: str
    """Everything that is kept of it."""
    failed_at: str = ""
    attempts: int | None = None
    is_waiting: bool = False
    """Whether it waits to run once more, after it was asked to by what the library has for that."""

    @property
    def parts(self) -> list[str]:
        """What is kept of it, by name."""
        found = [name for name, mark in MARKS.items() if mark in self.text]
        return [*found, *(["time"] if self.failed_at else []), *(["attempts"] if self.attempts is not None else [])]
