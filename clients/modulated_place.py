"""How a node's own numbers of its clients stand to the numbers that a run gives them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedveil.clients.modulated_request import MessageRequest
from fedveil.moment_sums import block_size

__all__ = ["Place"]


@dataclass(frozen=True)
class Place:
    """Where the clients of one node are.

    Parameters
    ----------
    first, count : int
        The node's own numbers of its clients: first, ..., first + count - 1.
    offset : int
        What to add for the run's numbers: 0 for a share of clients that everybody numbers alike.
    num_clients : int
        Clients of the run, on all nodes.
    """

    first: int
    count: int
    offset: int
    num_clients: int

    @classmethod
    def of_share(cls, first: int, count: int, num_clients: int) -> Place:
        """The place of a share.

        Raises
        ------
        ValueError
            If it is not whole blocks of the run's clients.
        """
        block, last = block_size(num_clients), first + count
        if not 0 <= first <= last <= num_clients or first % block or (last % block and last < num_clients):
            raise ValueError(
                f"clients {first} to {last - 1} of {num_clients} are not whole blocks of {block}: use share_of."
            )
        return cls(first, count, 0, num_clients)

    @classmethod
    def of_site(cls, count: int, request: MessageRequest) -> Place:
        """The place that a request gives a site, whose own numbers begin at 0.

        Raises
        ------
        ValueError
            If the request gives none, or one that its clients do not fit in.
        """
        if request.first is None or request.num_clients is None:
            raise ValueError(
                "this node brings its own clients, and a request must tell their numbers in the run."
            )
        if request.first + count > request.num_clients:
            raise ValueError(
                f"this site's {count} clients from {request.first} are not among {request.num_clients} clients."
            )
        return cls(0, count, request.first, request.num_clients)

    def own(self, clients: NDArray[np.int64]) -> NDArray[np.int64]:
        """The node's own numbers of clients that the run numbers so.

        Raises
        ------
        ValueError
            If one is not this node's.
        """
        found = clients - self.offset
        if found.size and not self.first <= found[0] <= found[-1] < self.first + self.count:
            raise ValueError(
                f"clients {clients[0]} to {clients[-1]} were asked, and this node hosts {self.count} from "
                f"{self.first + self.offset}."
            )
        return found
