"""A town of people with one record each, on real nodes that a test can tamper with; read through ``runpy``."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Error, Message, RecordDict
from flwr.serverapp import Grid

from fedveil import wire
from fedveil.clients import ModulatedCohort, VariantPlan, handle_identify_modulated, handle_message
from fedveil.moment_sums import share_of
from fedveil.privacy import MessagePlan, Modulation, plan_gradients, plan_messages
from fedveil.strategies import Census, LocalDPSGD, ModulatedIterative, ModulatedOneShot
from fedveil.streams import Streams

CODE = {"library": "0.1.0", "source": "f00d"}
BOUND = 1.2
LARGEST_LABEL = 8.0
SLOPES, INTERCEPT = np.array([1.0, -2.0, 0.5]), 0.75

Answer = Message | RecordDict | Error | None
Tamper = Callable[[RecordDict], Answer]


class Town:
    """Clients 0 to n - 1 with three features each and a label that depends on them; nodes are 101, 102, ..."""

    def __init__(
        self, grid: type[Grid], num_clients: int = 300, epsilon: float = 50.0, seed: int = 3
    ) -> None:
        self._grid, self.num_clients, self.seed = grid, num_clients, seed
        rng = np.random.default_rng(7)
        self.features = rng.uniform(-1, 1, size=(num_clients, 3)).astype(np.float32)
        noise = rng.normal(scale=0.1, size=num_clients)
        self.targets = self.features.astype(np.float64) @ SLOPES + INTERCEPT + noise
        self.epsilon = epsilon
        self.modulation = Modulation()
        self.code, self.bound, self.largest_label = CODE, BOUND, LARGEST_LABEL
        self.said: list[str] = []
        self.outcomes: list[Any] = []
        self.evaluated: list[tuple[int, np.ndarray]] = []

    def plan(self, num_releases: int = 1, **settings: Any) -> MessagePlan:
        """Each client's messages."""
        told = {"epsilon": self.epsilon, "delta": 1e-5, "bound": BOUND, "modulation": self.modulation}
        return plan_messages(**{**told, "num_releases": num_releases, **settings})

    def gradients(self, num_releases: int = 1) -> MessagePlan:
        """Each client's gradients."""
        return plan_gradients(epsilon=self.epsilon, delta=1e-5, clip_norm=2.0, num_releases=num_releases)

    def census(self, num_nodes: int) -> Census:
        """Who hosts whom."""
        shares = [share_of(index, num_nodes, self.num_clients) for index in range(num_nodes)]
        return Census({101 + index: share for index, share in enumerate(shares)}, self.num_clients)

    def grid(
        self,
        num_nodes: int,
        plan: MessagePlan | None,
        *,
        tamper: dict[int, Tamper] | None = None,
        arrange: Callable[[list[Message]], list[Message]] = list,
        looks: Iterable[Iterable[int]] = ((),),
        **variant: Any,
    ) -> Grid:
        """Nodes that answer with NODES' own code; ``tamper[node]`` has the last word on what a node says."""
        told = {
            "mechanism": "unnoised" if plan is None else "modulated",
            "plan": plan,
            "modulation": self.modulation,
            "bound": BOUND,
            "largest_label": LARGEST_LABEL,
        }
        own = VariantPlan(**{**told, **variant})
        cohorts = {}
        for index in range(num_nodes):
            first, count = share_of(index, num_nodes, self.num_clients)
            cohorts[101 + index] = ModulatedCohort(
                lambda a, b: (self.features[a:b], self.targets[a:b]),
                first,
                count,
                self.num_clients,
                {"main": own, "range": own},
                Streams.seeded("c0ffee", self.seed),
                None,
                "run-1",
                True,
            )

        def answer(message: Message) -> Answer:
            node = message.metadata.dst_node_id
            if message.metadata.message_type == wire.QUERY_IDENTIFY:
                return handle_identify_modulated(cohorts[node], node - 101, num_nodes, CODE)
            content = handle_message(message.content, cohorts[node], CODE)
            return (tamper or {}).get(node, lambda honest: honest)(content)

        return self._grid(answer, looks=looks, arrange=arrange)

    def settings(self, num_nodes: int, plan: MessagePlan | None) -> dict[str, Any]:
        """What every strategy is told."""
        return {
            "census": self.census(num_nodes),
            "plan": plan,
            "dimension": 3,
            "streams": Streams.seeded("c0ffee", self.seed),
            "run": "run-1",
            "code": CODE,
            "on_round": self.outcomes.append,
            "say": self.said.append,
        }

    def modulated(self, num_nodes: int, plan: MessagePlan | None) -> dict[str, Any]:
        """What the modulated strategies are told."""
        own = {"modulation": self.modulation, "bound": BOUND, "largest_label": LARGEST_LABEL}
        return {**self.settings(num_nodes, plan), **own}

    def one_shot(self, num_nodes: int, plan: MessagePlan | None, **settings: Any) -> ModulatedOneShot:
        """The one-shot strategy."""
        return ModulatedOneShot(**{**self.modulated(num_nodes, plan), **settings})

    def iterative(self, num_nodes: int, plan: MessagePlan | None, **settings: Any) -> ModulatedIterative:
        """The iterative strategy."""
        return ModulatedIterative(**{**self.modulated(num_nodes, plan), **settings})

    def dp_sgd(self, num_nodes: int, plan: MessagePlan | None, **settings: Any) -> LocalDPSGD:
        """The comparator."""
        told = {"clip_norm": 2.0, "learning_rate": 0.3}
        return LocalDPSGD(**{**self.settings(num_nodes, plan), **told, **settings})

    def evaluate(self, server_round: int, arrays: ArrayRecord) -> None:
        """Keep what is to be evaluated."""
        self.evaluated.append((server_round, arrays[wire.COEFFICIENTS].numpy()))

    def run(self, strategy: Any, grid: Grid, rounds: int = 1, start: np.ndarray | None = None) -> np.ndarray:
        """Run the rounds; the coefficients at the end."""
        initial = ArrayRecord({wire.COEFFICIENTS: Array(np.zeros(4) if start is None else start)})
        result = strategy.start(grid, initial, num_rounds=rounds, evaluate_fn=self.evaluate)
        return result.arrays[wire.COEFFICIENTS].numpy()
