"""Dead queues in other stores: asked whether they may be one, and told by whom they are used.

First the dead queue learns of it, then the queue has the setting; and the other way round when it ends. So a dead queue
never is used by somebody it does not know. It may know of one that uses it no longer, after a crash: `forget_users`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from redrive.broker.flow import Ask, Elsewhere, Flow, Send, accepted, ask, send
from redrive.errors import InvalidInput, InvalidSetting, QueueNotFound, RedriveError
from redrive.model.address import address_of, split_address
from redrive.model.dead_queue import elsewhere
from redrive.model.queue import Queue, QueueSettings
from redrive.store import GetQueue, SetUsedBy

if TYPE_CHECKING:
    from redrive.broker.core import Core

_SETTING = "dead_queue"


def addressed(core: Core, settings: QueueSettings) -> QueueSettings:
    """Settings in which dead queues of this store have no store. Raises where another one is not known."""
    dead_queue = settings.dead_queue
    try:
        if isinstance(dead_queue, dict):
            table = {key: core.address(_SETTING, name) for key, name in dead_queue.items()}
            return msgspec.structs.replace(settings, dead_queue=table)
        if dead_queue is not None:
            return msgspec.structs.replace(settings, dead_queue=core.address(_SETTING, dead_queue))
    except InvalidInput as error:
        raise InvalidSetting(_SETTING, f"cannot be used: {error}") from None
    return settings


def tell(core: Core, name: str, settings: QueueSettings) -> Flow[None]:
    """Let the dead queues in other stores know that this queue uses them. Raises where one of them cannot be used."""
    for address in elsewhere(settings):
        try:
            accepted((yield _set_used(core, name, address, used=True))[0])
        except QueueNotFound:
            raise InvalidSetting(_SETTING, f"'{address}' does not exist; create it first") from None
        except InvalidSetting:
            raise InvalidSetting(_SETTING, f"'{address}' cannot have its own dead_queue") from None


def take_back(core: Core, name: str, addresses: Iterable[str]) -> Flow[None]:
    """Let those of the dead queues know that this queue does not use, as it is now."""
    addresses = set(addresses)
    if not addresses:
        return
    try:
        queue: Queue = yield from ask(GetQueue(name))
    except QueueNotFound:
        pass
    else:
        addresses -= set(elsewhere(queue.settings))
    for address in sorted(addresses):
        try:
            yield _set_used(core, name, address, used=False)
        except RedriveError:
            continue  # it is asked again when somebody wants to delete the dead queue


def forget_users(core: Core, queue: Queue) -> Flow[None]:
    """Ask the stores of those who use a dead queue whether they still do, where they are known."""
    here = address_of(queue.name, core.store.name)
    for user in queue.used_by:
        name, store = split_address(user)
        if store is None or not core.stores.is_known(store):
            continue
        try:
            found: Queue = yield Elsewhere(store, Ask(GetQueue(name)))
        except QueueNotFound:
            pass
        except RedriveError:
            continue
        else:
            if here in found.settings.dead_queues():
                continue
        yield from send(SetUsedBy(queue.name, user, used=False))


def _set_used(core: Core, name: str, address: str, *, used: bool) -> Elsewhere:
    queue, store = split_address(address)
    assert store is not None
    return Elsewhere(store, Send([SetUsedBy(queue, address_of(name, core.store.name), used)]))
