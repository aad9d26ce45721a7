"""A node's policy in plain words, and what its records have spent over all runs: for the node's owner."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

from fedveil.artifacts import NodeLedger
from fedveil.artifacts.readable import is_there
from fedveil.clients.policy import Policy, read_policy
from fedveil.config.node_policy import policy_path
from fedveil.config.places import node_ledger_path
from fedveil.privacy import RELATIONS, Relation, gaussian_epsilon, rounded_up

__all__ = ["explain_policy"]

_DELTA = 1e-5
"""Where no policy has one: what has been spent is told at it."""

_SHOWN = 5  # names of runs in a line

_NOTHING_HIDDEN = 1e24
"""A sum of mu^2 so large that it is told as what it is: no bound."""

_ONE_OF: dict[Relation, str] = {
    "attribute": "the private attributes of one record",
    "record": "one whole record",
    "client": "all records of this node",
}


def explain_policy(file: str | None, *, say: Callable[[str], None], check: bool = False) -> None:
    """Print what a policy allows, and what is spent and left of its totals.

    Parameters
    ----------
    file : str, optional
        The policy file; else the node's own.
    check : bool
        Only whether it can be used.

    Raises
    ------
    BadPolicy
        If there is a file and it cannot be used.
    DamagedFile, WriteFailed, RunFolderError
        If the node's ledger cannot be read.
    """
    path = policy_path() if file is None else Path(file).absolute()
    policy = None if path is None else read_policy(path)
    say(
        "no policy: this node serves every run, but none without noise or under noise that proves nothing"
        if path is None
        else f"{path}: can be used"
    )
    if check:
        return
    for line in [] if policy is None else _rules(policy):
        say(f"  {line}")
    ledger = node_ledger_path()
    if not is_there(ledger) and not os.path.islink(ledger):  # a link to nothing is a ledger that is missing
        say(f"nothing has been spent: there is no ledger at {ledger} yet")
        return
    say(f"spent over all runs, by {ledger}:")
    for relation in RELATIONS:
        say(f"  {_spent(relation, NodeLedger(ledger).spent_by_run(relation), policy)}")


def _rules(policy: Policy) -> list[str]:
    """Each rule as a sentence; an absent key as what it leaves open."""
    words = {
        "apps that may run": policy.apps,
        "who may add the noise": policy.privacy,
        "relations, one of which a run must promise its epsilon under": policy.relations,
        "FedSVA's calibrations of noise": policy.calibrations,
        "modulated learning's sensitivities": policy.sensitivities,
        "columns that may be used": policy.columns,
        "columns that runs under the attribute relation must protect": policy.private_attributes,
    }
    lines = [f"{what}: {', '.join(allowed) if allowed else 'no rule'}" for what, allowed in words.items()]
    if policy.privacy is None:
        lines[1] = "who may add the noise: clients or the server"
    if "unproven" in (policy.privacy or ()):
        lines.append(
            "unproven: noise may follow from records and be read off what it hides; nothing is promised"
        )
    lines.append(f"fewest records: {policy.min_records or 'no rule'}")
    for relation, epsilon in policy.epsilon or ():
        lines.append(
            f"epsilon.{relation}: over all runs together at most {epsilon:g} at delta {policy.delta!r} for "
            f"{_ONE_OF[relation]}; what has no bound there is refused"
        )
        if relation == "attribute" and policy.private_attributes is None:
            lines.append(
                "epsilon.attribute is about whatever each run calls private: name the columns under private-attributes"
            )
        if relation == "client":
            lines.append(
                "epsilon.client trusts the server: it gets updates as they are, and adds the noise itself"
            )
    if not policy.epsilon:
        lines.append("epsilon: no rule; every run may spend anew")
    return lines


def _spent(relation: Relation, runs: dict[str, Fraction | float], policy: Policy | None) -> str:
    delta = _DELTA if policy is None or policy.delta is None else policy.delta
    total, counted = sum(runs.values()), f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
    unbounded = [run for run, square in runs.items() if square > _NOTHING_HIDDEN]
    if not runs:
        line = f"{relation}: nothing"
    elif unbounded:
        line = f"{relation}: no bound, {len(unbounded)} of {counted} had none"
        if len(unbounded) < len(runs):
            more = len(unbounded) - _SHOWN
            line += f" ({', '.join(unbounded[:_SHOWN])}{f' and {more} more' if more > 0 else ''})"
    else:
        mu = _root(Fraction(total))
        line = (
            f"{relation}: epsilon {rounded_up(gaussian_epsilon(mu, delta))} at delta {delta!r} from {counted}"
        )
    if policy is not None and relation in policy.limits:
        line += f"; of {dict(policy.epsilon or ())[relation]:g} allowed, {policy.left(relation, total)}"
    return line


def _root(square: Fraction) -> float:
    """Square root, rounded up."""
    root = math.sqrt(square)
    while Fraction(root) ** 2 < square:
        root = math.nextafter(root, math.inf)
    return root
