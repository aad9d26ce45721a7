"""What clipping allows: no honest update is beyond it, and no huge one passes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from flwr.app import Array, Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from fedveil import wire
from fedveil.clients import ClientData, local_update
from fedveil.models import build_learner
from fedveil.privacy import StepMechanism
from fedveil.strategies import BadReply, check_reply
from fedveil.strategies.update_bound import LARGEST_DRAW, UpdateBound
from fedveil.streams import Streams, normals_from


def test_the_bound_is_that_of_the_formula():
    bound = UpdateBound(learning_rate=0.5, clip_norm=2.0)
    assert bound.of(3) == pytest.approx(0.5 * 3 * 2.0, rel=1e-5)
    assert bound.of(2, [0.1, 0.3]) == pytest.approx(0.5 * (2 * 2.0 + 10 * 0.4), rel=1e-5)
    assert bound.of(2, [0.1, 0.3], 0.25) == pytest.approx(0.5 * (2 * 2.0 / 0.25 + 10 * 0.4), rel=1e-5)


@pytest.mark.parametrize("given_", [{"learning_rate": 0.0}, {"clip_norm": -1.0}, {"clip_norm": math.inf}])
def test_numbers_out_of_range_are_refused(given_):
    with pytest.raises(ValueError, match="is not allowed"):
        UpdateBound(**{"learning_rate": 1.0, "clip_norm": 1.0, **given_})


def test_no_draw_of_a_client_reaches_the_noise_that_is_allowed():
    words = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
    assert np.abs(normals_from(words)).max() < 9.3 < LARGEST_DRAW
    # and an exact normal hardly does: over 10^6 coordinates, 1000 steps and 1000 clients
    assert 2 * norm.sf(LARGEST_DRAW) * 1e12 < 2e-11


@pytest.mark.parametrize(
    ("attribute_clip_norm", "rate"),
    [(None, 1.0), (0.1, 1.0), (None, 0.2)],
    ids=["uniform", "attribute", "sampled"],
)
@pytest.mark.parametrize("steps", [1, 3])
def test_honest_updates_stay_within_it(attribute_clip_norm, rate, steps):
    """Clients whose gradients are all clipped and point the same way, and noise far below and far above the clip."""
    rng = np.random.default_rng(4)
    features = (100 * rng.uniform(0.5, 1, size=(20, 3))).astype(np.float32)
    data = ClientData(features, np.zeros(20, np.int64), features / 2)
    learner = build_learner("softmax", (3,), 2)
    arrays = {name: value.detach().numpy() for name, value in learner.module.named_parameters()}
    for seed, sigma in enumerate([1e-9, 0.01, 1.0, 100.0] * 5):
        streams = Streams.seeded("c0ffee", seed)
        mechanism = StepMechanism(20, 1.0, sigma, attribute_clip_norm, rate)
        update = local_update(
            learner,
            arrays,
            data,
            mechanism=mechanism,
            steps=steps,
            learning_rate=0.7,
            noise=streams.stream("noise"),
            batches=streams.stream("batch"),
            round=1,
            client=0,
        )
        bound = UpdateBound(0.7, 1.0).of(steps, [sigma] * steps, rate)
        assert max(float(np.abs(values).max()) for values in update.delta.values()) <= bound


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 5), st.floats(1.0001, 1e6), st.sampled_from([-1, 1]))
def test_a_sum_at_the_bound_passes_and_one_beyond_does_not(scene, at, factor, sign):
    request, expected = scene.request([0, 1]), scene.expected([0, 1])
    largest = {0: 3.0, 1: 4.5}
    expected = type(expected)(**{**vars(expected), "largest": largest})

    def reply(value):
        content = scene.honest(request)
        values = np.zeros((2, 3), np.int64)
        values.reshape(-1)[at] = sign * int(value * 2**32)
        content[wire.ARRAYS]["weight"] = Array(values)
        content[wire.ARRAYS]["bias"] = Array(np.zeros(2, np.int64))
        return Message(content, reply_to=request)

    assert check_reply(reply(7.5), expected).arrays["weight"].reshape(-1)[at] == sign * int(7.5 * 2**32)
    with pytest.raises(BadReply, match="beyond what clipping and the planned noise allow"):
        check_reply(reply(7.5 * factor), expected)


def test_a_client_without_a_bound_leaves_its_node_without_one(scene):
    request, expected = scene.request([0, 1]), scene.expected([0, 1])
    expected = type(expected)(**{**vars(expected), "largest": {0: 1e-9}})
    assert check_reply(Message(scene.honest(request), reply_to=request), expected).took_part == (0, 1)
    each = scene.request([0, 1], mode="each")
    expected = type(expected)(**{**vars(scene.expected([0, 1], mode="each")), "largest": {0: 1e-9}})
    with pytest.raises(BadReply, match=r"client 0's update of weight reaches .* beyond what clipping allows"):
        check_reply(Message(scene.honest(each), reply_to=each), expected)
