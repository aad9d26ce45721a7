"""A secret sample: what the server may say and decide where the guarantee rests on nobody knowing who was sampled."""

from __future__ import annotations

from collections.abc import Mapping

from flwr.serverapp import Grid

from fedveil.privacy import Plan
from fedveil.strategies.fleet import Fleet
from fedveil.strategies.judging import NoGoodReplies

__all__ = ["NOTICE", "check_settings", "require_a_node"]

NOTICE = (
    "who is sampled is secret here: a reply that is lost or bad counts as a zero and is not told, nor are failures and "
    "seconds counted; the nodes' own logs tell"
)


def check_settings(min_replies: int, attempts: int, plans: Mapping[int, Plan | None]) -> None:
    """Refuse settings by which a round would depend, for all to see, on who was sampled or who of them answered.

    Raises
    ------
    ValueError
        If rounds may be skipped, nodes asked again, or rows of single clients booked.
    """
    if min_replies > 1 or attempts > 1:
        raise ValueError(
            f"min-replies = {min_replies} and round-attempts = {attempts} with a secret sample of clients: that a "
            "round is skipped or nodes are asked again would tell who was sampled; leave both at 1, or sample all "
            "clients."
        )
    if any(plan is not None for plan in plans.values()):
        raise ValueError(
            "clients with releases of their own in a secret sample of clients: their ledger rows would tell who was "
            "sampled; give None as every client's plan, or sample all clients."
        )


def require_a_node(grid: Grid, fleet: Fleet, server_round: int) -> None:
    """End a run that nobody can answer; asked before every round, so that it does not depend on who is sampled.

    Raises
    ------
    NoGoodReplies
        If no node of the fleet is connected.
    """
    if set(fleet.node_of.values()).isdisjoint(grid.get_node_ids()):
        raise NoGoodReplies(
            f"round {server_round}: none of the {fleet.num_nodes} nodes is connected; start them, and resume the run."
        )
