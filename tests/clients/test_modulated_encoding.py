"""From records to messages: the same as one record at a time, clipped whatever comes, and distributed as it must be."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from fedveil.clients.modulated_encoding import (
    RecordNotFinite,
    encode_gradients,
    encode_messages,
    words_needed,
)
from fedveil.clients.modulated_request import MessageRequest
from fedveil.clients.modulated_variant import VariantPlan
from fedveil.privacy import Modulation, draw_directions, plan_gradients, plan_messages
from fedveil.streams import Streams

D = 4
STREAMS = Streams.seeded("c0ffee", 5)


def variant(
    *,
    m: int = 1,
    label_scale: float | None = None,
    bound: float = 1.5,
    mechanism: str = "modulated",
    **wave: float,
) -> VariantPlan:
    modulation = Modulation(**{"alpha": 0.3, "amplitude": 0.5, "frequency": 2.0, **wave}, num_directions=m)
    plan: Any = None
    if mechanism == "gradient":
        plan = plan_gradients(epsilon=4.0, delta=1e-5, clip_norm=bound)
    elif mechanism != "unnoised":
        plain = modulation if mechanism == "modulated" else Modulation(modulation.alpha, 0.0, 0.0, 1)
        plan = plan_messages(
            epsilon=4.0, delta=1e-5, bound=bound, modulation=plain, label_privacy=label_scale is not None
        )
    return VariantPlan(mechanism, plan, modulation, bound, label_scale)  # type: ignore[arg-type]


def request(chosen: VariantPlan, **changes: Any) -> MessageRequest:
    m = chosen.modulation.num_directions
    directions = draw_directions(m, D, STREAMS.stream("directions").normal)
    told = {
        "round": 1,
        "run": "run",
        "variant": "main",
        "mechanism": chosen.mechanism,
        "clients": np.arange(3),
        "each": chosen.mechanism != "gradient",
        "coefficients": np.array([0.5, -1.0, 2.0, 0.0, 0.3]),
        "directions": directions,
    }
    return MessageRequest(**{**told, **changes})


def words(chosen: VariantPlan, count: int, seed: int = 5) -> dict[str, np.ndarray]:
    return {
        kind: Streams.seeded("c0ffee", seed).words_of(kind, round=1, first=0, count=count, words_each=number)
        for kind, number in words_needed(chosen, D).items()
    }


def encode(chosen: VariantPlan, x: np.ndarray, y: np.ndarray, **changes: Any) -> Any:
    how = encode_gradients if chosen.mechanism == "gradient" else encode_messages
    return how(x, y, np.arange(len(y)) + 70, words(chosen, len(y)), chosen, request(chosen, **changes))


# one record at a time, from the formulas


def normal(word: int) -> float:
    tail = (float(word >> 1) + 0.5) * 2.0**-64
    return float(special.ndtri(tail)) * (1.0 if word & 1 else -1.0)


def uniform(word: int) -> float:
    return ((word >> 12) + 0.5) * 2.0**-52


def one_message(
    chosen: VariantPlan, asked: MessageRequest, x: list[float], y: float, own: dict[str, list[int]]
) -> tuple[list[float], float]:
    if asked.center is not None and asked.spread is not None:
        x = [(value - c) / s for value, c, s in zip(x, asked.center, asked.spread, strict=True)]
    label = y if chosen.label_scale is None else y / chosen.label_scale
    joint = x if chosen.label_scale is None else [*x, label]
    norm = math.sqrt(math.fsum(value * value for value in joint))
    shrink = min(1.0, chosen.bound / norm) if norm else 1.0
    x = [shrink * value for value in x]
    wave = chosen.modulation
    message = [wave.scale * value for value in x]
    if wave.amplitude > 0:
        for direction, word in zip(asked.directions.tolist(), own["phases"], strict=True):
            inner = math.fsum(a * b for a, b in zip(x, direction, strict=True))
            height = math.cos(wave.frequency * inner + 2 * math.pi * uniform(word))
            scale = wave.amplitude / math.sqrt(wave.num_directions)
            message = [value + scale * height * v for value, v in zip(message, direction, strict=True)]
    if chosen.plan is not None:
        message = [
            value + chosen.sigma * normal(word) for value, word in zip(message, own["noise"], strict=True)
        ]
    if chosen.label_scale is not None:
        label = wave.scale * shrink * label
        if chosen.plan is not None:
            label += chosen.sigma * normal(own["label-noise"][0])
    return message, label


def records(number: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(number)
    return rng.uniform(-1.5, 1.5, (number, D)).astype(np.float32), rng.normal(size=number) * 2


@pytest.mark.parametrize("estimated", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"m": 3},
        {"m": 2, "label_scale": 3.0},
        {"amplitude": 0.0},
        {"alpha": 2.5},
        {"mechanism": "range", "label_scale": 0.7},
        {"mechanism": "unnoised"},
    ],
)
def test_a_message_is_that_of_its_record_alone(settings: dict[str, Any], estimated: bool) -> None:
    chosen = variant(**settings)
    changes: dict[str, Any] = {}
    if estimated and chosen.mechanism != "range":
        changes = {"center": np.array([0.1, 0.0, -0.2, 0.3]), "spread": np.array([0.5, 1.0, 2.0, 0.1])}
    x, y = records(40)
    encoded, asked, drawn = encode(chosen, x, y, **changes), request(chosen, **changes), words(chosen, 40)
    for place in range(40):
        own = {kind: each[place].tolist() for kind, each in drawn.items()}
        message, label = one_message(chosen, asked, x[place].astype(float).tolist(), float(y[place]), own)
        rounding = 0.0 if chosen.plan is None else 0.501 * chosen.step
        assert encoded.messages[place] == pytest.approx(message, rel=1e-12, abs=1e-12 + rounding)
        noised_label = chosen.label_scale is not None
        assert encoded.labels[place] == pytest.approx(label, rel=1e-12, abs=1e-12 + rounding * noised_label)


@pytest.mark.parametrize("estimated", [False, True])
def test_a_gradient_is_that_of_its_record_alone(estimated: bool) -> None:
    chosen = variant(mechanism="gradient", bound=2.0)
    changes: dict[str, Any] = {"center": np.full(D, 0.1), "spread": np.full(D, 0.5)} if estimated else {}
    x, y = records(40)
    encoded, drawn = encode(chosen, x, y, **changes), words(chosen, 40)
    beta = request(chosen).coefficients.tolist()
    assert encoded.labels.size == 0
    for place in range(40):
        row = [*((x[place].astype(float) - 0.1) / 0.5 if estimated else x[place].astype(float)), 1.0]
        residual = math.fsum(a * b for a, b in zip(row, beta, strict=True)) - y[place]
        gradient = [residual * value for value in row]
        shrink = min(1.0, 2.0 / math.sqrt(math.fsum(value * value for value in gradient)))
        noise = [chosen.sigma * normal(word) for word in drawn["noise"][place].tolist()]
        expected = [shrink * g + e for g, e in zip(gradient, noise, strict=True)]
        assert encoded.messages[place] == pytest.approx(expected, rel=1e-12, abs=1e-12 + 0.501 * chosen.step)


@pytest.mark.parametrize("bound", [1e-3, 1.0, 1e5, 1e9])
@pytest.mark.parametrize(
    "settings", [{}, {"label_scale": 2.0}, {"mechanism": "range"}, {"mechanism": "gradient"}]
)
def test_noised_messages_lie_on_a_grid_that_is_coarse_beside_the_last_bits_of_a_double(settings, bound):
    """Whole multiples of a step that is far finer than the noise, and of which a double of that size has many."""
    chosen = variant(**settings, bound=bound)
    x, y = records(40)
    encoded = encode(chosen, x, y)
    values = encoded.messages.ravel()
    if settings.get("label_scale"):
        values = np.append(values, encoded.labels)
    assert (values / chosen.step == np.rint(values / chosen.step)).all()
    assert np.abs(values).max() / chosen.step < 2.0**51
    assert chosen.sigma * 2.0**-25 < chosen.step <= chosen.sigma * 2.0**-20


# clipping

finite32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
finite = st.floats(allow_nan=False, allow_infinity=False)


@settings(deadline=None)
@given(st.lists(finite32, min_size=D, max_size=D), finite, st.floats(1e-6, 1e6), st.booleans())
def test_no_record_passes_its_bound_whatever_it_holds(row, target, bound, private_label):
    """Without noise and with c = 1 the message is the clipped record; its norm in exact arithmetic."""
    chosen = variant(
        mechanism="unnoised", bound=bound, alpha=0.0, label_scale=1e-3 if private_label else None
    )
    y = np.array([target if private_label else 0.0])
    encoded = encode(chosen, np.array([row], dtype=np.float32), y)
    joint = encoded.messages[0].tolist() + (encoded.labels.tolist() if private_label else [])
    assert sum(Fraction(value) ** 2 for value in joint) <= Fraction(bound) ** 2
    before = math.hypot(*row, target / 1e-3 if private_label else 0.0)
    if before < bound * (1 - 1e-12):
        assert encoded.messages[0].tolist() == row
        assert encoded.clipped == 0
    if before > bound:
        assert encoded.clipped == 1
        assert math.hypot(*joint) >= bound * (1 - 1e-14)


@settings(deadline=None)
@given(st.lists(finite32, min_size=D, max_size=D), finite, st.floats(1e-6, 1e6))
def test_no_gradient_passes_its_bound_and_one_that_is_not_finite_is_0(row, target, bound):
    chosen = variant(mechanism="gradient", bound=bound)
    with_record = encode(
        chosen, np.array([row], dtype=np.float32), np.array([target]), coefficients=np.full(D + 1, 1e12)
    )
    nothing = encode(chosen, np.zeros((1, D)), np.zeros(1), coefficients=np.zeros(D + 1))
    # noise is added to both, and rounds the difference
    moved = np.linalg.norm(with_record.messages - nothing.messages)
    assert moved <= bound + math.sqrt(D + 1) * chosen.step


def test_the_number_of_clipped_records_is_counted() -> None:
    x = np.zeros((5, D), dtype=np.float32)
    x[1, 0], x[3, 2] = 1.6, -9.0
    assert encode(variant(), x, np.zeros(5)).clipped == 2


# hostile and unusable records


@pytest.mark.parametrize("mechanism", ["modulated", "gradient"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("in_target", [False, True])
def test_a_record_that_is_not_finite_is_refused_by_its_client_alone(
    mechanism: str, bad: float, in_target: bool
) -> None:
    x, y = records(6)
    if in_target:
        y[4] = bad
    else:
        x[4, 1] = bad
    with pytest.raises(RecordNotFinite, match=r"^the record of client 74 holds NaN or infinity: [^0-9]*$"):
        encode(variant(mechanism=mechanism), x, y)


@pytest.mark.parametrize("shift", [{"center": np.full(D, 1e12), "spread": np.full(D, 1e-12)}])
def test_no_public_shift_makes_a_finite_record_an_error(shift: dict[str, np.ndarray]) -> None:
    """Else a server could choose one that fails, or not, as a record is above or below a value of its choice."""
    x = np.full((1, D), np.finfo(np.float32).max)
    assert np.all(np.isfinite(encode(variant(), x, np.zeros(1), **shift).messages))


def test_a_label_in_the_clear_beyond_its_public_bound_is_refused_without_its_value() -> None:
    chosen = variant()
    with pytest.raises(ValueError, match=r"passes its public bound 1.04858e\+06 in magnitude"):
        encode(chosen, np.zeros((1, D)), np.array([-1.5e6]))


def test_records_of_another_width_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"records of shape \(3, 5\) .* do not fit 3 clients of 4 features each"
    ):
        encode(variant(), np.zeros((3, 5)), np.zeros(3))


def test_records_and_words_are_left_as_they_were() -> None:
    chosen, (x, y) = variant(label_scale=1.0), records(20)
    before, drawn = (x.copy(), y.copy()), words(chosen, 20)
    kept = {kind: each.copy() for kind, each in drawn.items()}
    encode_messages(x, y, np.arange(20), drawn, chosen, request(chosen))
    assert np.array_equal(x, before[0])
    assert np.array_equal(y, before[1])
    assert all(np.array_equal(drawn[kind], kept[kind]) for kind in kept)


# the law of a message


@pytest.mark.parametrize("omega", [0.0, 1.0, 37.0])
def test_along_a_direction_the_message_is_the_record_an_arcsine_and_noise(omega: float) -> None:
    """Kolmogorov-Smirnov on 20,000 messages of one record, sigma taken out; false alarm 1e-6."""
    chosen = variant(mechanism="modulated", frequency=omega)
    x = np.tile(np.array([[0.4, -0.3, 0.2, 0.6]], dtype=np.float32), (20_000, 1))
    drawn = words(chosen, 20_000)
    encoded = encode_messages(x, np.zeros(20_000), np.arange(20_000), drawn, chosen, request(chosen))
    (direction,) = request(chosen).directions
    noise = chosen.sigma * np.array([[normal(word) for word in row] for row in drawn["noise"].tolist()])
    wave = (encoded.messages - noise) @ direction - 0.7 * (x[0].astype(float) @ direction)
    assert stats.kstest(wave / 0.5, stats.arcsine(loc=-1, scale=2).cdf).pvalue > 1e-6
    assert stats.kstest(noise.ravel() / chosen.sigma, "norm").pvalue > 1e-6
