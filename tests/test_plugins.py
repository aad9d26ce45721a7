"""Plugins: names of installed packages, read from their metadata, and what goes wrong with them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedveil.config import FedSVAConfig
from fedveil.config.planning import client_plans
from fedveil.plugins import GROUPS, Plugin, PluginError, check_all, find, installed, resolve
from fedveil.run.app import find_app

Install = Callable[..., Path]


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a distribution, as pip leaves one, first on the path; its modules are forgotten after the test."""
    count = iter(range(100))

    def put(name: str, names: dict[str, dict[str, str]], version: str = "1.0", **modules: str) -> Path:
        site = tmp_path / f"site-{next(count)}"
        metadata = site / f"{name.replace('-', '_')}-{version}.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        lines = [
            line
            for kind, references in names.items()
            for line in (f"[{GROUPS[kind]}]", *(f"{key} = {value}" for key, value in references.items()))
        ]
        (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
        for module, source in modules.items():
            (site / f"{module}.py").write_text(source)
            # registered before the import, so that the import is undone
            monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type]
            monkeypatch.delitem(sys.modules, module)
        monkeypatch.syspath_prepend(str(site))
        return site

    return put


@pytest.fixture
def install(put: Install) -> Install:
    """The same, with a FedVeil of one name of each kind in front of the one under test."""
    names = {kind: {f"own-{kind}": f"own_names:{kind}"} for kind in GROUPS}
    put("fedveil", names, "9.9", own_names="\n".join(f"def {kind}(): ..." for kind in GROUPS))
    return put


def names(kind: str) -> list[str]:
    return [plugin.name for plugin in installed(kind)]


# what is installed


def test_a_plugin_is_known_with_its_distribution_and_object(install: Install):
    site = install("good-things", {"model": {"wide": "good_things.nets:Wide"}}, "2.1")
    (wide, _) = sorted(installed("model"), key=lambda plugin: plugin.name != "wide")
    assert wide == Plugin("model", "wide", "good_things.nets:Wide", "good-things", "2.1", str(site))
    assert str(wide) == "model 'wide' of good-things 2.1"
    assert not wide.is_own


def test_names_come_in_order_and_kinds_stay_apart(install: Install):
    install("b", {"model": {"zebra": "b:f", "ant": "b:g"}, "dataset": {"cat": "b:h"}})
    install("a", {"model": {"bee": "a:f"}})
    assert names("model") == ["ant", "bee", "own-model", "zebra"]
    assert names("dataset") == ["cat", "own-dataset"]


def test_nothing_is_imported_to_know_what_there_is(install: Install):
    install("loud", {"model": {"loud": "loud:f"}}, loud="raise RuntimeError('imported')")
    assert "loud" in names("model")
    assert find("model", "loud").distribution == "loud"
    assert "loud" not in sys.modules


def test_a_distribution_that_is_on_the_path_twice_counts_once(install: Install):
    """An editable installation, run in its checkout: site-packages and the folder both describe it."""
    install("twice", {"model": {"stale": "twice:f"}}, "1.0")
    install("Twice", {"model": {"fresh": "twice:g"}}, "1.1")  # first on the path, as imports find it
    assert names("model") == ["fresh", "own-model"]


def test_an_unknown_kind_is_refused():
    kinds = "strategy, calibration, dataset, model, hook, quantizer"
    with pytest.raises(PluginError, match=rf"no plugins of kind 'colour'; kinds are {kinds}\."):
        installed("colour")


# resolving


def test_a_name_is_resolved_to_its_object_and_to_no_other_import(install: Install):
    install(
        "good", {"dataset": {"good": "good:Loader.load"}}, good="class Loader:\n    load = staticmethod(len)"
    )
    install("bad", {"dataset": {"bad": "bad:f"}}, bad="raise RuntimeError")
    assert resolve("dataset", "good") is len
    assert "bad" not in sys.modules


@pytest.mark.usefixtures("install")
def test_fedveils_own_names_are_resolved_alike():
    assert resolve("strategy", "own-strategy").__module__ == "own_names"


@pytest.mark.usefixtures("install")
@pytest.mark.parametrize("name", ["own-modle", "Own-Model"])
def test_an_unknown_name_gets_the_nearest_and_all_that_is_installed(name: str):
    with pytest.raises(PluginError) as refused:
        resolve("model", name)
    assert str(refused.value) == (
        f"model = {name!r} is not installed; did you mean 'own-model'? installed: own-model."
    )


