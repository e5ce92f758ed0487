"""What is there already, without the cost of being ready to wait for it.

Nearly every request has arrived as a whole before anybody asks for its body. A timer for each of them would cost more
than reading it.
"""

from __future__ import annotations

import types
from collections.abc import Awaitable, Coroutine, Generator
from typing import Any


def begin(work: Awaitable[Any]) -> tuple[Any, Awaitable[Any] | None]:
    """What it gives, if that is there at once, and None; otherwise None, and what is to be awaited instead of it."""
    if not isinstance(work, types.CoroutineType):
        return None, work
    try:
        waits_for = work.send(None)
    except StopIteration as end:
        return end.value, None
    return None, _go_on(work, waits_for)


@types.coroutine
def _go_on(work: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    """The rest of a coroutine that was begun by hand, and waits."""
    while True:
        try:
            try:
                value = yield waits_for
            except BaseException as error:  # it is cancelled: that is for the coroutine to hear
                waits_for = work.throw(error)
            else:
                waits_for = work.send(value)
        except StopIteration as end:
            return end.value
