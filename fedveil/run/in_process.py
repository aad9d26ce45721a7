"""A Flower Grid inside one process: the same ServerApp and ClientApp, without SuperLink and Ray.

A message costs 0.3 ms. Clients run one after another, when their message is pushed. What a client may do
wrong (raise, exit, return None, return NaN) becomes an error reply, so that nobody waits for it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from hashlib import blake2b

import numpy as np
from flwr.app import ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedveil.flower import ErrorCode, Run, in_process_node, set_task_identity, stamp_message
from fedveil.run.overrides import Value

__all__ = ["InProcessGrid"]

_SERVER_NODE = 1


class InProcessGrid(Grid):
    """A Grid whose nodes are contexts in this process.

    Parameters
    ----------
    client_app : ClientApp
        What every node runs.
    num_nodes : int
        Number of nodes, at least 1; node i has ``partition-id`` i.
    run_config : mapping
        Configuration of the run, defaults included.
    run_id : int
        Identifies the run; node ids, random-looking as Flower's are, follow from it.
    reverse_replies : bool
        Return replies in the reverse order of their messages: nothing may depend on that order.
    """

    in_process = True

    def __init__(
        self,
        client_app: ClientApp,
        num_nodes: int,
        *,
        run_config: Mapping[str, Value] | None = None,
        run_id: int = 1,
        reverse_replies: bool = False,
    ) -> None:
        if num_nodes < 1:
            raise ValueError(f"a run needs at least 1 node, got {num_nodes}.")
        self._app, self._run, self._reverse = client_app, Run.create_empty(run_id), reverse_replies
        self._contexts = {
            _node_id(run_id, index): Context(
                run_id=run_id,
                node_id=_node_id(run_id, index),
                node_config={"partition-id": index, "num-partitions": num_nodes},
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for index in range(num_nodes)
        }
        self._replies: dict[str, Message] = {}
        self._count = 0
        self._trained: dict[str, bool] = {}
        self.last_error = ""
        set_task_identity(run_id, node_id=_SERVER_NODE)

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Build a message; deprecated in Flower, part of its interface."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Ids of all nodes, at once: there is no first-round race here."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Run the clients on copies of the messages; their replies wait for ``pull_messages``."""
        identifiers = []
        for message in messages:
            self._count += 1
            identifier = f"{self._run.run_id}-{self._count}"
            stamp_message(message, run_id=self._run.run_id, message_id=identifier, src_node_id=_SERVER_NODE)
            reply = self._deliver(message)
            node = message.metadata.dst_node_id
            stamp_message(reply, run_id=self._run.run_id, message_id=f"{identifier}-reply", src_node_id=node)
            self._note(message, reply)
            self._replies[identifier] = reply
            identifiers.append(identifier)
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to these messages, each once."""
        found = [
            self._replies.pop(identifier) for identifier in list(message_ids) if identifier in self._replies
        ]
        return found[::-1] if self._reverse else found

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Push and pull; every message has its reply, so nothing waits for ``timeout``."""
        return self.pull_messages(self.push_messages(messages))

    @property
    def rounds_without_reply(self) -> tuple[str, ...]:
        """Rounds of train messages that no client answered well; "" for messages that name no round."""
        return tuple(group for group, answered in self._trained.items() if not answered)

    def _deliver(self, message: Message) -> Message:
        context = self._contexts.get(message.metadata.dst_node_id)
        if context is None:
            reason = f"there is no node {message.metadata.dst_node_id}"
            return Message(Error(ErrorCode.NODE_UNAVAILABLE, reason), reply_to=message)
        # A copy, since servers send one record to many nodes and clients may change what they get.
        token = in_process_node.set(True)
        try:
            reply = self._app(copy.deepcopy(message), context)
        except (Exception, SystemExit) as error:
            # as in Flower, a client's failure is a reply, and the server decides
            reason = f"{type(error)}:<'{error}'>"
        else:
            reason = _defect(reply)
        finally:
            in_process_node.reset(token)
        if not reason:
            return copy.deepcopy(reply)
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)

    def _note(self, message: Message, reply: Message) -> None:
        if reply.has_error():
            self.last_error = reply.error.reason or f"error code {reply.error.code}"
        if message.metadata.message_type.partition(".")[0] == "train":
            group = _round_of(message)
            self._trained[group] = self._trained.get(group, False) or not reply.has_error()


def _node_id(run_id: int, index: int) -> int:
    return int.from_bytes(blake2b(f"{run_id}/{index}".encode(), digest_size=8).digest(), "big") >> 1


def _round_of(message: Message) -> str:
    """The round a message belongs to: its group, or as Flower's strategies name it in a configuration."""
    if message.metadata.group_id:
        return message.metadata.group_id
    records = message.content.config_records.values() if message.has_content() else ()
    return next((str(record["server-round"]) for record in records if "server-round" in record), "")


def _defect(reply: object) -> str:
    """Why this is not a reply that a server can use; empty when it is."""
    if not isinstance(reply, Message):
        return f"the ClientApp returned {type(reply).__name__} instead of a Message"
    if reply.has_content():
        for name, record in reply.content.items():
            if isinstance(record, ArrayRecord):
                for key, array in record.items():
                    if array.dtype.startswith("float") and not np.all(np.isfinite(array.numpy())):
                        return f"the ClientApp returned values that are not finite in {name}/{key}"
    return ""
