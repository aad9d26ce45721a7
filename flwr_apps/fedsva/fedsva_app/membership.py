"""After training, r_Q on the clients' records: one question about the leading candidates of all quantizers.

It happens before the run's folder is finished, so that what clients release for it is in the ledger like all else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedveil.artifacts import RunFolder
from fedveil.config import FedSVAConfig, assembly, planning
from fedveil.loss_query import LossQuery, split_moments
from fedveil.models import Learner, candidate_losses
from fedveil.privacy import LossReleases, Release, gaussian_epsilon, rounded_up
from fedveil.quantization import name_of
from fedveil.strategies import Fleet
from fedveil.strategies.client_membership import STUDY, released_figures, study_figures
from fedveil.strategies.hooks.configurations import late_models
from fedveil.strategies.hooks.quantize import schemes_of
from fedveil.strategies.hooks.reason import reason_of
from fedveil.strategies.json_number import json_number
from fedveil.strategies.leading_pairs import LeadingPairs
from fedveil.strategies.loss_question import LossAnswers, ask_losses
from fedveil.streams import Streams

__all__ = ["Membership", "ask_for_membership", "public_losses"]

_PAIRS = 2  # competitors of each quantizer: every further one adds noise to all
_FACTORS = (0.5, 1.0, 2.0, 4.0)  # of the epsilon spent, at which the predicted error is shown

Arrays = Mapping[str, NDArray[np.float32]]
Say = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Membership:
    """What asking the clients has brought.

    Attributes
    ----------
    document : mapping or None
        Values of ``membership.json``; None where nobody was asked or nobody answered.
    releases, assumed : tuple of Release
        Ledger rows that arrived, and rows of clients whose reply did not.
    """

    document: Mapping[str, Any] | None = None
    releases: tuple[Release, ...] = ()
    assumed: tuple[Release, ...] = ()


def public_losses(learner: Learner, problem: assembly.Problem) -> Callable[[Arrays], NDArray[np.float64]]:
    """Losses (n, M) of stacked models on the public test records."""
    test, shape = problem.dataset.test, problem.dataset.schema.shape
    return lambda candidates: candidate_losses(learner, candidates, test.features, test.labels, shape)


def ask_for_membership(
    config: FedSVAConfig,
    problem: assembly.Problem,
    folder: RunFolder,
    arrays: Arrays,
    *,
    grid: Grid,
    fleet: Fleet,
    streams: Streams,
    run: str,
    code: Mapping[str, str],
    assumed: Sequence[Release],
    say: Say,
) -> Membership:
    """Ask every client for its losses under the leading candidates of every quantizer.

    Parameters
    ----------
    arrays : mapping of str to float32 array
        The final model.
    run : str
        The name under which nodes file the run.
    assumed : sequence of Release
        Rows of the run so far that were assumed for lost replies; kept in the checkpoint with what is about to be
        asked, since the run may die before the answers are written down.
    """
    leading = _leading(config, problem, folder, arrays, say)
    if not leading:
        return Membership()
    server_round = config.num_server_rounds + 1
    query = LossQuery(
        server_round,
        run,
        "study" if config.membership == "study" else "released",
        tuple(one.num_pairs for one in leading),
        tuple(one.clip_norm for one in leading),
        {name: np.concatenate([one.candidates[name] for one in leading]) for name in arrays},
    )
    plans: dict[int, LossReleases] = {}
    if query.kind == "released":
        mus = planning.loss_budgets(config)
        plans = {
            client: LossReleases.planned(n, query.pairs, query.clip_norms, mus)
            for client, n in fleet.examples.items()
        }
        _say_predicted(config, leading, plans, say)
        if not streams.is_seeded:
            # with fresh noise a second attempt is another release than the one that may have left in this one
            rows = [row for client, plan in plans.items() for row in plan.releases(client, server_round)]
            _save_assumed(folder, (*assumed, *rows))
    answers = ask_losses(grid, fleet, query, plans, code=code, timeout=config.round_timeout)
    for reason in answers.failures:
        say(f"losses: dropped {reason}")
    _say_outcome(answers, query, say)
    document = _document(config, fleet, leading, query, plans, answers) if answers.vectors else None
    return Membership(document, answers.releases, answers.assumed)


def _leading(
    config: FedSVAConfig, problem: assembly.Problem, folder: RunFolder, arrays: Arrays, say: Say
) -> list[LeadingPairs]:
    """What to ask about, quantizer by quantizer; one that cannot be asked about is told, and costs nothing."""
    if len(problem.dataset.test) == 0:
        say("clients are not asked for losses: there is no public record to rank candidates on")
        return []
    losses = public_losses(assembly.learner(config, problem.dataset), problem)
    trajectory = late_models(folder.load_trajectory(), config.trajectory_skip)
    last = trajectory[-1][0] if trajectory else 0
    leading = []
    for scheme in schemes_of(config.quantizers):
        try:
            one = LeadingPairs.of(
                scheme, arrays, trajectory, losses, last=last, most=config.candidates, pairs=_PAIRS
            )
        except (
            Exception,
            SystemExit,
        ) as error:  # also what a plugin's quantizer does: the run is not lost for it
            say(f"clients are not asked about {name_of(scheme)}: {reason_of(error)}")
            continue
        leading.append(one)
    return leading


def _save_assumed(folder: RunFolder, assumed: tuple[Release, ...]) -> None:
    checkpoint = folder.load_checkpoint()
    if checkpoint is not None:
        folder.save_checkpoint(replace(checkpoint, assumed=assumed))


def _say_predicted(
    config: FedSVAConfig, leading: Sequence[LeadingPairs], plans: Mapping[int, LossReleases], say: Say
) -> None:
    """The error of r_Q against epsilon, before anything is spent; from public records."""
    epsilons = [epsilon for epsilon, _ in _errors(config, leading[0], 0, plans)]
    columns = "  ".join(f"{rounded_up(epsilon):>9}" for epsilon in epsilons)
    say(f"predicted error of r_Q by a client's epsilon for all quantizers (spent: {rounded_up(epsilons[1])})")
    width = max(len(one.name) for one in leading)
    say(f"{'quantizer':<{max(width, 9)}}  {'public r':>9}  {columns}")
    for index, one in enumerate(leading):
        errors = "  ".join(f"{error:>9.2g}" for _, error in _errors(config, one, index, plans))
        say(f"{one.name:<{max(width, 9)}}  {one.public_rate:>9.3g}  {errors}")
    drowned = [
        one.name
        for index, one in enumerate(leading)
        if _errors(config, one, index, plans)[1][1] > one.public_rate
    ]
    if drowned:
        say(
            f"noise will hide r_Q of {', '.join(drowned)} if it is as on public records: more records, a larger "
            "membership-share or epsilon, or fewer quantizers help"
        )


def _errors(
    config: FedSVAConfig, one: LeadingPairs, index: int, plans: Mapping[int, LossReleases]
) -> list[tuple[float, float]]:
    """Epsilon of the release for all quantizers, at several multiples of its mu, and the predicted error of r_Q."""
    mu = min(planning.loss_budgets(config).values())
    parts = [plan.parts[index] for plan in plans.values()]
    records, noise = sum(part.num_records for part in parts), math.fsum(part.sigma**2 for part in parts)
    return [
        (gaussian_epsilon(mu * factor, config.delta), one.predicted_error(records, noise / factor**2))
        for factor in _FACTORS
    ]


def _say_outcome(answers: LossAnswers, query: LossQuery, say: Say) -> None:
    what = f"exact moments ({STUDY})" if query.kind == "study" else "released differences"
    line = f"losses of {len(answers.vectors)} clients: {what}, {len(query.pairs)} quantizers"
    line += f" · out of budget {len(answers.out_of_budget)}"
    say(line + (f" · failed replies {len(answers.failures)}" if answers.failures else ""))
    if not answers.vectors:
        say("no client has told its losses: r_Q is that of the public records alone")


def _document(
    config: FedSVAConfig,
    fleet: Fleet,
    leading: Sequence[LeadingPairs],
    query: LossQuery,
    plans: Mapping[int, LossReleases],
    answers: LossAnswers,
) -> dict[str, Any]:
    head: dict[str, Any] = {
        "kind": STUDY if query.kind == "study" else "released",
        "clients": len(answers.vectors),
        "records": sum(fleet.examples[client] for client in answers.vectors),
        "records-are": "the clients' own, which the model was trained on",
        "out-of-budget": list(answers.out_of_budget),
        "failures": list(answers.failures),
    }
    if query.kind == "study":
        exact = [split_moments(v, query.pairs, fleet.examples[c]) for c, v in answers.vectors.items()]
        values = {
            one.name: study_figures(one, [moments[index] for moments in exact])
            for index, one in enumerate(leading)
        }
        return {**head, "quantizers": values}
    mu = min(planning.loss_budgets(config).values())
    head |= {
        "epsilon": gaussian_epsilon(mu, config.delta),
        "delta": config.delta,
        "relation": "record",
        "composition": f"{len(leading)} Gaussian releases a client, one a quantizer, mu {mu:.4g} together; part of the "
        "client's total, whose guarantee is the budget of its filter",
    }
    read = [plans[client].read(vector) for client, vector in answers.vectors.items()]
    answered = {client: plans[client] for client in answers.vectors}
    values = {}
    for index, one in enumerate(leading):
        errors = [
            {"epsilon": epsilon, "error": json_number(error)}
            for epsilon, error in _errors(config, one, index, answered)
        ]
        values[one.name] = {
            **released_figures(one, [moments[index] for moments in read]),
            "error-against-epsilon": errors,
        }
    return {**head, "quantizers": values}
