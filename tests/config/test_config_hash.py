"""The hash of a configuration: of every setting that computes, and of no other."""

from __future__ import annotations

import json
import re
from hashlib import blake2b
from typing import Any

import pytest

from fedveil.config import FedSVAConfig

KEYS = FedSVAConfig.keys()
CSV = {"dataset": "csv", "data-path": "/data/people.csv", "target": "income"}
UNIFORM = {"calibration": "uniform"}


NATURAL = CSV | {"partition": "natural", "client-column": "site"}
CHANGES: dict[str, tuple[dict[str, Any], Any]] = {
    "num-server-rounds": ({}, 4321),
    "fraction-train": ({}, 0.55),
    "local-steps": ({}, 3),
    "learning-rate": ({}, 1.2345),
    "strategy": ({}, "a-plugins"),
    "aggregation-weights": ({}, "noise-aware"),
    "weight-tau": ({}, 0.2),
    "server-optimizer": ({}, "adam"),
    "server-learning-rate": ({}, 0.54321),
    "server-momentum": ({}, 0.8765),
    "dataset": ({}, "csv"),
    "data-path": (CSV, "/data/others.csv"),
    "data-schema": (CSV, "/data/schema.toml"),
    "target": (CSV, "wealth"),
    "client-column": (NATURAL, "town"),
    "test-fraction": ({}, 0.31),
    "test-path": (CSV, "/data/test.csv"),
    "partition": ({}, "dirichlet"),
    "num-clients": ({}, 13),
    "dirichlet-alpha": ({}, 0.654),
    "classes-per-client": ({}, 3),
    "min-records": ({}, 3),
    "small-clients": ({}, "drop"),
    "data-seed": ({}, 12),
    "private-attributes": ({}, "9:18,10:18"),
    "drop-private": (UNIFORM, True),
    "groups": ({}, "top = 0:14,0:28"),
    "private-groups": ({}, "top"),
    "contribution": ({}, "0.3"),
    "contribution-release": ({}, "utilities"),
    "contribution-round": ({}, 4),
    "contribution-share": ({}, 0.2),
    "contribution-pairs": ({}, 50),
    "validation-fraction": ({}, 0.4),
    "retrain-steps": ({}, 21),
    "model": ({}, "mlp"),
    "hidden-units": ({}, 67),
    "privacy": ({}, "none"),
    "calibration": ({}, "uniform"),
    "beta": ({}, 0.1),
    "epsilon": ({}, 1.0000000000000002),
    "epsilon-record": ({}, 8.0),
    "delta": ({}, 2.3e-5),
    "clip-norm": ({}, 2.3),
    "attribute-clip-rule": ({}, "fixed"),
    "attribute-clip-norm": ({}, 0.345),
    "contribution-scale": ({}, 0.6),
    "attribute-clip-quantile": ({}, 0.6),
    "quantile-share": ({}, 0.06),
    "clip-without-noise": ({"privacy": "none"}, True),
    "sampling-rate": (UNIFORM, 0.5),
    "mu-release": ({}, 0.1),
    "membership": ({}, "federated"),
    "membership-share": ({"membership": "federated"}, 0.2),
    "seed": ({}, 3),
    "output-dir": ({}, "/elsewhere"),
    "resume": ({}, "/runs/one"),
    "threads-per-node": ({}, 3),
    "round-timeout": ({}, 5.5),
    "min-replies": ({}, 2),
    "round-attempts": ({}, 3),
    "hooks": ({}, "none"),
    "quantizers": ({}, "sign"),
    "candidates": ({}, 12),
    "trajectory": ({}, 0),
    "trajectory-skip": ({}, 0.25),
    "options": ({}, "optimizer = {beta-1 = 0.5}"),
}


def changed(key: str) -> FedSVAConfig:
    """The configuration with this key's change."""
    base, value = CHANGES[key]
    if key == "strategy":  # one is installed; another's name is hashed like it
        return FedSVAConfig.from_run_config(base).model_copy(update={key: value})
    return FedSVAConfig.from_run_config({**base, key: value} | (CSV if key == "dataset" else {}))


def test_every_key_has_a_change_here():
    assert set(CHANGES) == set(KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_the_hash_changes_with_every_key_that_computes_and_with_no_other(key):
    before, after = FedSVAConfig.from_run_config(CHANGES[key][0]), changed(key)
    assert before != after
    assert (before.config_hash == after.config_hash) is (key in FedSVAConfig.engine_keys)


def test_the_keys_that_do_not_compute_are_these():
    engine = {"seed", "output-dir", "resume", "round-timeout", "min-replies", "round-attempts"}
    assert set(FedSVAConfig.engine_keys) == engine | {
        "hooks",
        "quantizers",
        "candidates",
        "trajectory",
        "trajectory-skip",
    }


def test_all_hashes_are_different():
    hashes = [
        changed(key).config_hash
        for key in CHANGES
        if key not in FedSVAConfig.engine_keys and key != "dataset"
    ]
    assert len(set(hashes)) == len(hashes)


def test_a_run_that_asks_no_client_for_losses_draws_what_it_drew_before_there_was_such_a_setting():
    """The hash, and with it every stream, is that of all other settings alone."""
    values = FedSVAConfig().to_run_config()
    older = {
        key: value
        for key, value in values.items()
        if key not in FedSVAConfig.engine_keys and key not in ("membership", "membership-share")
    }
    digest = blake2b(json.dumps(older, sort_keys=True).encode(), digest_size=16)
    assert FedSVAConfig().config_hash == digest.hexdigest()


def test_the_hash_is_the_same_in_any_order_of_keys():
    values = FedSVAConfig().to_run_config()
    shuffled = dict(reversed(values.items()))
    assert FedSVAConfig.from_run_config(shuffled).config_hash == FedSVAConfig().config_hash
    assert re.fullmatch("[0-9a-f]{32}", FedSVAConfig().config_hash)
