"""The hook that quantizes: its files, its numbers against a second computation, its words, and what it refuses."""

from __future__ import annotations

import math
import re
import runpy
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedveil.artifacts import WriteFailed
from fedveil.quantization import decode_quantized, name_of, quantize_model
from fedveil.strategies.hooks.quantize import DEFAULT_SCHEMES, quantize, schemes_of

_SCENE = runpy.run_path(str(Path(__file__).with_name("finished_scene.py")))
Finished, course = _SCENE["Finished"], _SCENE["course"]

ALL = "sign,ternary-33,ternary-90,absmean-ternary,int2,int3,int8,uint4,sign/channel,int4/group-4"
HALF = """
from dataclasses import dataclass
from typing import ClassVar
from fedveil.quantization import Sign

@dataclass(frozen=True)
class HalfSign(Sign):
    kind: ClassVar[str] = "half-sign"

    @property
    def base_name(self):
        return "half-sign"

HALF, ODD = HalfSign(), 3
"""


# a second computation of codes and of r_Q


def configurations(scheme: str, final: NDArray[Any], models: list[NDArray[Any]]) -> list[NDArray[np.float64]]:
    """Weights of the models on the final one's scale, by the definitions of two quantizers, each once."""
    final = final.astype(np.float64)
    found: dict[bytes, NDArray[np.float64]] = {}
    for model in models:
        if scheme == "sign":
            scale = np.float64(np.float32(np.abs(final).mean()))
            codes = np.where(model < 0, -1.0, 1.0)
        else:
            scale = np.float64(np.float32(np.abs(final).max() / 7))
            codes = np.clip(np.rint(model.astype(np.float64) / scale), -7, 7)
        found.setdefault(codes.tobytes(), codes * scale)
    return list(found.values())


def brute_force(finished: Any, scheme: str, most: int) -> tuple[float, int, int]:
    """r_Q by a loop over records and candidates, the kept and the distinct candidates."""
    weights = configurations(scheme, finished.final["weight"], [model["weight"] for model in finished.models])
    bias = finished.final["bias"].astype(np.float64)
    losses = [
        [
            float(np.mean((weight @ record + bias - target) ** 2))
            for record, target in zip(finished.features, finished.targets, strict=True)
        ]
        for weight in weights
    ]
    kept = sorted(losses, key=math.fsum)[:most]
    rates = []
    for loss in kept[1:]:
        differences = [own - best for own, best in zip(loss, kept[0], strict=True)]
        gap = math.fsum(differences) / len(differences)
        variance = math.fsum((one - gap) ** 2 for one in differences) / len(differences)
        rates.append(gap**2 / variance / 2)
    return min(rates), len(kept), len(losses)


@pytest.mark.parametrize("most", [64, 3, 2])
@pytest.mark.parametrize("scheme", ["sign", "int4"])
def test_the_indicator_is_that_of_a_loop_over_codes_on_the_final_scales(
    tmp_path: Path, scheme: str, most: int
):
    finished = Finished(tmp_path, quantizers=scheme, candidates=most)
    quantize(finished.run())
    values = finished.report["quantizers"][scheme]
    expected, kept, distinct = brute_force(finished, scheme, most)
    assert values["r_q"] == pytest.approx(expected, rel=1e-5)  # what a code stands for is rounded to float32
    assert (values["candidates"], values["distinct"]) == (kept, distinct)
    assert values["low"] <= values["r_q"] <= values["high"]
    pair = values["pair"]
    assert pair["gap"] ** 2 / pair["deviation"] ** 2 / 2 == pytest.approx(values["r_q"], rel=1e-12)


def test_models_that_come_again_change_nothing(tmp_path: Path):
    models = course(12)
    once, often = Finished(tmp_path / "a", models), Finished(tmp_path / "b", [*models, *models])
    for finished in (once, often):
        quantize(finished.run())
    assert once.report == often.report


