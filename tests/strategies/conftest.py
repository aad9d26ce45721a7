"""Six clients on scripted nodes: a Grid whose answers a test writes, and honest answers to start from."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedveil import wire
from fedveil.flower import Run, set_task_identity, stamp_message
from fedveil.privacy import StepMechanism
from fedveil.strategies import Expected, Fleet, PrivateAveraging, RoundOutcome, ServerOptimizer, to_record
from fedveil.streams import Streams

SHAPES = {"weight": (2, 3), "bias": (2,)}
EXAMPLES = {client: 10 * (client + 1) for client in range(6)}
CODE = {"library": "0.1.0", "source": "f00d"}

_TOWN = runpy.run_path(str(Path(__file__).with_name("message_scene.py")))["Town"]

Answer = Callable[[Message], Message | RecordDict | Error | None]


@dataclass
class ScriptedGrid(Grid):
    """A Grid whose nodes answer as a function says; None is no answer, an Error comes from the SuperLink (node 1)."""

    answer: Answer
    looks: Sequence[Sequence[int]] = ((),)
    """Ids of the registered nodes, as each look at them finds them; the last one stays."""
    arrange: Callable[[list[Message]], list[Message]] = list
    sent: list[Message] = field(default_factory=list)
    looked: int = 0
    _replies: dict[str, Message] = field(default_factory=dict)

    def set_run(self, run: Run) -> None:
        raise AssertionError("not part of a test")

    @property
    def run(self) -> Run:
        return Run.create_empty(1)

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise AssertionError("deprecated")

    def get_node_ids(self) -> Iterable[int]:
        self.looked += 1
        return self.looks[min(self.looked, len(self.looks)) - 1]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        identifiers = []
        for message in messages:
            identifier = f"m-{len(self.sent)}"
            stamp_message(message, run_id=1, message_id=identifier, src_node_id=1)
            self.sent.append(message)
            identifiers.append(identifier)
            answer = self.answer(message)
            if answer is None:
                continue
            reply = answer if isinstance(answer, Message) else Message(answer, reply_to=message)
            source = 1 if reply.has_error() else message.metadata.dst_node_id
            stamp_message(reply, run_id=1, message_id=f"{identifier}-reply", src_node_id=source)
            self._replies[identifier] = reply
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = [self._replies.pop(identifier) for identifier in message_ids if identifier in self._replies]
        return self.arrange(found)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


def planned(client: int) -> StepMechanism:
    """The noised step of a client."""
    return StepMechanism(EXAMPLES[client], clip_norm=1.0, sigma=0.05, attribute_clip_norm=0.2)


def update_of(client: int, server_round: int) -> dict[str, np.ndarray]:
    """A client's own update: any function of its number and the round."""
    rng = np.random.default_rng([client, server_round])
    return {name: rng.normal(size=shape) for name, shape in SHAPES.items()}


def honest(request: Message, *, steps: int = 1, out_of_budget: Iterable[int] = ()) -> RecordDict:
    """What a good node answers to this request."""
    config = request.content.config_records[wire.CONFIG]
    server_round, out = int(config[wire.ROUND]), set(out_of_budget)
    clients = [int(client) for client in config[wire.CLIENTS]]
    took_part = [client for client in clients if client not in out]
    updates = {client: update_of(client, server_round) for client in took_part}
    if config[wire.REPLY] == "each":
        arrays = {
            name: np.array([updates[client][name] for client in took_part]).reshape(-1, *shape)
            for name, shape in SHAPES.items()
        }
        rows = []
    else:
        arrays = {
            name: sum(
                (wire.to_fixed(EXAMPLES[client] * updates[client][name]) for client in took_part),
                np.zeros(shape, np.int64),
            )
            for name, shape in SHAPES.items()
        }
        rows = [
            row
            for client in took_part
            for step in range(steps)
            for row in planned(client).releases(client, server_round, step)
        ]
    return RecordDict(
        {
            wire.ARRAYS: ArrayRecord({name: Array(array) for name, array in arrays.items()}),
            wire.METRICS: MetricRecord({wire.NUM_EXAMPLES: sum(EXAMPLES[client] for client in took_part)}),
            wire.LEDGER: ConfigRecord(
                {
                    wire.ROWS: wire.encode_releases(rows),
                    wire.RELEASED: wire.encode_released({}),
                    wire.CLIENTS: took_part,
                    wire.OUT_OF_BUDGET: [client for client in clients if client in out],
                    **CODE,
                }
            ),
        }
    )


