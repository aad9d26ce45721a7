"""What in a configuration contradicts itself or names nothing, each as one sentence."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

from pydantic import ValidationError

from fedveil.config.errors import explain, nearest
from fedveil.config.options import OptimizerOptions, parse_options
from fedveil.config.sites import sites_problem, uses_sites
from fedveil.plugins import find
from fedveil.strategies.hooks import hook_names

if TYPE_CHECKING:
    from fedveil.config.fedsva import FedSVAConfig

__all__ = ["contradiction"]


def contradiction(config: FedSVAConfig) -> str | None:
    """The first thing that is wrong with settings which are valid one by one; None where all is well.

    Raises
    ------
    ValueError
        If a name stands for nothing that is installed.
    """
    checks = (
        _name_problem,
        _data_problem,
        _private_attributes_problem,
        _privacy_problem,
        _secret_sample_problem,
        _contribution_problem,
        _weights_problem,
        _membership_problem,
        _options_problem,
        _path_problem,
    )
    return next((problem for check in checks if (problem := check(config))), None)


def _name_problem(config: FedSVAConfig) -> str | None:
    for kind, name in (
        ("strategy", config.strategy),
        ("dataset", config.dataset),
        ("calibration", config.calibration),
        ("model", config.model),
    ):
        if not (kind == "model" and ":" in name):
            find(kind, name)  # says what is wrong
    config.step_calibration  # noqa: B018  also when it is a plugin's
    return None


def _data_problem(config: FedSVAConfig) -> str | None:
    if uses_sites(config):
        return _sites_problem(config)
    if config.dataset in ("csv", "parquet") and not (config.data_path and config.target):
        return f"dataset = {config.dataset!r} needs data-path (the file) and target (its label column)"
    if config.dataset in ("csv", "parquet") and config.partition == "natural" and not config.client_column:
        return "partition = 'natural' needs client-column, the column that says whose record it is"
    return None


def _sites_problem(config: FedSVAConfig) -> str | None:
    if problem := sites_problem(config):
        return problem
    if config.dataset in ("csv", "parquet") and not config.target:
        return f"dataset = {config.dataset!r} needs target, its label column"
    if config.client_column:
        return (
            f"client-column = {config.client_column!r} with partition = 'sites': a site's records are all its own; "
            "leave it empty, and list that column under ignore in the schema file"
        )
    if config.small_clients == "drop":
        return (
            "small-clients = 'drop' with partition = 'sites': the nodes are counted before their records are; use "
            "'error', and leave small sites out by not starting them"
        )
    return None


def _private_attributes_problem(config: FedSVAConfig) -> str | None:
    if config.drop_private and config.is_attribute_level:
        return (
            "drop-private leaves nothing private to protect: use calibration = 'uniform' or privacy = 'none'"
        )
    return None


def _contribution_problem(config: FedSVAConfig) -> str | None:
    if config.contribution not in ("mask", "retrain"):
        try:
            inside = 0 <= float(config.contribution) <= 1
        except ValueError:
            inside = False
        if not inside:
            return (
                f"contribution = {config.contribution!r} must be 'mask', 'retrain' or a public number from 0 to 1, "
                f"as in '0.3'; {nearest(config.contribution, ['mask', 'retrain'])}"
            )
    if config.contribution_pairs == 1:
        return "contribution-pairs = 1 gives no standard error: use at least 2, or 0 for exact values"
    if config.groups_records and config.is_attribute_level:
        return (
            "groups of records with calibration = 'attribute': what is private there are attributes, so group columns "
            "or regions, or use calibration = 'paper', 'tight' or 'uniform'"
        )
    if not config.measures_contribution:
        return None
    if config.groups_records and config.contribution != "retrain":
        return (
            "groups of records cannot be masked in a model: use contribution = 'retrain' with "
            "contribution-release = 'none' (nothing is proven then), or group columns or regions"
        )
    if config.contribution == "retrain" and config.contribution_release != "none":
        return (
            "contribution = 'retrain' cannot be released, since one record changes every prediction of a retrained "
            "model: use contribution = 'mask', or contribution-release = 'none', which proves nothing"
        )
    if config.is_attribute_level and config.contribution_release == "none":
        return (
            "calibration = 'attribute' with a contribution that is not released proves nothing: release it "
            "(contribution = 'mask', contribution-release = 'shapley'), state it as a public number, or use "
            "attribute-clip-rule = 'fixed'"
        )
    if config.releases_contribution and config.first_release_round > config.num_server_rounds:
        return (
            f"contribution-round = {config.contribution_round} is after the last round, "
            f"num-server-rounds = {config.num_server_rounds}: lower it or run more rounds"
        )
    if config.contribution == "retrain" and config.validation_share == 1:
        return "validation-fraction = 1 leaves no records to retrain on: choose less than 1"
    return None


def _weights_problem(config: FedSVAConfig) -> str | None:
    if config.aggregation_weights == "noise-aware" and config.privacy != "local":
        return f"aggregation-weights = 'noise-aware' is only for privacy = 'local', and privacy is {config.privacy!r}"
    if config.aggregation_weights == "noise-aware" and config.is_data_dependent:
        return (
            "aggregation-weights = 'noise-aware' would show the noise of every client, which its private data "
            "decide here: release the contribution, or use aggregation-weights = 'records'"
        )
    return None


def _privacy_problem(config: FedSVAConfig) -> str | None:
    if config.sampling_rate < 1:
        if config.is_attribute_level:
            return (
                f"sampling-rate = {config.sampling_rate} with calibration = 'attribute': sampling records amplifies "
                "nothing at the attribute level; use sampling-rate = 1 or calibration = 'uniform'"
            )
        if config.privacy == "local" and config.calibration != "uniform":
            return (
                f"sampling-rate = {config.sampling_rate} needs calibration = 'uniform', and calibration is "
                f"{config.calibration!r}"
            )
        if config.privacy != "local":
            return f"sampling-rate is only for privacy = 'local', and privacy is {config.privacy!r}"
        if config.mu_release is not None:
            return "mu-release needs full batches: set sampling-rate = 1 or leave mu-release empty"
    if config.clip_without_noise and config.privacy != "none":
        return f"clip-without-noise is only for privacy = 'none', and privacy is {config.privacy!r}"
    if config.epsilon_record is not None and not config.is_attribute_level:
        return "epsilon-record is a second budget beside calibration = 'attribute'; here epsilon is the only budget"
    if config.mu_release is not None and config.privacy != "local":
        return f"mu-release is only for privacy = 'local', and privacy is {config.privacy!r}"
    if config.mu_release is not None and config.calibration not in ("uniform", "attribute"):
        return f"mu-release is for calibration 'uniform' or 'attribute', and calibration is {config.calibration!r}"
    if config.clip_rule == "quantile" and config.mu_release is not None:
        return "mu-release with attribute-clip-rule = 'quantile': leave mu-release empty"
    if config.is_attribute_level and config.attribute_clip_norm < 1e-4 * config.clip_norm:
        return (
            f"attribute-clip-norm = {config.attribute_clip_norm} is below 1e-4 of clip-norm = {config.clip_norm}: so "
            "small a part of a gradient drowns in rounding; raise it, or use drop-private"
        )
    if config.is_attribute_level and config.attribute_clip_norm > config.clip_norm:
        return (
            f"attribute-clip-norm = {config.attribute_clip_norm} is above clip-norm = {config.clip_norm}: that "
            "protects the private attributes less than the whole record; lower it"
        )
    return None


def _secret_sample_problem(config: FedSVAConfig) -> str | None:
    if config.privacy != "central" or config.fraction_train == 1:
        return None
    asked = {"min-replies": config.min_replies, "round-attempts": config.round_attempts}
    if told := [f"{key} = {value}" for key, value in asked.items() if value > 1]:
        return (
            f"{' and '.join(told)} with privacy = 'central' and fraction-train = {config.fraction_train:g}: the "
            "guarantee needs that nobody knows who was sampled, and a round that is skipped or repeated for want of a "
            "reply tells; leave both at 1, or use fraction-train = 1"
        )
    return None


def _membership_problem(config: FedSVAConfig) -> str | None:
    share = f"membership-share = {config.membership_share:g}"
    if config.membership != "federated" and config.membership_share != 0.1:
        return (
            f"{share} is only for membership = 'federated', and membership is {config.membership!r}: nothing is "
            "released then; leave it out"
        )
    if config.membership == "public":
        return None
    named = f"membership = {config.membership!r}"
    if "quantize" not in hook_names(config.hooks):
        return f"{named} is told by the hook quantize, and hooks = {config.hooks!r}: add it, or use 'public'"
    if config.trajectory == 0:
        return f"{named} compares the models of the trajectory, and trajectory = 0: raise it, or use 'public'"
    if config.membership == "study":
        return None
    if config.privacy != "local":
        return (
            f"{named} is a release of clients that add their own noise, and privacy is {config.privacy!r}: use privacy "
            "= 'local', or membership = 'public'"
        )
    if config.sampling_rate < 1:
        return (
            f"{named} needs a privacy filter, and sampled records (sampling-rate = {config.sampling_rate}) have none: "
            "use sampling-rate = 1, or membership = 'public'"
        )
    if config.is_data_dependent:
        return (
            f"{named} cannot be paid for where the noise is chosen from private data that are not released: release "
            "the contribution, or use membership = 'public'"
        )
    if config.mu_release is not None:
        return (
            f"{named} takes a share of the budget, which mu-release = {config.mu_release} would not leave: leave "
            "mu-release empty, or use membership = 'public'"
        )
    others = config.contribution_share if config.releases_contribution else 0.0
    others += config.quantile_share if config.clip_rule == "quantile" else 0.0
    if config.membership_share + others >= 1:
        return f"{share} and the other releases' {others:g} leave no budget to training: lower them"
    return None


def _path_problem(config: FedSVAConfig) -> str | None:
    return config.path_problem() or config.hook_problem()


def _options_problem(config: FedSVAConfig) -> str | None:
    try:
        tables = parse_options(config.options)
    except tomllib.TOMLDecodeError as error:
        return f"options = {config.options!r} is not TOML: {error}"
    for name, value in tables.items():
        if name not in ("optimizer", "dataset", "strategy"):
            return f"unknown table {name!r} in options; {nearest(name, ['optimizer', 'dataset', 'strategy'])}"
        if not isinstance(value, dict):
            return f"options: {name} = {value!r} must be a table, as in optimizer = {{beta-1 = 0.9}}"
        if name != "optimizer":
            continue
        try:
            OptimizerOptions.model_validate(value)
        except ValidationError as error:
            keys = [field.replace("_", "-") for field in OptimizerOptions.model_fields]
            return f"options: {explain(error, keys)}".rstrip(".")
    return None