def test_a_scale_of_another_model_changes_nothing_of_the_codes(tmp_path: Path):
    """Checkpoints that differ by a factor have the same signs: they are one candidate, however often saved."""
    (model,) = course(1)
    grown = [{name: np.float32(factor) * array for name, array in model.items()} for factor in (1, 1.2, 1.4)]
    finished = Finished(tmp_path, grown, quantizers="sign")
    quantize(finished.run())
    assert finished.report["quantizers"]["sign"]["distinct"] == 1


# files


@pytest.fixture(scope="module")
def all_schemes(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run after the hook, in ten quantizers."""
    finished = Finished(tmp_path_factory.mktemp("all"), quantizers=ALL)
    quantize(finished.run())
    return finished


def test_every_quantizer_has_a_file_of_the_size_and_with_the_figures_that_are_told(all_schemes: Any):
    values = all_schemes.report["quantizers"]
    assert list(values) == ALL.split(",")
    for name, one in values.items():
        data = all_schemes.files[f"quantized/{name.replace('/', '-')}.safetensors"]
        assert one["bytes"] == len(data)
        model = decode_quantized(data, name)
        assert name_of(model.scheme) == name
        assert {key: one[key] for key in ("fit", "loss")} == all_schemes.figures(model.arrays())
        np.testing.assert_array_equal(model.floats["bias"], all_schemes.final["bias"])


def test_theoretical_sizes_are_bits_of_codes_scales_and_floats(all_schemes: Any):
    values = all_schemes.report["quantizers"]
    floats = 2 * 4  # the bias
    expected = {
        "sign": 12 / 8 + 4,
        "ternary-90": 12 * math.log2(3) / 8 + 4,
        "int3": 12 * 3 / 8 + 4,
        "uint4": 12 / 2 + 4 + 1,
        "sign/channel": 12 / 8 + 2 * 4,
        "int4/group-4": 12 / 2 + 4 * 4,  # rows of 6: groups of 4 and of 2
    }
    for name, size in expected.items():
        assert values[name]["theoretical-bytes"] == pytest.approx(size + floats, rel=1e-12), name
    assert all_schemes.report["float32"] == {"bytes": 14 * 4, **all_schemes.figures(all_schemes.final)}


def test_a_file_says_which_model_it_is_and_nothing_of_the_run(all_schemes: Any):
    note = decode_quantized(all_schemes.files["quantized/sign.safetensors"], "sign").note
    assert note == {"app": "scene", "model": {"app": "scene", "model": "linear"}}


def test_equal_runs_in_two_folders_leave_equal_bytes(tmp_path: Path):
    folders = [Finished(tmp_path / name) for name in "ab"]
    for finished in folders:
        quantize(finished.run())
    first, second = (
        {name: data for name, data in finished.files.items() if name.startswith(("quantized/", "rq.json"))}
        for finished in folders
    )
    assert sorted(first) == ["quantized/int4.safetensors", "quantized/sign.safetensors", "rq.json"]
    assert first == second


def test_the_ranking_is_by_r_q_and_printed_as_written(all_schemes: Any):
    report = all_schemes.report
    values = [report["quantizers"][name]["r_q"] for name in report["ranking"]]
    assert sorted(report["ranking"]) == sorted(ALL.split(","))
    assert all(first >= second for first, second in pairwise(values))
    (line,) = [line for line in all_schemes.said if line.startswith("most secure")]
    assert line == (
        "most secure against membership inference first, by r_Q on 50 public records: "
        + " > ".join(report["ranking"])
        + "; one run's ranking is a weak one (docs/r_q_study.md)"
    )
    rows = [line.split() for line in all_schemes.said if line.split()[0] in report["quantizers"]]
    assert [row[0] for row in rows] == report["ranking"]
    for row in rows:
        one = report["quantizers"][row[0]]
        assert row[1:3] == [str(one["bytes"]), f"{56 / one['bytes']:.1f}x"]
        assert row[3:5] == [f"{one['code-entropy-bits']:.2f}", f"{one['fit']:.4f}"]
        assert row[-1] == str(one["candidates"])


def test_a_value_below_the_resolution_is_printed_as_such(tmp_path: Path):
    models = course(20)
    finished = Finished(tmp_path, models, records=30, quantizers="int8")
    quantize(finished.run())
    values = finished.report["quantizers"]["int8"]
    assert values["r_q"] < 1 / 60
    (row,) = [line for line in finished.said if line.startswith("int8")]
    assert "< 0.017" in row
    assert any(line.startswith("warning, int8: Below 1/(2n)") for line in finished.said)


# later, again


def test_a_later_quantization_adds_to_what_an_earlier_one_found(tmp_path: Path):
    finished = Finished(tmp_path)
    quantize(finished.run())
    earlier = finished.report["quantizers"]
    quantize(finished.run(config={**finished.config, "quantizers": "int2,sign"}))
    assert list(finished.report["quantizers"]) == ["sign", "int4", "int2"]
    assert {name: finished.report["quantizers"][name] for name in earlier} == earlier
    assert set(finished.report["ranking"]) == {"sign", "int4", "int2"}


def test_other_conditions_do_not_stand_beside_earlier_ones(tmp_path: Path):
    finished = Finished(tmp_path)
    quantize(finished.run())
    quantize(finished.run(config={**finished.config, "quantizers": "int2", "candidates": 5}))
    assert list(finished.report["quantizers"]) == ["int2"]
    assert finished.report["most-candidates"] == 5


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '{"quantizers": 3}', '{"quantizers": {"sign": {"r_q": []}}}']
)
def test_a_report_that_no_run_wrote_is_not_overwritten(tmp_path: Path, text: str):
    finished = Finished(tmp_path)
    finished.folder.add("rq.json", text.encode())
    with pytest.raises(ValueError, match=r"rq\.json is not what a run writes \(.*\): move it away\.$"):
        quantize(finished.run())
    assert finished.files["rq.json"] == text.encode()


# when r_Q is no number


def test_one_distinct_candidate_leaves_r_q_undefined_and_the_files_written(tmp_path: Path):
    (model,) = course(1)
    finished = Finished(tmp_path, [model, model, model])
    quantize(finished.run())
    for name in ("sign", "int4"):
        values = finished.report["quantizers"][name]
        assert (values["r_q"], values["low"], values["high"], values["pair"]) == (None,) * 4
        assert values["statement"] == "r_Q is undefined: there is one candidate."
        assert f"quantized/{name}.safetensors" in finished.files
    (row,) = [line for line in finished.said if line.startswith("sign ")]
    assert re.search(r"undefined +none +1$", row)


def test_a_constant_difference_makes_r_q_infinite_and_undefined_ones_are_not_ranked(tmp_path: Path):
    (model,) = course(1)
    other = {name: -array for name, array in model.items()}
    finished = Finished(tmp_path, [other, model], quantizers="sign,int4")

    def losses(candidates: dict[str, NDArray[np.float32]]) -> NDArray[np.float64]:
        # of int4 all candidates have the same losses: its scale is the smaller one
        shift = candidates["weight"].reshape(len(candidates["weight"]), -1)[:, 0] > 0
        is_sign = len(np.unique(np.abs(candidates["weight"]))) == 1
        return np.ones((50, 1)) + 0.5 * shift * is_sign

    quantize(finished.run(losses=losses))
    report = finished.report
    assert report["quantizers"]["sign"]["r_q"] == "inf"
    assert report["quantizers"]["int4"]["r_q"] is None
    assert report["ranking"] == ["sign"]
    assert not any(line.startswith("most secure") for line in finished.said)
    assert any(line.startswith("int4: r_Q is undefined: ") for line in finished.said)


def test_a_quantizer_that_fails_is_told_by_name_and_the_others_have_their_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    finished = Finished(tmp_path, quantizers="sign,int4,int8")
    honest = quantize_model

    def faulty(arrays: Any, scheme: Any, note: Any) -> Any:
        if name_of(scheme) == "int4":
            raise KeyError("who")
        return honest(arrays, scheme, note)

    monkeypatch.setattr("fedveil.strategies.hooks.quantize.quantize_model", faulty)
    quantize(finished.run())
    assert "quantizer int4 failed: KeyError: 'who'" in finished.said
    assert sorted(finished.report["quantizers"]) == ["int8", "sign"]


def test_one_quantizer_is_prepared_while_forward_passes_of_the_one_before_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """One, and no more: each holds all of a model's candidates."""
    names = ["sign", "int2", "int4", "int8"]
    finished = Finished(tmp_path, quantizers=",".join(names))
    reached = {name: Event() for name in names}
    asked: list[int] = []

    def prepared(arrays: Any, scheme: Any, note: Any) -> Any:
        reached[name_of(scheme)].set()
        return quantize_model(arrays, scheme, note)

    def losses(candidates: dict[str, NDArray[np.float32]]) -> NDArray[np.float64]:
        asked.append(len(candidates["weight"]))
        for name in names[: len(asked) + 1]:
            assert reached[name].wait(60), f"{name} is not prepared while that before it is judged"
        assert not any(reached[name].is_set() for name in names[len(asked) + 1 :])
        return finished.losses(candidates)

    monkeypatch.setattr("fedveil.strategies.hooks.quantize.quantize_model", prepared)
    quantize(finished.run(losses=losses))
    assert len(asked) == len(names)
    assert list(finished.report["quantizers"]) == names


def test_large_models_are_judged_some_at_a_time_to_the_same_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    whole, parts = Finished(tmp_path / "whole"), Finished(tmp_path / "parts")
    quantize(whole.run())
    monkeypatch.setattr("fedveil.strategies.hooks.quantize._BYTES_AT_ONCE", 120)
    monkeypatch.setattr("fedveil.strategies.hooks.configurations._WEIGHTS_AT_ONCE", 36)
    seen: list[int] = []

    def losses(candidates: dict[str, NDArray[np.float32]]) -> NDArray[np.float64]:
        seen.append(len(candidates["weight"]))
        return parts.losses(candidates)

    quantize(parts.run(losses=losses))
    assert max(seen) == 2
    assert parts.report["quantizers"] == whole.report["quantizers"]


# what it refuses, each in one sentence, with nothing of the run lost


def nothing_lost(finished: Any, message: str, **changes: Any) -> None:
    before = finished.files
    with pytest.raises(ValueError, match=message) as refused:
        quantize(finished.run(**changes))
    assert "\n" not in str(refused.value)
    after = finished.files
    assert {name: after[name] for name in before} == before
    assert "rq.json" not in after


def test_a_run_without_a_trajectory_is_refused(tmp_path: Path):
    finished = Finished(tmp_path, [])
    nothing_lost(finished, r"holds no trajectory, .*: run again with trajectory above 0\.$")


def test_no_public_records_are_refused(tmp_path: Path):
    nothing_lost(Finished(tmp_path), "no public record to judge quantizers on: set", num_records=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_weights_that_are_no_numbers_are_refused_by_name(tmp_path: Path, bad: float):
    models = course(3)
    models[-1]["weight"][1, 2] = bad
    nothing_lost(Finished(tmp_path, models), "Array 'weight' holds NaN or infinite weights")


def test_a_checkpoint_that_is_no_numbers_is_refused_too(tmp_path: Path):
    models = course(3)
    models[0]["weight"][1, 2] = math.nan
    nothing_lost(Finished(tmp_path, models), "Array 'weight' holds NaN or infinite weights")


def test_a_model_without_weights_of_two_dimensions_is_refused(tmp_path: Path):
    nothing_lost(Finished(tmp_path, [{"slope": np.ones(3, np.float32)}]), "nothing to quantize.*slope")


def test_losses_that_are_no_numbers_are_refused(tmp_path: Path):
    finished = Finished(tmp_path)
    nothing_lost(
        finished, "Candidate 0 has a loss that is not finite", losses=lambda c: finished.losses(c) * np.nan
    )


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("sgin", r"scheme 'sgin' is not known: .*did you mean 'sign'"),
        ("sign,int5", "scheme 'int5' is not known"),
        ("ternary-100", "above 0 and below 100"),
        (" , ", r"quantizers is empty: name at least one"),
    ],
)
def test_a_quantizer_that_there_is_not_is_refused_before_anything_is_written(
    tmp_path: Path, names: str, message: str
):
    finished = Finished(tmp_path, quantizers=names)
    before = finished.files
    nothing_lost(finished, message)
    assert finished.files == before


