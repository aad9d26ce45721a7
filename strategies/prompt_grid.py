"""A Grid that looks for replies several times a second, where Flower's for deployments looks every three seconds."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedveil.flower import ObjectPushError
from fedveil.privacy.domain import positive
from fedveil.strategies.restart_watch import RestartWatch

__all__ = ["PromptGrid"]

_PUSHES = 5  # of the same messages


class PromptGrid(Grid):
    """Another Grid, asked more often for the replies to what was sent; all else is the other's.

    A round of a deployment is one phase of about ten seconds, most of it waiting. Waiting is by a clock that
    cannot be set, so that a round's timeout is what it says also while the machine's date is corrected. A message that
    the SuperLink refuses, such as one to a node that is no longer registered, has no reply; in Flower's own loop it is
    a TypeError that ends the run. What a node lost because it was started again is answered with an error
    (:class:`~fedveil.strategies.restart_watch.RestartWatch`).

    Parameters
    ----------
    grid : Grid
        The Grid that sends and fetches.
    every : float
        Seconds between two looks.

    Raises
    ------
    ValueError
        If ``every`` is not above 0.
    """

    def __init__(self, grid: Grid, every: float = 0.25) -> None:
        positive("every", every)
        self._grid, self._every = grid, every

    @property
    def run(self) -> Any:
        """The run."""
        return self._grid.run

    def set_run(self, run: Any) -> None:
        """Set the run."""
        self._grid.set_run(run)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Build a message; deprecated in Flower, part of its interface."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Ids of the nodes that are connected."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[Any]:
        """The nodes that are connected, with what Flower knows of them."""
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; their ids.

        Where the connection breaks when the SuperLink has taken a part in and has not said so, Flower sends that part
        again and ends the run because it is there already. The messages are then sent again as a whole, under the same
        ids: the SuperLink keeps the one that it has, and a node gets it once.
        """
        sent = list(messages)
        for _ in range(_PUSHES - 1):
            try:
                return self._grid.push_messages(sent)
            except ObjectPushError:
                time.sleep(self._every)
        return self._grid.push_messages(sent)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies that have come to these messages."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for their replies.

        Parameters
        ----------
        messages : iterable of Message
        timeout : float, optional
            Seconds to wait for all of them; None: for ever.

        Returns
        -------
        list of Message
            What came until then, in the order it came.
        """
        sent = list(messages)
        names = self.push_messages(sent)
        # a name is None where a message was refused
        waiting = {name: message for name, message in zip(names, sent, strict=True) if name}
        end = None if timeout is None else time.monotonic() + timeout
        watch = RestartWatch(self._grid, time.monotonic()) if waiting else None
        came: list[Message] = []
        while watch and waiting:
            replies = list(self.pull_messages(list(waiting)))
            came += replies
            _forget(waiting, replies)
            lost = watch.lost(waiting, time.monotonic())
            came += lost
            _forget(waiting, lost)
            left = self._every if end is None else end - time.monotonic()
            if not waiting or left <= 0:
                break
            time.sleep(min(self._every, left))
        return came


def _forget(waiting: dict[str, Message], replies: Iterable[Message]) -> None:
    for reply in replies:
        waiting.pop(reply.metadata.reply_to_message_id, None)
