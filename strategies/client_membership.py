"""r_Q on clients' records: what their answers say of one quantizer, as values for a file and as lines for people."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedveil.privacy import (
    LEAST_CLIENTS,
    LossMoments,
    ReleasedMoments,
    membership_indicator,
    membership_interval,
    released_interval,
    rounded_up,
)
from fedveil.strategies.json_number import json_number
from fedveil.strategies.leading_pairs import LeadingPairs

__all__ = ["STUDY", "client_lines", "released_figures", "study_figures"]

STUDY = "study only, not private"


def released_figures(leading: LeadingPairs, clients: Sequence[ReleasedMoments]) -> dict[str, Any]:
    """r_Q from the clients' noised differences, with its interval over clients.

    Parameters
    ----------
    leading : LeadingPairs
    clients : sequence of ReleasedMoments
        One a client, at least one.
    """
    pooled = clients[0]
    for one in clients[1:]:
        pooled = pooled + one
    found, interval = pooled.indicator(), released_interval(clients)
    if math.isnan(found.r_q):
        statement = "r_Q is not identified: the noise of the releases hides every variance."
    elif (interval.low if interval.is_given else found.low) == 0:
        statement = f"r_Q = {found.r_q:.3g}, which noise and sampling alone could give."
    else:
        statement = f"r_Q = {found.r_q:.3g}."
    return {
        "r_q": json_number(found.r_q),
        "low": json_number(interval.low),
        "high": json_number(interval.high),
        "level": interval.level,
        "statement": statement,
        "interval": interval.statement,
        "pair": _pair(leading, found.best, found.runner_up),
        "compared-rounds": list(leading.rounds),
        "identified-pairs": sum(found.identified) - 1,
        "clip-norm": leading.clip_norm,
        "public-r_q-of-these-pairs": json_number(leading.public_rate),
        "predicted-error": json_number(leading.predicted_error(pooled.count, pooled.noise)),
    }


def study_figures(leading: LeadingPairs, clients: Sequence[LossMoments]) -> dict[str, Any]:
    """r_Q from the clients' exact moments of the same candidates, neither clipped nor noised."""
    pooled = clients[0]
    for one in clients[1:]:
        pooled = pooled + one
    found, interval = membership_indicator(pooled), membership_interval(clients)
    return {
        "r_q": json_number(found.r_q),
        "low": json_number(interval.low),
        "high": json_number(interval.high),
        "level": interval.level,
        "statement": f"{found.statement.rstrip('.')}; {STUDY}.",
        "interval": f"{interval.statement.rstrip('.')}; {STUDY}.",
        "pair": _pair(leading, found.best, found.runner_up),
        "compared-rounds": list(leading.rounds),
    }


def _pair(leading: LeadingPairs, best: int, runner_up: int | None) -> dict[str, int] | None:
    if runner_up is None:
        return None
    return {"best-round": leading.rounds[best], "runner-up-round": leading.rounds[runner_up]}


def client_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """What to print of the clients' answers.

    Parameters
    ----------
    document : mapping
        What ``membership.json`` in a run's folder holds.
    """
    found: Mapping[str, Mapping[str, Any]] = document["quantizers"]
    if not found:
        return
    study = document["kind"] == STUDY
    how = f"exact moments: {STUDY}"
    if not study:
        spent = rounded_up(document["epsilon"])
        how = f"released for epsilon {spent} at delta {document['delta']:g} a client (record relation)"
    yield f"r_Q on {document['records']} records of {document['clients']} clients, {how}"
    width = max(map(len, found))
    for name, values in found.items():
        told = _told(values["r_q"], 1 / (2 * document["records"]), "undefined" if study else "not identified")
        ends = "no interval"
        if values["low"] is not None:
            ends = f"{100 * values['level']:g} % interval {_shown(values['low'])} to {_shown(values['high'])}"
        error = "" if study else f", predicted error {_shown(values['predicted-error'])}"
        yield f"{name:<{width}}  {told}, {ends}{error}{f' ({STUDY})' if study else ''}"
    yield "clients have trained on these records; for records that the model has not seen, read the public r_Q"
    hidden = not study and any(values["r_q"] is None for values in found.values())
    few = document["clients"] < LEAST_CLIENTS
    yield from dict.fromkeys(
        values["interval"]
        for values in found.values()
        if values["low"] is None and (study or few or values["r_q"] is not None)
    )
    if hidden:
        yield "not identified: the noise of the releases hides every variance; more records, epsilon or share help"


def _told(r_q: float | str | None, resolution: float, otherwise: str) -> str:
    """r_Q of a line; what is below 1/(2n) is noise, whatever was added."""
    if r_q is None:
        return otherwise
    return f"r_Q < {resolution:.2g}" if isinstance(r_q, float) and r_q < resolution else f"r_Q {_shown(r_q)}"


def _shown(value: float | str | None) -> str:
    return f"{value:.3g}" if isinstance(value, float | int) else str(value)
