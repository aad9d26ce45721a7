"""The plugin is found under its names and does what it says."""

import math

import numpy as np
import pytest
from fedveil_example.decaying_steps import DecayingSteps
from fedveil_example.zcdp import ZCDP
from flwr.app import MetricRecord

from fedveil import plugins
from fedveil.privacy import StepRequest, plan_step, zcdp_epsilon
from fedveil.strategies import Fleet, PrivateAveraging, ServerOptimizer, to_record
from fedveil.streams import Streams


def test_fedveil_finds_both_under_their_names():
    """As a run does that names them."""
    assert plugins.resolve("strategy", "decaying-steps") is DecayingSteps
    assert plugins.resolve("calibration", "zcdp") is ZCDP


def decaying_steps(**options: float) -> DecayingSteps:
    """The strategy, for a run that never takes place."""
    return DecayingSteps(
        fleet=Fleet(node_of={0: 1}, examples={0: 10}),
        streams=Streams.seeded("a test", 1),
        optimizer=ServerOptimizer("plain"),
        plans={0: None},
        run="a-test",
        code={},
        **options,
    )


@pytest.mark.parametrize("server_round", [1, 4, 100])
@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_a_round_goes_its_share_of_the_way(monkeypatch: pytest.MonkeyPatch, server_round: int, power: float):
    """t^-power of the step that averaging would take."""
    stepped = to_record({"weight": np.array([3.0, -1.0], np.float32)})
    monkeypatch.setattr(PrivateAveraging, "configure_train", lambda *_: [])
    monkeypatch.setattr(PrivateAveraging, "aggregate_train", lambda *_: (stepped, MetricRecord()))
    strategy = decaying_steps(power=power)
    strategy.configure_train(server_round, to_record({"weight": np.ones(2, np.float32)}), None, None)
    arrays, _ = strategy.aggregate_train(server_round, [])
    share = 1 / server_round**power
    np.testing.assert_allclose(arrays["weight"].numpy(), [1 + 2 * share, 1 - 2 * share], rtol=1e-6)


@pytest.mark.parametrize("power", [-0.1, 1.1, math.nan])
def test_a_power_out_of_range_is_refused(power: float):
    """With the value, and what is allowed."""
    with pytest.raises(ValueError, match="must lie in"):
        decaying_steps(power=power)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_the_noise_of_all_steps_composes_to_epsilon_under_zcdp(epsilon: float):
    """The sum of rho = mu^2/2 converts back to the epsilon that was asked for."""
    request = StepRequest(200, 1.5, None, epsilon, 1e-5, 40)
    rho = 40 * (2 * 1.5 / 200 / ZCDP.sigma(request)) ** 2 / 2
    assert zcdp_epsilon(rho, 1e-5) == pytest.approx(epsilon, rel=1e-12)


def test_it_is_more_noise_than_exact_accounting_asks_for():
    """Which is why a client's filter lets every step pass."""
    settings = {"num_records": 200, "clip_norm": 1.5, "epsilon": 1.0, "delta": 1e-5, "num_releases": 40}
    exact = plan_step(**settings, calibration="uniform")
    assert plan_step(**settings, calibration=ZCDP).sigma > 1.1 * exact.sigma
