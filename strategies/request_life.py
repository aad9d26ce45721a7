"""How long a request lives: as long as its reply is waited for, so that no node works on what nobody reads.

Flower's own default is twelve hours. A SuperLink hands out no request that has expired and takes no reply to it; it
answers for it with an error. A node works on one request after another, so one that is slower than the server waits
would go on with rounds that are over, spend releases on them, and let the current request wait behind.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from flwr.app import Message

__all__ = ["live_for"]

_MARGIN = 60.0
"""Seconds more: the waiting starts when a request has been pushed, and a node whose clock is ahead of the SuperLink's
(5 s at most, where nodes are registered) counts a request as expired so much earlier."""


def live_for(requests: Iterable[Message], seconds: float) -> None:
    """Let requests that are about to be sent expire once their replies have been waited for so long.

    Parameters
    ----------
    requests : iterable of Message
        However long ago they were made.
    seconds : float
        From now.
    """
    now = time.time()  # the clock that Flower has stamped them with
    for request in requests:
        request.metadata.ttl = now - request.metadata.created_at + seconds + _MARGIN
