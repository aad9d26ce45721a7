"""A real node asks its owner's policy: whether it serves a run at all, before any record of it is read.

Simulated nodes have no owner of their own, and no policy.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from fedveil.artifacts import NodeLedger
from fedveil.artifacts.readable import is_there
from fedveil.clients.policy import UNPROVEN, BadPolicy, Policy, PolicyRefusal, read_policy
from fedveil.clients.run_terms import RunTerms
from fedveil.config.fedsva import FedSVAConfig
from fedveil.config.modulated import NO_PRIVACY, ModulatedConfig
from fedveil.config.places import home, ledger_path, node_ledger_path
from fedveil.config.policy_terms import terms_of
from fedveil.config.protected import covered_entries, feature_names, protected_of_tables
from fedveil.config.sites import SiteData
from fedveil.datasets.description import read_description
from fedveil.datasets.regression_schema import RegressionSchema
from fedveil.datasets.schema import Schema
from fedveil.privacy import Relation

__all__ = ["admit_run", "check_loaded", "limits_of", "node_policy", "policy_path"]

VARIABLE = "FEDVEIL_POLICY"
_TABLES = ("csv", "parquet")  # data sets whose columns a file of their own tells, without any record


def policy_path() -> Path | None:
    """The node's policy file: $FEDVEIL_POLICY, else policy.toml in FedVeil's folder if it is there; None: no policy."""
    named = os.environ.get(VARIABLE)
    if named:
        return (
            Path(named).expanduser().absolute()
        )  # also where it is not there: that is an error, and no freedom
    path = home() / "policy.toml"
    return path if os.path.lexists(path) else None


def node_policy() -> Policy | None:
    """The policy of this node, read anew; None where its owner has set none.

    Raises
    ------
    BadPolicy
        If there is a file and it cannot be used.
    """
    path = policy_path()
    return None if path is None else read_policy(path)


def admit_run(
    config: FedSVAConfig | ModulatedConfig,
    *,
    run: str | None,
    node: int,
    simulated: bool,
    site: SiteData | None = None,
) -> Policy | None:
    """Check a run against this node's policy; the first thing that is done with a request.

    Parameters
    ----------
    config : FedSVAConfig or ModulatedConfig
        The run's settings.
    run : str or None
        Name of the run; None while nothing is released yet and the run is asked who is here.
    node : int
        The node's place in the run.
    simulated : bool
        Whether this process finds itself simulated: then nothing is checked.
    site : SiteData, optional
        Where the node's own records lie, if it brings them.

    Returns
    -------
    Policy or None
        What remains to be checked: numbers of records (`check_loaded`), and in the ledger every release (`limits_of`).

    Raises
    ------
    PolicyRefusal
        If the run asks for more than is allowed, or the policy cannot be used: nothing is served then.
    LifetimeExceeded
        If a run without noise of the node's own has no room in the ledger.
    ValueError
        If the run was asked for under other settings, or a site at another place: its clients may be other records now.
    """
    if simulated:
        return None
    try:
        return _admitted(config, run, node, site)
    except PolicyRefusal as error:  # Flower's number of a node says nothing to who reads of it
        raise PolicyRefusal(f"node {node}: {error}") from None


def _admitted(
    config: FedSVAConfig | ModulatedConfig, run: str | None, node: int, site: SiteData | None
) -> Policy | None:
    try:
        policy = node_policy()
    except BadPolicy as error:
        print(f"fedveil | {error}", flush=True)  # for the node's owner: paths of his stay here
        raise PolicyRefusal(
            "this node's policy file cannot be used, so it serves no run: its owner sees why with `fedveil policy`."
        ) from None
    terms = terms_of(config)
    if policy is None:
        if "none" in terms.privacy:
            raise PolicyRefusal(
                "refused by rule 'privacy': the run asks for records without noise, which a real node gives only if "
                'its owner lists "none" under privacy in the node\'s policy file; this node has none.'
            )
        if "unproven" in terms.privacy:
            raise PolicyRefusal(
                f"refused by rule 'privacy': the run {UNPROVEN}, which a real node gives only if its owner lists "
                '"local" and "unproven" under privacy in the node\'s policy file; this node has none.'
            )
        if run is None:
            print("fedveil | this node has no policy: every run is served, see docs/policy.md", flush=True)
    else:
        policy.check(terms)
        _check_described(policy, config, site)
        # a run that is resumed tells its name with its first request only
        if run is not None or not config.resume:
            _check_whole_run(policy, terms, run)
    if run is not None:
        ledger = NodeLedger(node_ledger_path())
        ledger.bind(run, "the configuration", config.config_hash)
        if site is not None:  # its rows are filed under this number; nodes of one machine may share a ledger
            ledger.bind(
                run,
                f"the partition-id of {os.path.realpath(site.path)}",
                str(node),
                called="the partition-id",
            )
        if {"central", "none"} & set(terms.privacy):
            _book(config, terms, run, policy)
    return policy


def check_loaded(
    policy: Policy | None,
    examples: Mapping[str, int],
    schema: Schema | RegressionSchema,
    protected: Collection[str] | None = None,
) -> None:
    """Check what is known once records are loaded, before any is used: their columns, and of whom there are how many.

    Parameters
    ----------
    policy : Policy or None
    examples : mapping of str to int
        Number of records, by whose they are.
    schema : Schema or RegressionSchema
    protected : collection of str, optional
        Features and columns that the run's bound under the attribute relation is about; None where whole records are
        protected.

    Raises
    ------
    PolicyRefusal
        If there are too few, columns that may not be used, or private ones that are not protected.
    """
    if policy is not None:
        policy.check_columns((*schema.sources, schema.target))
        if protected is not None:
            policy.check_private(covered_entries(policy.private_attributes or (), schema, protected))
        policy.check_records(examples)


def limits_of(policy: Policy | None) -> dict[Relation, float]:
    """mu_B that the node's ledger keeps over all runs; none without a policy."""
    return {} if policy is None else policy.limits


