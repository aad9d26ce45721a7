"""Every private name of Flower that FedVeil relies on, in one place, for flwr 1.42.

These names move between minor versions of Flower; ``tests/test_flower.py`` uses each of them, so that a new version
that breaks one is seen there and nowhere else.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

if TYPE_CHECKING:
    from flwr.serverapp import Grid

__all__ = [
    "ErrorCode",
    "ObjectPushError",
    "Run",
    "in_process_node",
    "is_simulated",
    "is_simulation_grid",
    "quiet",
    "set_task_identity",
    "stamp_message",
]

in_process_node: ContextVar[bool] = ContextVar("in_process_node", default=False)
"""True while the in-process Grid runs a ClientApp; set by that Grid only."""


def is_simulated() -> bool:
    """Whether this code runs on a simulated node: inside a Ray worker or the in-process Grid.

    Only the process itself is asked, never a message: a server cannot talk a real node into drawing noise from a
    seed. The look at ``sys.modules`` keeps Ray out of real nodes.
    """
    if in_process_node.get():
        return True
    ray = sys.modules.get("ray")
    if ray is None or not hasattr(ray, "_private"):
        return False
    worker = ray._private.worker
    return bool(worker.global_worker.mode == worker.WORKER_MODE)


def is_simulation_grid(grid: Grid) -> bool:
    """Whether the nodes behind this Grid are simulated: Flower's in-memory Grid or the in-process one."""
    # asked of the loaded modules: where nothing is simulated, nobody need wait 1 s for the import
    module = sys.modules.get("flwr.superlink.grid.inmemory_grid")
    if module is not None and isinstance(grid, module.InMemoryGrid):
        return True
    return bool(getattr(grid, "in_process", False))


def set_task_identity(run_id: int, node_id: int = 1, task_id: int = 1) -> None:
    """Name the run, node and task of this process; Flower's messages cannot be built without."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, node_id, task_id


def stamp_message(message: Message, *, run_id: int, message_id: str, src_node_id: int) -> None:
    """Fill in what a SuperLink would fill in when it accepts a message."""
    message.metadata.__dict__.update(_run_id=run_id, _message_id=message_id, _src_node_id=src_node_id)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Flower's own strategies from telling of "results" that are not a round's, while they serve as a part."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
