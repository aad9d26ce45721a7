"""Bad input: every public function answers with one clear sentence that names the argument."""

import math
import warnings

import numpy as np
import pytest

from fedveil.privacy import (
    Known,
    Ledger,
    PrivacyFilter,
    QuantileRelease,
    Release,
    StepCalibration,
    StepMechanism,
    WeakDelta,
    calibrate_noise,
    compose_mu,
    composed_epsilon,
    contribution_effect,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
    plan_step,
    subsampled_epsilon,
    subsampled_noise_multiplier,
    zcdp_epsilon,
    zcdp_rho,
)

NOT_NUMBERS = [math.nan, math.inf, -math.inf, None, "1", True, [1.0], 1j, 10**400]
RELEASE = {
    "client": 0,
    "round": 0,
    "step": 0,
    "name": "g",
    "relation": "record",
    "sensitivity": 1.0,
    "sigma": 1.0,
}
STEP = {"num_records": 100, "clip_norm": 1.0, "sigma": 0.1}
PLAN = {
    "num_records": 100,
    "clip_norm": 1.0,
    "calibration": "uniform",
    "epsilon": 1.0,
    "delta": 1e-5,
    "num_releases": 10,
}
NOISE = {"clip_norm": 1.0, "epsilon": 1.0, "num_records": 100, "delta": 1e-5}

CALLS = [
    (gaussian_mu, {"epsilon": 1.0, "delta": 1e-5}, {"epsilon": [0, -1], "delta": [0, 1, -0.1, 1.5]}),
    (gaussian_epsilon, {"mu": 1.0, "delta": 1e-5}, {"mu": [-1], "delta": [0, 1]}),
    (gaussian_delta, {"epsilon": 1.0, "mu": 1.0}, {"epsilon": [-1], "mu": [-1]}),
    (zcdp_rho, {"epsilon": 1.0, "delta": 1e-5}, {"epsilon": [0, -1], "delta": [0, 1]}),
    (zcdp_epsilon, {"rho": 1.0, "delta": 1e-5}, {"rho": [-1], "delta": [0, 1]}),
    (
        Release,
        RELEASE,
        {"client": [-2, 0.5], "round": [-2], "step": [-2], "sensitivity": [0, -1], "sigma": [0, -1]},
    ),
    (Release, {**RELEASE, "sampling_rate": 0.5}, {"sampling_rate": [0, -0.1, 1.1]}),
    (StepMechanism, STEP, {"num_records": [0, -1, 1.5], "clip_norm": [0, -1], "sigma": [0, -1]}),
    (
        plan_step,
        PLAN,
        {
            "num_records": [0, -3, 2.5],
            "clip_norm": [0, -1],
            "epsilon": [0, -1],
            "delta": [0, 1],
            "num_releases": [0, -1, 1.5],
        },
    ),
    (plan_step, {**PLAN, "mu_release": 0.1}, {"mu_release": [0, -1]}),
    (
        plan_step,
        {**PLAN, "calibration": "paper", "contribution": 0.3, "beta": 1.0, "share": 0.5},
        {"contribution": [-0.1, 1.1], "beta": [-1], "share": [0, -1, 1.1]},
    ),
    (
        Known,
        {"contribution": 0.3, "attribute_clip_norm": 0.2},
        {"contribution": [-0.1, 1.1], "attribute_clip_norm": [0]},
    ),
    (contribution_effect, {"delta": 1e-5, "beta": 1.0}, {"delta": [0, 1], "beta": [-1]}),
    (QuantileRelease, {"num_records": 5, "sigma": 0.1}, {"num_records": [0, 1.5], "sigma": [0, -1]}),
    (plan_step, {**PLAN, "sampling_rate": 0.5}, {"sampling_rate": [0, -1, 1.5]}),
    (
        plan_step,
        {**PLAN, "calibration": "attribute", "attribute_clip_norm": 0.3, "epsilon_record": 4.0},
        {"attribute_clip_norm": [0, -1, 1.1], "epsilon_record": [0, -1]},
    ),
    (
        calibrate_noise,
        NOISE,
        {"clip_norm": [0, -1], "epsilon": [0, -1], "num_records": [0, -1, 1.5], "delta": [0, 1]},
    ),
    (
        calibrate_noise,
        {**NOISE, "contribution": 0.3, "beta": 1.0},
        {"contribution": [-0.1, 1.1], "beta": [-1]},
    ),
    (
        subsampled_noise_multiplier,
        {"epsilon": 1.0, "delta": 1e-5, "sampling_rate": 1.0, "steps": 3},
        {"epsilon": [0, -1], "delta": [0, 1], "sampling_rate": [0, 1.1], "steps": [0, -1, 1.5]},
    ),
    (
        subsampled_epsilon,
        {"noise_multiplier": 1.0, "sampling_rate": 1.0, "steps": 3, "delta": 1e-5},
        {"noise_multiplier": [0, -1], "delta": [0, 1], "sampling_rate": [0, 1.1], "steps": [0, -1, 1.5]},
    ),
]
CASES = [
    pytest.param(function, good, name, value, id=f"{function.__name__}-{name}-{value!r:.12}")
    for function, good, bad in CALLS
    for name, values in bad.items()
    for value in [*values, *NOT_NUMBERS]
    if not (value is None and name == "attribute_clip_norm")
    and not (value is None and name in ("epsilon_record", "mu_release"))
    and not (value is None and function is Known)
]