@dataclass
class Scene:
    """Everything a test of the server needs, with its lines and outcomes kept."""

    said: list[str] = field(default_factory=list)
    outcomes: list[RoundOutcome] = field(default_factory=list)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: dict(SHAPES))
    examples: Mapping[int, int] = field(default_factory=lambda: dict(EXAMPLES))
    code: Mapping[str, str] = field(default_factory=lambda: dict(CODE))
    honest: Callable[..., RecordDict] = honest
    planned: Callable[[int], StepMechanism] = planned
    update_of: Callable[[int, int], dict[str, np.ndarray]] = update_of
    grid: type[ScriptedGrid] = ScriptedGrid

    def fleet(self, num_nodes: int = 3) -> Fleet:
        """Clients in consecutive shares; nodes are 101, 102, ..."""
        return Fleet({client: 101 + client * num_nodes // 6 for client in EXAMPLES}, EXAMPLES)

    def strategy(self, *, num_nodes: int = 3, seed: int = 3, **settings: Any) -> PrivateAveraging:
        """The strategy under test, plain averaging unless a setting says otherwise."""
        central = settings.get("central")
        defaults: dict[str, Any] = {
            "fleet": self.fleet(num_nodes),
            "streams": Streams.seeded("c0ffee", seed),
            "optimizer": ServerOptimizer("plain"),
            "plans": {client: None if central else planned(client) for client in EXAMPLES},
            "run": "run-1",
            "code": CODE,
            "on_round": self.outcomes.append,
            "say": self.said.append,
        }
        return PrivateAveraging(**{**defaults, **settings})

    def start(self) -> ArrayRecord:
        """The initial model."""
        return to_record({name: np.full(shape, 0.5, np.float32) for name, shape in SHAPES.items()})

    def run(self, strategy: PrivateAveraging, grid: Grid, rounds: int = 1, **settings: Any) -> Result:
        """Run the rounds from the initial model."""
        return strategy.start(grid, settings.pop("initial", self.start()), num_rounds=rounds, **settings)

    def request(
        self, clients: Sequence[int], *, mode: str = "sum", server_round: int = 1, node: int = 101
    ) -> Message:
        """The request that the strategy would send."""
        config = ConfigRecord(
            {wire.ROUND: server_round, wire.RUN: "run-1", wire.REPLY: mode, wire.CLIENTS: list(clients)}
        )
        content = RecordDict({wire.ARRAYS: self.start(), wire.CONFIG: config})
        message = Message(content, dst_node_id=node, message_type=wire.TRAIN, group_id=str(server_round))
        stamp_message(message, run_id=1, message_id="m-0", src_node_id=1)
        return message

    def expected(self, clients: Sequence[int], *, mode: Any = "sum", server_round: int = 1) -> Expected:
        """What the server expects of that request's reply."""
        owed = {
            client: () if mode == "each" else planned(client).releases(client, server_round, 0)
            for client in clients
        }
        return Expected(list(clients), EXAMPLES, SHAPES, mode, server_round, CODE, owed)


@pytest.fixture(autouse=True)
def identity() -> None:
    """Flower's messages need an identity."""
    set_task_identity(1)


@pytest.fixture
def scene() -> Scene:
    """A fresh scene."""
    return Scene()


def bits(arrays: Mapping[str, np.ndarray] | ArrayRecord) -> dict[str, bytes]:
    """A model's bits, by name."""
    return {
        name: (array.numpy() if isinstance(array, Array) else array).tobytes()
        for name, array in arrays.items()
    }


@pytest.fixture(name="bits")
def bits_fixture() -> Callable[..., dict[str, bytes]]:
    """Compare models by their bits."""
    return bits


@pytest.fixture
def town() -> Any:
    """People with one record each, and their nodes: see message_scene.py."""
    return _TOWN(ScriptedGrid)


@pytest.fixture
def new_town() -> Callable[..., Any]:
    """Another town, with settings of its own."""
    return lambda **settings: _TOWN(ScriptedGrid, **settings)
