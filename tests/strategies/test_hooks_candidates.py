"""Which models of a run are candidates of r_Q, what their codes can tell, and when the indicator warns."""

from __future__ import annotations

import math
import runpy
from pathlib import Path

import numpy as np
import pytest

from fedveil.quantization import quantize_model
from fedveil.strategies.hooks import FinishedRun, hooks_after
from fedveil.strategies.hooks.configurations import code_entropy, distinct_configurations, judge, late_models
from fedveil.strategies.hooks.quantize import quantize

_SCENE = runpy.run_path(str(Path(__file__).with_name("finished_scene.py")))
Finished, course = _SCENE["Finished"], _SCENE["course"]


@pytest.mark.parametrize(
    ("length", "skip", "first"),
    [(20, 0.0, 0), (20, 0.5, 10), (21, 0.5, 10), (64, 0.9, 56), (10, 0.9, 2), (5, 0.9, 0), (8, 0.5, 0)],
)
def test_candidates_are_the_late_models_and_at_least_eight_where_there_are(length, skip, first):
    models = [(number, {}) for number in range(length)]
    assert [number for number, _ in late_models(models, skip)] == list(range(first, length))


def test_the_published_model_comes_last_and_once():
    models = course(12)
    final = quantize_model(models[-1], "int4")
    found = distinct_configurations(final, 11, list(enumerate(models)))
    assert found[-1][0] == 11
    assert all((found[-1][1].codes[name] == codes).all() for name, codes in final.codes.items())
    assert len({tuple(one.codes["weight"].ravel()) for _, one in found}) == len(found)


def test_the_entropy_of_codes_is_that_of_their_shares():
    rng = np.random.default_rng(3)
    weights = {"weight": rng.normal(size=(100, 50)).astype(np.float32)}
    # 90 % of zeros, the rest evenly plus and minus up to chance
    told = code_entropy(quantize_model(weights, "ternary-90"))
    plus = float((quantize_model(weights, "ternary-90").codes["weight"] == 1).mean())
    shares = [0.9, plus, 0.1 - plus]
    assert told == pytest.approx(-sum(share * math.log2(share) for share in shares), abs=1e-9)
    constant = {"weight": np.ones((3, 4), np.float32)}
    assert code_entropy(quantize_model(constant, "sign")) == 0.0


def test_a_published_model_that_is_clearly_worse_than_the_best_candidate_is_warned_of():
    rng = np.random.default_rng(4)
    base = rng.exponential(size=400)
    losses = np.stack(
        [base, base + 0.3 + 0.1 * rng.normal(size=400), base + 0.2 + 0.1 * rng.normal(size=400)], 1
    )
    warning = judge([3, 7, 9], losses, most=64).warning
    assert warning is not None
    gap = losses[:, 2].mean() - losses[:, 0].mean()
    assert warning.startswith(
        "The best candidate is of round 3, and the published codes' loss is clearly above its"
    )
    assert f"(by {gap:.3g})" in warning
    assert judge([3, 7, 9], losses[:, ::-1], most=64).warning is None


def test_the_share_that_is_left_out_is_in_the_report_and_counts(tmp_path: Path):
    all_of_it, late = Finished(tmp_path / "a"), Finished(tmp_path / "b", **{"trajectory-skip": 0.5})
    for finished in (all_of_it, late):
        quantize(finished.run())
    assert late.report["trajectory-skip"] == 0.5
    distinct = [finished.report["quantizers"]["int4"]["distinct"] for finished in (all_of_it, late)]
    assert distinct == [20, 10]
    assert late.report["quantizers"]["int4"]["code-entropy-bits"] > 2


def test_one_hook_cannot_change_what_the_next_one_is_given(tmp_path: Path):
    run = Finished(tmp_path).run()
    for arrays in (run.arrays, run.trajectory[0][1]):
        with pytest.raises(ValueError, match="read-only"):
            arrays["weight"][:] = 0


def test_a_run_that_cannot_be_read_any_more_is_told_and_loses_nothing():
    said: list[str] = []

    def gone() -> FinishedRun:
        raise OSError("the data set has moved")

    hooks_after(("quantize",), gone, said.append)
    assert said == ["the hooks quantize were not run, the run's results stay: the data set has moved"]
    hooks_after((), gone, said.append)
    assert len(said) == 1
