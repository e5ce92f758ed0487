"""`MainLoop`: handle requests of a mailbox by a function, an adapter or a subclass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic

from redrive.errors import InvalidInput
from redrive.mailbox.dlq_policy import DLQPolicy
from redrive.mailbox.loop_types import (
    NO_RESOURCES,
    Adapter,
    MainLoopConfig,
    MainLoopRequest,
    MainLoopResult,
    OutputT,
    RequestT,
    check_function,
)
from redrive.mailbox.mailbox import Mailbox
from redrive.mailbox.mailbox_errors import InvalidParameterError
from redrive.mailbox.request_loop import RequestLoop, result_of


class MainLoop(RequestLoop[MainLoopRequest[RequestT], MainLoopResult[OutputT]], Generic[RequestT, OutputT]):
    """A loop that handles requests by `process` of a subclass, by a function, or by an adapter with `evaluate`.

    A request that succeeds is acknowledged with its result, in one transaction. One that fails is delivered again after
    a back-off, until it is dead by the policy; then it moves to a dead-letter mailbox, and its sender gets a
    `MainLoopResult` with the error. Handlers may be coroutine functions.
    """

    def __init__(
        self,
        *,
        requests: Mailbox[MainLoopRequest[RequestT], MainLoopResult[OutputT]],
        adapter: Adapter[RequestT, OutputT] | None = None,
        handler: Callable[[RequestT], Any] | None = None,
        resources: Mapping[str, Any] | None = None,
        config: MainLoopConfig | None = None,
        dlq: DLQPolicy[MainLoopRequest[RequestT], MainLoopResult[OutputT]] | None = None,
    ) -> None:
        super().__init__(requests, config, dlq)
        if adapter is not None and handler is not None:
            raise InvalidParameterError("adapter", adapter, "omitted where there is a handler")
        if type(self).respond is MainLoop.respond:
            for name, kind in (("body", MainLoopRequest), ("reply", MainLoopResult)):
                declared = getattr(requests, f"_{name}_type")
                if not declared.is_a(kind):
                    raise InvalidParameterError("requests", requests, f"a mailbox with {name}={kind.__name__}[…]")
        if adapter is not None:
            check_function("adapter.evaluate", getattr(adapter, "evaluate", None))
        if handler is not None:
            check_function("handler", handler)
        if resources is not None and not isinstance(resources, Mapping):
            raise InvalidParameterError("resources", resources, "a mapping")
        self.adapter = adapter
        self.resources = NO_RESOURCES if resources is None else resources
        self.session: Any = None
        """The state that a subclass keeps between requests; evaluators may get it."""
        self._handler = handler
        if adapter is None and handler is None and type(self).process is MainLoop.process:
            raise InvalidInput("a MainLoop needs a handler=, an adapter=, or a subclass with process()")

    def process(self, request: RequestT) -> Any:
        """Return the output for a request, or an awaitable of it."""
        if self._handler is not None:
            return self._handler(request)
        assert self.adapter is not None
        return self.adapter.evaluate(request)

    def respond(self, request: MainLoopRequest[RequestT]) -> MainLoopResult[OutputT]:
        """Return the result of a request."""
        return MainLoopResult(request.request_id, result_of(self.process(request.request)))
