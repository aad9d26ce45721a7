"""Nodes that are started again while they are asked: what they had taken in is lost, and Flower tells nobody."""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import Error, Message
from flwr.serverapp import Grid

from fedveil.flower import ErrorCode

__all__ = ["RestartWatch"]

_EVERY = 5.0
_GRACE = 30.0


class RestartWatch:
    """Answers, in a node's place, the requests that it lost when it died and came back.

    A SuperLink answers for a node that stays away (after about a minute). For one that its restart policy brings back
    in time it does not, and the request would be waited for until the round's timeout. A node that had not yet fetched
    its request when it died fetches it afterwards; it has some seconds for its reply, then it counts as lost too.

    Parameters
    ----------
    grid : Grid
        A deployment's, whose nodes tell when they were last started. Make the watch just after the requests were sent.
    now : float
        Seconds of a clock that cannot be set.
    """

    def __init__(self, grid: Grid, now: float) -> None:
        self._grid, self._next = grid, now + _EVERY
        self._started = self._starts()
        self._restarted: dict[int, float] = {}

    def lost(self, waiting: Mapping[str, Message], now: float) -> list[Message]:
        """Error replies to those of the requests, by their id, whose node has been started again since.

        The nodes are looked at every few seconds only, however often this is called.
        """
        if now < self._next:
            return []
        self._next = now + _EVERY
        for node, started in self._starts().items():
            if started != self._started.get(node, started):
                self._restarted.setdefault(node, now)
        return [
            Message(
                Error(
                    ErrorCode.NODE_UNAVAILABLE,
                    "Node Unavailable: it was started again after it was asked, and what it had taken in is lost",
                ),
                reply_to=request,
            )
            for request in waiting.values()
            if now - self._restarted.get(request.metadata.dst_node_id, now) >= _GRACE
        ]

    def _starts(self) -> dict[int, str]:
        return {node.node_id: node.last_activated_at for node in self._grid.get_nodes()}
