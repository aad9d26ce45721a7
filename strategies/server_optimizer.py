"""The server optimiser: Flower's own FedAvg, FedAvgM and FedAdam, fed with one mean update.

Flower's strategies average replies themselves, in float, in the order of arrival. Here the mean is already taken,
exactly, so they get it as the only reply of the round, and do the step they are known for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self, cast

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM
from numpy.typing import NDArray

from fedveil import wire
from fedveil.flower import quiet

__all__ = ["ServerOptimizer"]

Arrays = dict[str, NDArray[np.float32]]
FloatArrays = Mapping[str, NDArray[np.floating]]
Kind = Literal["plain", "momentum", "adam"]


class ServerOptimizer:
    """A Flower strategy as a pure optimiser, with a state that can be saved.

    Parameters
    ----------
    kind : {"plain", "momentum", "adam"}
        FedAvg, FedAvgM or FedAdam.
    learning_rate : float
        The server's step size, positive.
    momentum, beta_1, beta_2, tau : float
        As in Flower's FedAvgM and FedAdam.
    """

    def __init__(
        self,
        kind: Kind,
        *,
        learning_rate: float = 1.0,
        momentum: float = 0.9,
        beta_1: float = 0.9,
        beta_2: float = 0.99,
        tau: float = 1e-3,
    ) -> None:
        self._strategy: FedAvg
        if kind == "adam":
            self._strategy = FedAdam(eta=learning_rate, beta_1=beta_1, beta_2=beta_2, tau=tau)
        else:
            self._strategy = FedAvgM(
                server_learning_rate=learning_rate, server_momentum=momentum if kind == "momentum" else 0.0
            )

    def step(self, server_round: int, arrays: FloatArrays, update: FloatArrays) -> Arrays:
        """The next model.

        Parameters
        ----------
        arrays, update : mapping of str to array
            The current model, and the mean update to add to it.

        Returns
        -------
        dict of str to float32 array
        """
        strategy = self._strategy
        current = {name: array.astype(np.float64) for name, array in arrays.items()}
        if isinstance(strategy, FedAdam):
            strategy.current_arrays = dict(current)
        elif isinstance(strategy, FedAvgM):
            strategy.current_arrays = _record(current)
        moved = {name: current[name] + update[name] for name in current}
        content = RecordDict(
            {wire.ARRAYS: _record(moved), wire.METRICS: MetricRecord({wire.NUM_EXAMPLES: 1})}
        )
        reply = Message(content, dst_node_id=1, message_type=wire.TRAIN)
        with quiet():
            result, _ = strategy.aggregate_train(server_round, [reply])
        stepped = cast(ArrayRecord, result)
        return {name: array.numpy().astype(np.float32) for name, array in stepped.items()}

    def state(self) -> dict[str, NDArray[np.floating]]:
        """Everything the next step depends on, by name."""
        strategy = self._strategy
        if isinstance(strategy, FedAdam):
            moments = {"m": strategy.m_t or {}, "v": strategy.v_t or {}}
            return {
                f"{kind}/{name}": array for kind, arrays in moments.items() for name, array in arrays.items()
            }
        vector = strategy.momentum_vector if isinstance(strategy, FedAvgM) else None
        return {f"momentum/{index:04d}": array for index, array in enumerate(vector or [])}

    def load_state(self, state: Mapping[str, NDArray[np.floating]]) -> Self:
        """Go on from a saved state."""
        strategy = self._strategy
        if isinstance(strategy, FedAdam):
            strategy.m_t = {name[2:]: array for name, array in state.items() if name.startswith("m/")} or None
            strategy.v_t = {name[2:]: array for name, array in state.items() if name.startswith("v/")} or None
        elif isinstance(strategy, FedAvgM) and state:
            strategy.momentum_vector = [state[name] for name in sorted(state)]
        return self


def _record(arrays: FloatArrays) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})
