"""The convergence bound: it holds on quadratic problems, and none of its constants could be smaller."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.privacy.convergence import ConvergenceBound, StepTooLarge, convergence_bound, softmax_smoothness

GOOD = {
    "initial_gap": 2.0,
    "step_size": 0.1,
    "num_rounds": 20,
    "smoothness": 4.0,
    "num_parameters": 10,
    "weights": (0.25, 0.75),
    "sigmas": (0.2, 0.1),
    "squared_bias": 0.3,
}


def descend(hessians, minima, weights, sigmas, *, step, rounds, start, bias, repeats, rng):
    """Squared gradient norms (rounds, repeats) of f = sum_i w_i (x - a_i)'A_i(x - a_i)/2, clients simulated apart."""
    x = np.tile(start, (repeats, 1))
    norms = np.empty((rounds, repeats))
    for t in range(rounds):
        update, gradient = np.zeros_like(x), np.zeros_like(x)
        for hessian, minimum, weight, sigma in zip(hessians, minima, weights, sigmas, strict=True):
            own = (x - minimum) @ hessian
            gradient += weight * own
            update += weight * (own + sigma * rng.standard_normal(x.shape))
        norms[t] = (gradient**2).sum(axis=1)
        x = x - step * (update + bias(gradient))
    return norms


def unbiased(gradient):
    return np.zeros_like(gradient)


def constant(gradient):
    return np.full_like(gradient, 0.2)


def clipping(gradient):
    """What clipping the whole gradient to norm 1 adds to it: a bias against the gradient, at worst -1 times it."""
    norm = np.linalg.norm(gradient, axis=1, keepdims=True)
    return gradient * (np.minimum(1, 1 / np.maximum(norm, 1e-300)) - 1)


@pytest.mark.parametrize("bias", [unbiased, constant, clipping])
@pytest.mark.parametrize("share_of_largest_step", [0.1, 0.5, 1.0])
def test_the_mean_squared_gradient_stays_below_the_bound(bias, share_of_largest_step):
    """400 runs of three clients; false alarm below 1e-6: five standard errors above a mean that is below the bound."""
    rng = np.random.default_rng(7)
    p, rounds, weights, sigmas = 12, 60, (0.5, 0.3, 0.2), (0.05, 0.4, 1.0)
    roots = rng.standard_normal((3, p, p))
    hessians = roots @ roots.transpose(0, 2, 1) / p
    minima, start = rng.standard_normal((3, p)), 3 * rng.standard_normal(p)
    total = np.tensordot(weights, hessians, 1)
    largest = float(np.linalg.eigvalsh(total)[-1])
    optimum = np.linalg.solve(
        total, sum(w * h @ a for w, h, a in zip(weights, hessians, minima, strict=True))
    )
    gap = float((start - optimum) @ total @ (start - optimum)) / 2  # f_0 - f* of a quadratic
    step = share_of_largest_step / largest
    squared_bias = []

    def recorded(gradient):
        added = bias(gradient)
        squared_bias.append((added**2).sum(axis=1).mean())
        return added

    norms = descend(
        hessians,
        minima,
        weights,
        sigmas,
        step=step,
        rounds=rounds,
        start=start,
        bias=recorded,
        repeats=400,
        rng=rng,
    )
    bound = convergence_bound(
        initial_gap=gap,
        step_size=step,
        num_rounds=rounds,
        smoothness=largest,
        num_parameters=p,
        weights=weights,
        sigmas=sigmas,
        squared_bias=float(np.mean(squared_bias)),
    )
    found = norms.mean(axis=0)
    assert found.mean() < bound.total + 5 * found.std() / math.sqrt(found.size)
    assert min(bound.optimization, bound.noise) > 0


@pytest.mark.parametrize("share_of_largest_step", [0.05, 0.5, 1.0])
def test_the_noise_term_is_loose_by_two_minus_eta_l_on_a_round_bowl(share_of_largest_step):
    """Stationary E|grad f|^2 = eta L p s^2/(2 - eta L) in closed form; five standard errors: false alarm below 1e-6."""
    rng, p, smoothness, sigmas, weights = np.random.default_rng(11), 20, 3.0, (0.3, 0.6), (0.4, 0.6)
    step = share_of_largest_step / smoothness
    settled = round(10 / share_of_largest_step)
    norms = descend(
        [smoothness * np.eye(p)] * 2,
        np.zeros((2, p)),
        weights,
        sigmas,
        step=step,
        rounds=settled + 1,
        start=np.zeros(p),
        bias=unbiased,
        repeats=4000,
        rng=rng,
    )[-1]
    bound = convergence_bound(
        initial_gap=0.0,
        step_size=step,
        num_rounds=settled,
        smoothness=smoothness,
        num_parameters=p,
        weights=weights,
        sigmas=sigmas,
        squared_bias=0.0,
    )
    looseness = 2 - share_of_largest_step
    error = 5 * norms.std() / math.sqrt(norms.size)
    assert norms.mean() == pytest.approx(bound.noise / looseness, abs=error)
    assert error < 0.03 * bound.noise