@pytest.mark.usefixtures("install")
def test_a_name_like_no_other_gets_what_is_installed_only():
    with pytest.raises(PluginError, match=r"model = '' is not installed; installed: own-model\.$"):
        resolve("model", "")


def test_an_installation_without_fedveils_own_names_says_so(install: Install):
    install("fedveil", {})
    install("other", {"model": {"wide": "other:f"}})
    with pytest.raises(PluginError, match=r"own names are missing too: install FedVeil again \(pip install"):
        resolve("model", "wode")


def test_every_name_of_fedveils_own_can_be_used():
    own = [check for check in check_all() if check.plugin.is_own]
    assert {check.plugin.kind for check in own} == set(GROUPS)
    assert [check.problem for check in own if check.problem] == []


# plugins that do not work


BROKEN = {
    "import": ("import nowhere_to_be_found\n", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
    "syntax": ("def f(:\n", "SyntaxError: invalid syntax (broken.py, line 1)"),
    "object": ("g = 1\n", "AttributeError: module 'broken' has no attribute 'f'"),
    "silent": ("raise RuntimeError\n", "RuntimeError"),
    "lines": ("raise KeyError('one\\n' + 'two')\n", "KeyError: 'one\\ntwo'"),
    "long": ("raise ValueError('first line\\nsecond line')\n", "ValueError: first line"),
    "exit": ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_plugin_that_cannot_be_imported_is_named_with_its_distribution(install: Install, fault: str):
    source, reason = BROKEN[fault]
    install("broken-things", {"strategy": {"broken": "broken:f"}}, broken=source)
    with pytest.raises(PluginError) as refused:
        resolve("strategy", "broken")
    assert str(refused.value) == (
        f"strategy 'broken' of broken-things 1.0 cannot be imported from broken:f: {reason}"
    )


def test_an_endless_error_is_cut(install: Install):
    install("b", {"strategy": {"b": "broken:f"}}, broken="raise ValueError('x' * 10_000)")
    with pytest.raises(PluginError) as refused:
        resolve("strategy", "b")
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("kind", ["strategy", "dataset", "model"])
def test_what_has_to_be_called_must_be_callable(install: Install, kind: str):
    install("b", {kind: {"b": "broken:f"}}, broken="f = 3")
    with pytest.raises(
        PluginError, match=rf"{kind} 'b' of b 1.0 must be a function or a class, and .* type int\."
    ):
        resolve(kind, "b")


@pytest.mark.parametrize("reference", ["broken", "broken:", ":f", "broken f", "broken:f:g", ""])
def test_a_reference_to_no_object_is_told(install: Install, reference: str):
    install("b", {"calibration": {"b": reference}}, broken="f = 3")
    with pytest.raises(
        PluginError, match=r"calibration 'b' of b 1.0 must point to 'module:object', and does to"
    ):
        resolve("calibration", "b")


def test_extras_in_a_reference_are_passed_over(install: Install):
    install("b", {"calibration": {"b": "fine : f [fast]"}}, fine="f = 3")
    assert resolve("calibration", "b") == 3


def test_two_distributions_of_one_name_are_refused_and_named(install: Install):
    first = install("one", {"model": {"wide": "one:f"}})
    second = install("two", {"model": {"wide": "two:f"}}, "2.0")
    with pytest.raises(PluginError) as refused:
        resolve("model", "wide")
    assert str(refused.value) == (
        f"model 'wide' is given by one 1.0 (one:f, in {first}) and two 2.0 (two:f, in {second}); "
        "uninstall all but one."
    )
    assert resolve("model", "own-model")  # and the other names go on


@pytest.mark.parametrize("usurper", ["evil", "zealous"])  # before and after FedVeil in the alphabet
def test_fedveils_own_names_cannot_be_taken_over(install: Install, usurper: str):
    install(usurper, {"model": {"own-model": "evil:f"}}, evil="raise RuntimeError('imported')")
    assert resolve("model", "own-model").__module__ == "own_names"
    (problem,) = [check.problem for check in check_all() if check.problem]
    assert problem == (
        f"model 'own-model' of {usurper} 1.0 takes FedVeil's own name: {usurper} must choose another."
    )


def test_one_broken_plugin_does_not_stop_the_others(install: Install):
    install("bad", {"dataset": {"bad": "bad:f"}}, bad="raise RuntimeError('no')")
    install("one", {"model": {"wide": "one:f"}})
    install("two", {"model": {"wide": "two:f"}})
    install("good", {"model": {"fine": "good:f"}, "dataset": {"fine": "good:f"}}, good="f = len")
    problems = {
        (check.plugin.kind, check.plugin.name, check.plugin.distribution): check.problem
        for check in check_all()
    }
    assert {key for key, problem in problems.items() if problem} == {
        ("dataset", "bad", "bad"),
        ("model", "wide", "one"),
        ("model", "wide", "two"),
    }
    assert len(problems) == len(GROUPS) + 5


def test_plugins_are_light():
    """Reading names imports neither torch nor Flower nor any plugin."""
    code = "import sys, fedveil.plugins as p; [p.installed(kind) for kind in p.GROUPS]; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "flwr", "numpy", "pydantic"} & set(done.stdout.split())


# what keeps no contract, and is named before any node is asked

SIGMAS = {
    "zero": "lambda request: 0.0",
    "negative": "lambda request: -1.0",
    "nan": "lambda request: float('nan')",
    "infinite": "lambda request: float('inf')",
    "text": "lambda request: '1.0'",
    "nothing": "lambda request: None",
    "array": "lambda request: __import__('numpy').ones(2)",
    "failing": "lambda request: 1 / 0",
    "arguments": "lambda: 1.0",
}
STEP = "from fedveil.privacy import StepCalibration\nf = StepCalibration('record', {})\n"


def plan(calibration: str, **settings: object) -> dict[int, Any]:
    """Every client's plan, as the server and the nodes make it before the first round."""
    defaults = find_app("fedsva").defaults
    values = {key.replace("_", "-"): value for key, value in settings.items()}
    config = FedSVAConfig.from_run_config({**defaults, "calibration": calibration, "seed": 1, **values})
    return client_plans(config, {0: 100, 1: 40}, None)


@pytest.mark.parametrize("fault", SIGMAS)
def test_a_calibration_without_usable_noise_is_named_with_its_distribution(put: Install, fault: str):
    put("odd-noise", {"calibration": {"odd": "odd_noise:f"}}, "0.2", odd_noise=STEP.format(SIGMAS[fault]))
    with pytest.raises(ValueError) as refused:
        plan("odd")
    (line,) = str(refused.value).splitlines()
    assert "calibration 'odd' of odd-noise 0.2" in line


@pytest.mark.parametrize("source", ["f = 0.3", "def f(request): return 0.3", "class f: sigma = relation = 1"])
def test_a_calibration_of_another_type_is_named_with_its_distribution(put: Install, source: str):
    put("odd-noise", {"calibration": {"odd": "odd_noise:f"}}, "0.2", odd_noise=source)
    with pytest.raises(ValueError, match=r"calibration 'odd' of odd-noise 0\.2 must be a .*StepCalibration"):
        plan("odd")


@pytest.mark.parametrize("relation", ["'client'", "None", "'records'"])
def test_a_calibration_of_no_known_relation_is_refused(put: Install, relation: str):
    source = STEP.replace("'record'", relation).format("lambda request: 1.0")
    put("odd-noise", {"calibration": {"odd": "odd_noise:f"}}, "0.2", odd_noise=source)
    with pytest.raises(ValueError, match="odd"):
        plan("odd")


def test_a_calibration_with_too_little_noise_is_stopped_before_the_first_round(put: Install):
    """It promises epsilon 1 and adds noise for about 100."""
    put(
        "weak",
        {"calibration": {"weak": "weak:f"}},
        weak=STEP.format("lambda request: request.sensitivity / 25"),
    )
    with pytest.raises(ValueError, match=r"first round would pass the budget.*calibration = 'weak'"):
        plan("weak", epsilon=1.0)


def test_a_calibration_with_more_noise_than_needed_is_fine(put: Install):
    source = STEP.format("lambda request: 10 * request.sensitivity * request.steps_per_release")
    put("calm", {"calibration": {"calm": "calm:f"}}, calm=source)
    assert sorted(plan("calm", epsilon=1.0)) == [0, 1]
