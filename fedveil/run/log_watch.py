"""What a run's log says that its status does not: training rounds that no client answered well.

Flower's strategies go on, and the run counts as completed, when every client fails (Flower 1.42).
"""

from __future__ import annotations

import re

__all__ = ["LogWatch", "without_colours"]

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_RECEIVED = re.compile(r"aggregate_train: Received (\d+) results and (\d+) failures")
_REASON = re.compile(r"Received error in reply from node -?\d+: (?!<class 'ray\.)(.*)")
_RAISED = re.compile(r"ClientAppException occurred\. Message: (.*?)(?:'>)?$")  # within Ray's account of it
_ROUND = re.compile(r"\[ROUND (\d+)")


def without_colours(line: str) -> str:
    """The line without terminal colours."""
    return _COLOURS.sub("", line)


class LogWatch:
    """Reads the log of Flower's own strategies, line by line."""

    def __init__(self) -> None:
        self._round = ""
        self._unanswered: list[str] = []
        self._reason = ""

    def read(self, line: str) -> None:
        """Take one line of the log into account."""
        line = without_colours(line).rstrip()
        if match := _ROUND.search(line):
            self._round = match[1]
        elif match := _RECEIVED.search(line):
            if match[1] == "0":
                self._unanswered.append(self._round)
        elif (match := _REASON.search(line) or _RAISED.search(line)) and not self._reason:
            self._reason = match[1]

    @property
    def problem(self) -> str:
        """One sentence about the rounds without a good reply; empty when there was none."""
        return unanswered(self._unanswered, self._reason)


def unanswered(rounds: list[str] | tuple[str, ...], reason: str) -> str:
    """One sentence about training rounds that no client answered well; empty when there are none."""
    if not rounds:
        return ""
    named = [number for number in rounds if number]
    which = f"round{'s' if len(named) > 1 else ''} {', '.join(named[:3])}" if named else "any round"
    more = " and more" if len(named) > 3 else ""
    return f"no client gave a good reply in {which}{more}{': ' + reason if reason else ''}"