def _check_whole_run(policy: Policy, terms: RunTerms, run: str | None) -> None:
    """Check, before the first release of a run, that all of it fits; later on its ledger checks each release."""
    path = node_ledger_path()
    if policy.limits and is_there(path):
        ledger = NodeLedger(path)
        by_run = {relation: ledger.spent_by_run(relation) for relation in policy.limits}
        if not any(run in runs for runs in by_run.values()):
            policy.check_lifetime(terms, {relation: sum(runs.values()) for relation, runs in by_run.items()})


def _book(config: FedSVAConfig | ModulatedConfig, terms: RunTerms, run: str, policy: Policy | None) -> None:
    """Enter a run whose cost no row of this node tells: of noise that the server adds, or of none."""
    ledger = NodeLedger(ledger_path(config, run, simulated=False), limits=limits_of(policy))
    ledger.book(f"{run}-{NO_PRIVACY}" if terms.privacy == ("local", "none") else run, terms.costs)


def _check_described(policy: Policy, config: FedSVAConfig | ModulatedConfig, site: SiteData | None) -> None:
    """Check columns as far as they are known without reading a record; `check_loaded` looks again at what was read."""
    if config.dataset not in _TABLES:
        return
    place = site or SiteData(config.data_path, config.data_schema)
    path = Path(place.schema or f"{place.path}.schema.toml")
    described = read_description(path, config.target, Path(place.path))
    columns = [column for column in described.tables if column not in described.ignore]
    tables = {column: described.tables[column] for column in columns if column != config.target}
    if isinstance(config, FedSVAConfig):
        policy.check_columns(filter(None, (*columns, config.target, config.client_column)))
        if config.is_attribute_level:
            policy.check_private(protected_of_tables(config.private_attributes, tables))
    else:
        policy.check_columns(filter(None, (*columns, config.target)))
        if not config.label_privacy:
            policy.check_private(
                {*tables, *(name for table in tables.items() for name in feature_names(*table))}
            )
