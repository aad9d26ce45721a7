"""Judging the replies of one round: one good reply a node, everything else by name, and what may have left unseen."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from flwr.app import Message

from fedveil.strategies.reasons import one_line
from fedveil.strategies.reply_arrays import BadReply

__all__ = ["Judged", "NoGoodReplies", "TooFewReplies", "judge"]

T = TypeVar("T")


class NoGoodReplies(RuntimeError):
    """A round in which no node answered well; the message has every node's reason."""


class TooFewReplies(NoGoodReplies):
    """A round with fewer good replies than it needs, in a run that has no other round."""


@dataclass(frozen=True, eq=False)
class Judged(Generic[T]):
    """What the replies to the requests of one round come to.

    Attributes
    ----------
    good : mapping of int to T
        Each node's good reply, nodes in the order in which they were asked.
    failures : tuple of str
        One sentence for every request without a good reply, and for every reply that was not to be.
    unseen : mapping of int to int
        How many releases may have left a node without being in its good reply: one for each request that failed, for
        each further good reply of another attempt, and for each of several replies that contradict each other.
    """

    good: Mapping[int, T]
    failures: tuple[str, ...]
    unseen: Mapping[int, int]

    def assumed(self, *, repeats_itself: bool) -> dict[int, int]:
        """How often each node's releases of the round count as assumed, beside those of its good reply.

        Parameters
        ----------
        repeats_itself : bool
            Whether a node that is asked again sends the same bits, as in a seeded run: they are one release then.
            Otherwise its noise is fresh each time, and each time is another release.
        """
        if repeats_itself:
            return {node: 1 for node in self.unseen if node not in self.good}
        return dict(self.unseen)

    def refuse_if_none(self, server_round: int) -> None:
        """Refuse a round to which no node has sent a good reply.

        Raises
        ------
        NoGoodReplies
            With every reason, each once.
        """
        if not self.good and self.failures:
            reasons = "; ".join(sorted(set(self.failures)))
            raise NoGoodReplies(f"round {server_round}: no node sent a usable reply: {reasons}")


def judge(
    requests: Sequence[Message],
    replies: Iterable[Message],
    check: Callable[[Message, Message], T],
    named: Callable[[Message], str],
) -> Judged[T]:
    """Find each node's good reply among all that came.

    A reply belongs to the request that it names, so that the error reply of a dead node, which comes from the SuperLink
    and names no node, is that node's. It must come from the node that was asked.

    A reply that came several times, as when a push is retried, counts once: it is the same release. Several good
    replies to one request that differ are all dropped, whatever their order: nobody can tell which is the node's own.
    A bad reply beside a good one does no harm to it, so that nobody can silence a node by sending rubbish in its place.

    Parameters
    ----------
    requests : sequence of Message
        All requests of the round; a node that is asked again has several.
    replies : iterable of Message
        In any order, which decides nothing.
    check : callable
        ``check(reply, request)`` reads one reply, and raises BadReply where it is not good.
    named : callable
        ``named(request)`` names in words the clients that a request is for.
    """
    by_request: dict[str, list[Message]] = defaultdict(list)
    for reply in replies:
        by_request[reply.metadata.reply_to_message_id].append(reply)
    asked = Counter(request.metadata.dst_node_id for request in requests)
    attempts, unseen = Counter[int](), Counter[int]()
    good: dict[int, T] = {}
    failures: list[str] = []
    for request in requests:
        node = request.metadata.dst_node_id
        attempts[node] += 1
        which = f" in attempt {attempts[node]}" if asked[node] > 1 else ""
        # without an identifier it was never sent, and an error reply may have none either
        identifier = request.metadata.message_id
        answers = by_request.pop(identifier, []) if identifier else []
        found, reasons = _read(answers, request, check)
        different = _different(found)
        if len(different) == 1 and len(found) > 1:
            reasons.append(f"it came {len(found)} times, and counts once")
        if len(different) > 1:
            reasons.append(
                f"{len(different)} good ones came that contradict each other, and nobody can tell which is its own"
            )
        if len(different) == 1 and node not in good:
            good[node] = different[0][1]
        else:
            unseen[node] += max(len(different), 1)
        failures += [f"the reply for {named(request)}{which}: {reason}" for reason in reasons]
    strays = Counter(reply.metadata.src_node_id for left in by_request.values() for reply in left)
    failures += [
        f"{count} repl{'y' if count == 1 else 'ies'} of node {node} to no request of this round"
        for node, count in sorted(strays.items())
    ]
    return Judged({node: good[node] for node in asked if node in good}, tuple(failures), dict(unseen))


def _read(
    answers: Sequence[Message], request: Message, check: Callable[[Message, Message], T]
) -> tuple[list[tuple[Message, T]], list[str]]:
    """The good answers, and what is wrong with the others: each reason once."""
    found: list[tuple[Message, T]] = []
    reasons: list[str] = [] if answers else ["none came in time"]
    for answer in answers:
        try:
            sender, node = answer.metadata.src_node_id, request.metadata.dst_node_id
            if not answer.has_error() and sender != node:
                raise BadReply(f"node {sender} sent it, and node {node} was asked")
            found.append((answer, check(answer, request)))
        except BadReply as error:
            reasons.append(one_line(str(error)))
    return found, sorted(set(reasons))


def _different(found: Sequence[tuple[Message, T]]) -> list[tuple[Message, T]]:
    different: list[tuple[Message, T]] = []
    for answer, value in found:
        if all(answer.content != other.content for other, _ in different):
            different.append((answer, value))
    return different