@pytest.mark.parametrize(("function", "good", "name", "value"), CASES)
def test_a_wrong_number_gives_one_sentence_that_names_it(function, good, name, value):
    function(**good)
    with pytest.raises(ValueError, match=rf"^{name} = .*: give .*\.$") as error:
        function(**{**good, name: value})
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 250


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: Release(**{**RELEASE, "relation": "records"}),
            "relation = 'records'.*did you mean 'record'",
        ),
        (
            lambda: Release(**{**RELEASE, "chosen": "free"}),
            "chosen = 'free' is not allowed: give one of fixed",
        ),
        (lambda: Release(**{**RELEASE, "name": ""}), "name = ''"),
        (lambda: calibrate_noise(**NOISE, calibration="papr"), "did you mean 'paper'"),
        (lambda: plan_step(**{**PLAN, "calibration": "papr"}), "calibration = 'papr'.*did you mean 'paper'"),
        (
            lambda: plan_step(**{**PLAN, "calibration": "paper"}, sampling_rate=0.1),
            "sampling_rate = 0.1 is not allowed with calibration 'paper'",
        ),
        (
            lambda: plan_step(**{**PLAN, "calibration": "tight"}, mu_release=0.1),
            "mu_release = 0.1 contradicts calibration 'tight'",
        ),
        (lambda: plan_step(**PLAN, sampling_rate=0.1, share=0.9), "share = 0.9 contradicts sampling_rate"),
        (lambda: StepCalibration("client", lambda request: 1.0), "relation = 'client'"),
        (lambda: StepCalibration("record", 0.3), "sigma = 0.3 is not allowed: give a function"),
        (lambda: plan_step(**PLAN, epsilon_record=2.0), "epsilon_record = 2.0 contradicts"),
        (lambda: plan_step(**PLAN, attribute_clip_norm=0.5), "attribute_clip_norm = 0.5 contradicts"),
        (lambda: plan_step(**{**PLAN, "calibration": "attribute"}), "attribute_clip_norm is missing"),
        (lambda: plan_step(**PLAN, mu_release=0.1, sampling_rate=0.1), "mu_release = 0.1 contradicts"),
        (
            lambda: plan_step(
                **{**PLAN, "calibration": "attribute"}, attribute_clip_norm=0.3, sampling_rate=0.1
            ),
            "sampling_rate = 0.1 is not allowed with attribute-level",
        ),
        (lambda: StepMechanism(**STEP, attribute_clip_norm=0.3, sampling_rate=0.1), "sampling_rate = 0.1"),
        (lambda: calibrate_noise(**NOISE, attribute_clip_norm=0.5), "attribute_clip_norm = 0.5 contradicts"),
        (
            lambda: calibrate_noise(**{**NOISE, "delta": 0.9}, calibration="tight", contribution=0.0),
            "give a delta below 0.8",
        ),
        (lambda: compose_mu([0.1, -0.1]), "mu = -0.1"),
        (lambda: composed_epsilon([(1.0, 0.1, 0)], 1e-5), "steps = 0"),
        (lambda: PrivacyFilter({"person": 1.0}), "relation = 'person'"),
        (lambda: PrivacyFilter({"record": math.nan}), "budget mu = nan"),
        (lambda: PrivacyFilter({"record": 1.0}, {"record": -1.0}), r"spent mu\^2 = -1.0"),
        (lambda: PrivacyFilter({"record": 1.0}).remaining("person"), "relation = 'person'"),
        (lambda: Ledger().guarantee(0, "person", 1e-5), "relation = 'person'"),
        (lambda: Ledger().guarantee(0, "record", 2.0), "delta = 2.0"),
        (lambda: Ledger().guarantee(0, "record", 1e-5, budget_mu=-1.0), "budget_mu = -1.0"),
    ],
)
@pytest.mark.filterwarnings("ignore::fedveil.privacy.WeakDelta")
def test_a_contradiction_gives_one_sentence(call, words):
    with pytest.raises(ValueError, match=words) as error:
        call()
    assert "\n" not in str(error.value)


def test_numpy_numbers_are_numbers_and_are_stored_as_plain_ones():
    release = Release(np.int64(3), np.int32(1), 0, "g", "record", np.float32(0.5), np.float64(2))
    assert release == Release(3, 1, 0, "g", "record", 0.5, 2.0)
    assert [type(value) for value in (release.client, release.sensitivity)] == [int, float]
    assert gaussian_mu(np.float64(1), np.float64(1e-5)) == gaussian_mu(1, 1e-5)


@pytest.mark.parametrize(
    "call",
    [
        lambda delta: plan_step(**{**PLAN, "delta": delta}),
        lambda delta: calibrate_noise(**{**NOISE, "delta": delta}),
    ],
)
def test_a_delta_above_one_over_n_warns_and_names_n(call):
    with pytest.warns(WeakDelta, match="n = 100 records"):
        call(0.011)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(0.01)
