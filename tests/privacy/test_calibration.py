"""Noise calibration of one release: golden values, the four rules, extremes, monotone."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.privacy import calibrate_noise, gaussian_delta, gaussian_mu

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())["fedsva_sigma"]
RULES = ["paper", "tight", "uniform", "attribute"]

arguments = st.fixed_dictionaries(
    {
        "clip_norm": st.floats(1e-3, 1e3),
        "epsilon": st.floats(-3, 3).map(lambda x: 10.0**x),
        "num_records": st.integers(1, 10**6),
        "delta": st.floats(-300, -0.2).map(lambda x: 10.0**x),
        "contribution": st.floats(0, 1),
        "beta": st.floats(0, 3000),
        "calibration": st.sampled_from(RULES),
    }
)
pytestmark = pytest.mark.filterwarnings("ignore::fedveil.privacy.WeakDelta")


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: f"epsilon {row['epsilon']} n {row['num_records']}")
def test_the_published_noise_matches_the_golden_values(row):
    noise = calibrate_noise(
        clip_norm=row["clip"],
        epsilon=row["epsilon"],
        num_records=row["num_records"],
        delta=row["delta"],
        contribution=row["contribution"],
        beta=row["beta"],
        calibration="paper",
    )
    assert noise.sigma == pytest.approx(row["sigma"], rel=1e-9)
    assert noise.tolerance == pytest.approx(row["tolerance"], rel=1e-9)
    assert noise.mu == noise.mu_record == pytest.approx(row["mu"], rel=1e-9)
    assert noise.delta_nominal == pytest.approx(row["delta_classical"], rel=1e-9)
    assert noise.delta_exact == pytest.approx(row["delta_exact"], rel=1e-9)
    assert noise.sensitivity == 2 * row["clip"] / row["num_records"]


@settings(deadline=None)
@given(arguments)
def test_every_calibration_is_finite_and_consistent_however_extreme(chosen):
    noise = calibrate_noise(**chosen)
    for value in (noise.sigma, noise.sensitivity, noise.mu, noise.mu_record, noise.tolerance):
        assert math.isfinite(value)
        assert value > 0
    assert noise.mu == noise.sensitivity / noise.sigma
    assert 0 < noise.delta_exact <= 1
    if chosen["calibration"] != "paper":
        assert noise.delta_exact <= noise.delta_nominal
        assert noise.delta_exact == pytest.approx(noise.delta_nominal, rel=1e-9)


@settings(deadline=None)
@given(arguments, st.floats(1e-6, 1), st.integers(1, 1000))
def test_noise_is_monotone_in_every_argument(chosen, more, records):
    sigma = calibrate_noise(**chosen).sigma

    def changed(**change):
        return calibrate_noise(**{**chosen, **change}).sigma

    assert changed(epsilon=chosen["epsilon"] * (1 + more)) < sigma
    assert changed(num_records=chosen["num_records"] + records) < sigma
    assert changed(clip_norm=chosen["clip_norm"] * (1 + more)) > sigma
    assert changed(delta=chosen["delta"] * (1 - more * 0.9)) >= sigma
    assert changed(contribution=chosen["contribution"] + (1 - chosen["contribution"]) * more) >= sigma
    assert changed(beta=chosen["beta"] + 100 * more) >= sigma


def test_uniform_is_the_analytic_gaussian_whatever_the_contribution():
    sigmas = {
        calibrate_noise(clip_norm=1.0, epsilon=1.0, num_records=100, delta=1e-5, contribution=r, beta=b).sigma
        for r in (0.0, 1.0)
        for b in (0.0, 99.0)
    }
    assert sigmas == {2 / 100 / gaussian_mu(1.0, 1e-5)}


@pytest.mark.parametrize(("epsilon", "less"), [(0.2, 0.33), (1, 0.23), (4, 0.11), (8, 0.01)])
def test_tight_needs_less_noise_than_the_published_formula_for_the_same_statement(epsilon, less):
    """The shares are those of the exact Gaussian against the classical bound at delta 1e-5."""
    common = {"clip_norm": 1.0, "epsilon": epsilon, "num_records": 500, "delta": 1e-5, "contribution": 0.3}
    paper, tight = (calibrate_noise(**common, calibration=rule) for rule in ("paper", "tight"))
    assert 1 - tight.sigma / paper.sigma == pytest.approx(less, abs=0.011)
    assert tight.delta_nominal == paper.delta_nominal


def test_the_published_formula_stops_giving_its_delta_at_large_epsilon():
    def exact_over_stated(epsilon):
        noise = calibrate_noise(
            clip_norm=1.0, epsilon=epsilon, num_records=500, delta=1e-5, contribution=0.0, calibration="paper"
        )
        return noise.delta_exact / noise.delta_nominal

    assert exact_over_stated(8.3) < 1 < exact_over_stated(8.6)


def test_the_contribution_hardly_moves_the_published_noise():
    def ratio(delta, beta=0.0):
        low, high = (
            calibrate_noise(
                clip_norm=1.0,
                epsilon=1.0,
                num_records=9,
                delta=delta,
                contribution=r,
                beta=beta,
                calibration="paper",
            ).sigma
            for r in (0.0, 1.0)
        )
        return high / low

    assert ratio(1e-5) == pytest.approx(math.sqrt(1 + 1 / (2 * math.log(1e5))), rel=1e-12)
    assert ratio(1e-5) == pytest.approx(1.021, abs=1e-3)
    assert ratio(0.02) == pytest.approx(1.062, abs=1e-3)
    assert ratio(1e-5, beta=30.0) == 1


def test_attribute_noise_is_proportional_to_the_contribution_down_to_a_floor():
    def noise(contribution, **more):
        return calibrate_noise(
            clip_norm=2.0,
            epsilon=1.0,
            num_records=100,
            delta=1e-5,
            contribution=contribution,
            calibration="attribute",
            **more,
        )

    assert noise(0.8).sigma == pytest.approx(2 * noise(0.4).sigma, rel=1e-12)
    assert noise(0.01).attribute_clip_norm == noise(0.0).attribute_clip_norm == 0.05 * 2.0
    third = noise(0.3)
    assert third.attribute_clip_norm == 0.3 * 2.0
    assert third.sensitivity == 2 * 0.6 / 100
    assert third.mu_record == pytest.approx(third.mu / 0.3, rel=1e-12)
    assert gaussian_delta(1.0, third.mu) <= 1e-5
    assert noise(0.9, attribute_clip_norm=0.5).attribute_clip_norm == 0.5
