"""Loop of supervision: connects `Supervision` with actors and a clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from tuner.farm.actions import Action, Blame, Deliver, Failed, GiveUp, Kill, SayLine, Send, StartActor, WorkItem
from tuner.farm.supervision import Supervision
from tuner.platform.actors import Actors, Message
from tuner.platform.interfaces import Clock


class Client(Protocol):
    """Owner of the work."""

    def message(self, send: Send) -> tuple[bytes, Sequence[Any]]:
        """Message to an actor: (packed, shared values).  Called in the order of the messages."""
        ...

    def delivered(self, done: Deliver) -> None: ...

    def failed(self, failed: Failed) -> None: ...

    def blamed(self, blame: Blame) -> None: ...


class SupervisorLoop:
    """Loop.  say: prints a line.  item_timeout_s: see `Supervision`."""

    def __init__(self, actors: Actors, clock: Clock, client: Client, say: Callable[[str], None], item_timeout_s: float | None) -> None:
        self.actors, self.clock, self._client, self._say = actors, clock, client, say
        self.supervision = Supervision(actors.count, item_timeout_s, min_count=actors.min_count, idle_s=actors.idle_s)
        self._do(self.supervision.begin(clock.monotonic_s()))

    def submit(self, work: WorkItem) -> None:
        self._do(self.supervision.submit(work, self.clock.monotonic_s()))

    def turn(self, patience_s: float) -> None:
        """Handle events until now, or within `patience_s`.  Raises `FarmError` if it cannot continue, and exceptions of workers."""
        due_s = self.supervision.due_s(self.clock.monotonic_s())
        for event in self.actors.events(patience_s if due_s is None else max(0.0, min(patience_s, due_s))):
            self._do(self.supervision.handle(event, self.clock.monotonic_s()))
        # last: if this process was paused, actors with waiting events were not silent
        self._do(self.supervision.tick(self.clock.monotonic_s()))

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, StartActor):
                self.actors.start(action.slot, action.actor)
            elif isinstance(action, Kill):
                self.actors.kill(action.actor)
            elif isinstance(action, Send):
                packed, shared = self._client.message(action)
                self.actors.send(action.actor, Message(action.number, packed, shared, action.announces))
            elif isinstance(action, SayLine):
                self._say(action.line)
            elif isinstance(action, Deliver):
                self._client.delivered(action)
            elif isinstance(action, Failed):
                self._client.failed(action)
            elif isinstance(action, Blame):
                self._client.blamed(action)
            elif isinstance(action, GiveUp):
                raise action.error