def test_a_disk_that_is_full_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    finished = Finished(tmp_path)

    def full(path: Path, data: bytes) -> None:
        raise WriteFailed(f"{path} could not be written (no space): make room or choose another folder.")

    monkeypatch.setattr("fedveil.artifacts.run_folder.write_bytes", full)
    with pytest.raises(WriteFailed, match=r"sign\.safetensors could not be written"):
        quantize(finished.run())
    assert finished.said == []


# names of quantizers


def test_default_quantizers_are_schemes_and_repeated_names_count_once():
    assert [name_of(scheme) for scheme in schemes_of(DEFAULT_SCHEMES)] == DEFAULT_SCHEMES.split(",")
    assert [name_of(one) for one in schemes_of("int4, sign,int4,ternary-90,ternary-90.0")] == [
        "int4", "sign", "ternary-90"
    ]  # fmt: skip


@pytest.fixture
def half(package: Callable[..., Path]) -> None:
    """A package with quantizers: one that works, one under another's name, and two that are none."""
    points = {"half-sign": "halves:HALF", "renamed": "halves:HALF", "odd": "halves:ODD", "gone": "no_such:X"}
    package("halves", {"quantizer": points}, halves=HALF)


@pytest.mark.usefixtures("half")
def test_a_packages_quantizer_is_used_under_its_name_with_any_granularity(tmp_path: Path):
    finished = Finished(tmp_path, quantizers="half-sign/channel,sign/channel")
    quantize(finished.run())
    values = finished.report["quantizers"]
    assert list(values) == ["half-sign/channel", "sign/channel"]
    assert values["half-sign/channel"]["r_q"] == values["sign/channel"]["r_q"]
    assert "quantized/half-sign-channel.safetensors" in finished.files


@pytest.mark.usefixtures("half")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("renamed", "quantizer 'renamed' of halves 1.0 calls itself 'half-sign'"),
        ("odd", "scheme 'odd' of a plugin is of type int"),
        ("gone", "quantizer 'gone' of halves 1.0 cannot be imported from no_such:X"),
        ("haf-sign", "Installed packages add gone, half-sign, odd, renamed"),
    ],
)
def test_a_packages_quantizer_that_is_none_is_refused_by_name(name: str, message: str):
    with pytest.raises(ValueError, match=message) as refused:
        schemes_of(f"sign,{name}")
    assert "\n" not in str(refused.value)


@pytest.mark.usefixtures("half")
def test_a_broken_quantizer_of_a_package_stops_no_other():
    assert [name_of(scheme) for scheme in schemes_of("sign,half-sign")] == ["sign", "half-sign"]


def test_fedveils_own_names_stay_its_own(package: Callable[..., Path]):
    package("thief", {"quantizer": {"sign": "thief:X", "int4": "thief:X"}}, thief="X = 3")
    assert [name_of(scheme) for scheme in schemes_of("sign,int4/channel")] == ["sign", "int4/channel"]