def test_the_optimization_term_is_met_by_one_step_to_the_minimum():
    """f = L |x|^2/2 with eta = 1/L: the whole sum of squared gradients is |grad f_0|^2 = 2 L f_0."""
    start, smoothness, rounds = np.array([1.0, -2.0, 3.0]), 5.0, 8
    norms = descend(
        [smoothness * np.eye(3)],
        np.zeros((1, 3)),
        (1.0,),
        (0.0,),
        step=1 / smoothness,
        rounds=rounds,
        start=start,
        bias=unbiased,
        repeats=1,
        rng=np.random.default_rng(0),
    )
    gap = smoothness * float(start @ start) / 2
    bound = convergence_bound(
        **{
            **GOOD,
            "initial_gap": gap,
            "step_size": 1 / smoothness,
            "smoothness": smoothness,
            "num_rounds": rounds,
        }
    )
    assert norms.mean() == pytest.approx(bound.optimization, rel=1e-12)


def test_the_bias_term_is_met_where_descent_settles_against_a_constant_bias():
    """Where grad f = -b nothing moves, so that a constant bias leaves a squared gradient of |b|^2."""
    p = 6
    norms = descend(
        [np.eye(p)],
        np.zeros((1, p)),
        (1.0,),
        (0.0,),
        step=0.5,
        rounds=200,
        start=np.zeros(p),
        bias=constant,
        repeats=1,
        rng=np.random.default_rng(0),
    )
    bound = convergence_bound(**{**GOOD, "squared_bias": p * 0.2**2})
    assert norms[-1] == pytest.approx(bound.clipping_bias, rel=1e-12)


def test_the_terms_are_those_of_the_formula():
    bound = convergence_bound(**GOOD)
    assert bound.optimization == pytest.approx(2 * 2.0 / (0.1 * 20), rel=1e-15)
    assert bound.clipping_bias == 0.3
    assert bound.noise == pytest.approx(0.1 * 4.0 * 10 * (0.25**2 * 0.2**2 + 0.75**2 * 0.1**2), rel=1e-15)
    assert bound.total == ConvergenceBound(2.0, 0.3, bound.noise).total == 2.3 + bound.noise


@settings(deadline=None)
@given(st.floats(1e-12, 1e12))
def test_the_step_one_over_l_is_always_allowed(smoothness):
    chosen = {**GOOD, "smoothness": smoothness, "step_size": 1 / smoothness}
    assert convergence_bound(**chosen).total > 0
    with pytest.raises(StepTooLarge, match="above 1/L"):
        convergence_bound(**{**chosen, "step_size": 1.001 / smoothness})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"initial_gap": -0.1}, "initial_gap = -0.1"),
        ({"squared_bias": math.nan}, "squared_bias = nan"),
        ({"step_size": 0.0}, "step_size = 0.0"),
        ({"num_rounds": 0}, "num_rounds = 0"),
        ({"num_parameters": 1.5}, "num_parameters = 1.5"),
        ({"smoothness": math.inf}, "smoothness = inf"),
        ({"weights": (0.5, 0.4)}, "the weights sum to 0.9"),
        ({"weights": (1.25, -0.25)}, "weight = 1.25"),
        ({"weights": (1.0,)}, "1 weights and 2 sigmas"),
        ({"weights": (), "sigmas": ()}, "0 weights and 0 sigmas"),
        ({"sigmas": (0.1, -1.0)}, "sigma = -1.0"),
    ],
)
def test_an_argument_outside_its_range_is_refused_by_name(change, words):
    with pytest.raises(ValueError, match=words):
        convergence_bound(**{**GOOD, **change})


def test_extremes_give_infinity_and_no_exception():
    bound = convergence_bound(**{**GOOD, "sigmas": (1e300, 0.0), "initial_gap": 1e308, "step_size": 1e-9})
    assert bound.noise == bound.optimization == bound.total == math.inf


def softmax_gradient(flat, records, labels, classes):
    """Gradient of the mean cross-entropy of softmax regression, weights (classes, features + 1) flattened."""
    inputs = np.hstack([records, np.ones((len(records), 1))])
    scores = inputs @ flat.reshape(classes, -1).T
    q = np.exp(scores - scores.max(axis=1, keepdims=True))
    q /= q.sum(axis=1, keepdims=True)
    return ((q - np.eye(classes)[labels]).T @ inputs / len(records)).ravel()


def largest_curvature(flat, records, labels, classes):
    """Largest eigenvalue of the Hessian, by central differences of the gradient."""
    width = 1e-5
    rows = [
        (
            softmax_gradient(flat + shift, records, labels, classes)
            - softmax_gradient(flat - shift, records, labels, classes)
        )
        / (2 * width)
        for shift in width * np.eye(flat.size)
    ]
    hessian = np.array(rows)
    return float(np.linalg.eigvalsh((hessian + hessian.T) / 2)[-1])


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_no_softmax_regression_on_features_from_0_to_1_is_steeper_than_the_stated_smoothness(classes):
    rng, p = np.random.default_rng(classes), 5
    for scale in (0.0, 0.3, 3.0):
        for size in (1, 4):
            records = rng.integers(0, 2, (size, p)).astype(float)
            labels = rng.integers(0, classes, size)
            flat = scale * rng.standard_normal(classes * (p + 1))
            assert largest_curvature(flat, records, labels, classes) <= softmax_smoothness(p) * (1 + 1e-6)


def test_two_even_classes_and_features_of_1_attain_the_stated_smoothness():
    for p in (1, 4, 9):
        curvature = largest_curvature(np.zeros(2 * (p + 1)), np.ones((1, p)), np.array([0]), 2)
        assert curvature == pytest.approx(softmax_smoothness(p), rel=1e-6)
    with pytest.raises(ValueError, match="num_features = 0"):
        softmax_smoothness(0)
