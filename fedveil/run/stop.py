"""Ctrl-C and termination, turned into an exception that unwinds the run in order."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Stopped", "stop_signals"]


class Stopped(BaseException):
    """Someone asked this run to stop.

    No Exception, so that no app catches it by accident.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def exit_status(self) -> int:
        """What a shell expects: 130 after Ctrl-C, 143 after a termination."""
        return 128 + self.number

    def __str__(self) -> str:
        return "by Ctrl-C" if self.number == signal.SIGINT else f"by {signal.Signals(self.number).name}"


@contextmanager
def stop_signals() -> Iterator[None]:
    """Raise Stopped in the main thread at the first SIGINT or SIGTERM, and ignore later ones."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets signals
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    previous = {number: signal.getsignal(number) for number in numbers}

    def stop(number: int, frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    try:
        for number in numbers:
            signal.signal(number, stop)
        yield
    finally:
        for number in numbers:
            signal.signal(number, previous[number])
