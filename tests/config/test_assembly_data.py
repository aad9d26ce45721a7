"""From a configuration to the data, the model, the streams and the folder of a run."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.config import ConfigError, FedSVAConfig, assembly, places, randomness
from fedveil.config.loading import _load_problem

EXAMPLE = runpy.run_path(str(Path(__file__).parents[1] / "datasets" / "example_table.py"))


def config(**values: Any) -> FedSVAConfig:
    """A configuration; underscores stand for hyphens."""
    return FedSVAConfig.from_run_config({key.replace("_", "-"): value for key, value in values.items()})


# data


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 people of 5 sites."""
    path: Path = EXAMPLE["write_example_table"](tmp_path_factory.mktemp("table"))
    return path


@pytest.fixture
def people(table):
    """A configuration of that table."""

    def make(**values: Any) -> FedSVAConfig:
        defaults = {
            "dataset": "csv",
            "data_path": str(table),
            "target": "income",
            "client_column": "site",
            "partition": "natural",
            "private_attributes": "age",
        }
        return config(**{**defaults, **values})

    return make


def test_clients_hold_every_training_record_once(people):
    problem = assembly.load_problem(people())
    assert problem.num_clients == 5
    rows = np.concatenate(problem.parts.parts)
    assert sorted(rows.tolist()) == list(range(len(problem.dataset.train)))
    assert problem.examples == {client: len(problem.records(client)) for client in range(5)}
    assert len(problem.dataset.train) + len(problem.dataset.test) == 200


def test_private_columns_are_marked_by_name_all_their_categories_with_them(people):
    problem = assembly.load_problem(people(private_attributes="job"))
    names = problem.dataset.schema.names
    private = {name for name, is_private in zip(names, problem.private, strict=True) if is_private}
    assert private == {"job=farm", "job=office", "job=shop, stall"}


def test_baseline_features_differ_in_private_columns_only(people):
    problem = assembly.load_problem(people())
    records = problem.records(0)
    baseline = problem.baseline_features(records)
    mask = problem.private
    assert np.array_equal(baseline[:, ~mask], records.features[:, ~mask])
    assert np.all(baseline[:, mask] == problem.dataset.schema.baseline[mask])
    assert not np.array_equal(baseline, records.features)


def test_dropped_attributes_are_gone_everywhere_and_nothing_is_left_to_protect(people):
    kept = assembly.load_problem(people())
    dropped = assembly.load_problem(people(drop_private=True, privacy="none"))
    assert dropped.private is None
    assert dropped.baseline_features(dropped.records(0)) is None
    mask, schema = kept.private, kept.dataset.schema
    for ours, theirs in (
        (dropped.dataset.train, kept.dataset.train),
        (dropped.dataset.test, kept.dataset.test),
    ):
        assert np.all(ours.features[:, mask] == schema.baseline[mask])
        assert np.array_equal(ours.features[:, ~mask], theirs.features[:, ~mask])
        assert np.array_equal(ours.labels, theirs.labels)


@pytest.mark.parametrize("values", [{"privacy": "none"}, {"privacy": "central"}, {"calibration": "uniform"}])
def test_without_attribute_privacy_nothing_is_marked_and_wrong_names_do_not_matter(people, values):
    assert assembly.load_problem(people(private_attributes="nothing", **values)).private is None


def test_the_same_configuration_gives_the_same_problem_when_loaded_again(people):
    one = assembly.load_problem(people())
    _load_problem.cache_clear()
    other = assembly.load_problem(people())
    assert one is not other
    assert [part.tolist() for part in one.parts.parts] == [part.tolist() for part in other.parts.parts]
    assert np.array_equal(one.dataset.train.features, other.dataset.train.features)


def test_settings_that_do_not_touch_the_data_share_it(people):
    assert assembly.load_problem(people()) is assembly.load_problem(people(epsilon=9.0, seed=4))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"private_attributes": "agee"}, "age"),
        ({"private_attributes": "age,job,hours"}, "Unknown private column 'hours'"),
        ({"private_attributes": "1:2,3:4"}, "table|image"),
        ({"target": "incom"}, "income"),
        ({"client_column": "sit"}, "no client column 'sit'"),
        ({"min_records": 10_000}, "min-records is 10000"),
    ],
)
def test_data_that_does_not_fit_the_configuration_is_a_configuration_error(people, values, words):
    with pytest.raises(ConfigError, match=words):
        assembly.load_problem(people(**values))


def test_all_attributes_private_says_what_to_do_instead(people):
    names = 'age,job,"hours, a week"'
    with pytest.raises(ConfigError, match="leave at least one public, or use calibration = 'uniform'"):
        assembly.load_problem(people(private_attributes=names))


def test_a_missing_file_is_a_configuration_error(people, tmp_path):
    with pytest.raises(ConfigError, match=r"nothing\.csv"):
        assembly.load_problem(people(data_path=str(tmp_path / "nothing.csv")))


# groups


def compared(**values: Any) -> dict[str, Any]:
    """Settings that measure a contribution."""
    return {"calibration": "paper", "partition": "iid", "num_clients": 4, **values}


def test_groups_are_the_private_attributes_and_the_others_unless_they_are_named(people):
    groups = assembly.load_problem(people(**compared())).groups
    assert (groups.names, groups.private) == (("private", "others"), (0,))
    named = assembly.load_problem(
        people(**compared(groups='who = age; what = job; when = "hours, a week"'))
    ).groups
    assert (named.names, named.private) == (("who", "what", "when"), (0,))
    assert named.masks.sum(axis=0).tolist() == [1] * 5


def test_groups_of_records_need_no_private_attributes(people):
    settings = {"contribution": "retrain", "contribution_release": "none", "private_attributes": ""}
    rich = {"groups": "rich = class:high", "private_groups": "rich"}
    problem = assembly.load_problem(people(**compared(**settings, **rich)))
    assert (problem.groups.names, problem.groups.kind, problem.private) == (
        ("rich", "others"),
        "records",
        None,
    )


@pytest.mark.parametrize(
    "values",
    [
        {"calibration": "uniform"},
        {"attribute_clip_rule": "fixed"},
        {"attribute_clip_rule": "quantile"},
        {"contribution": "0.3"},
        {"privacy": "none"},
        {"privacy": "central"},
    ],
)
def test_where_no_contribution_is_measured_there_are_no_groups_and_wrong_ones_do_not_matter(people, values):
    assert assembly.load_problem(people(groups="who = nobody", **values)).groups is None


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"groups": "a = age; b = age,job"}, "'a' and 'b' overlap, both hold 'age'"),
        ({"groups": 'all = age,job,"hours, a week"'}, "'all' is partly private"),
        ({"groups": "a = age,job"}, r"'a' is partly private \(1 of its 4 attributes are private\)"),
        ({"groups": "a = agee"}, "'a' has the unknown column 'agee': nearest: 'age'"),
        ({"groups": "a = income"}, "it is the target"),
        ({"groups": "a = site"}, "it is the client column"),
        ({"groups": "a = 0:1,0:1"}, "0:1"),
        ({"groups": "a ="}, "a"),
        ({"private_groups": "private"}, "private-groups = 'private' is for groups of records"),
        (
            {"private_attributes": ""},
            "private-attributes is empty, and calibration = 'paper' needs private attributes",
        ),
    ],
)
def test_groups_that_cannot_be_compared_are_a_configuration_error(people, values, words):
    with pytest.raises(ConfigError, match=words):
        assembly.load_problem(people(**compared(**values)))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"groups": "rich = class:high"},
            "none of the groups rich, others is private: name in private-groups",
        ),
        (
            {"groups": "rich = class:high", "private_groups": "poor"},
            "there is no group 'poor'; nearest: 'rich'",
        ),
        ({"groups": "all = class:high,low", "private_groups": "all"}, "'all' is the only group"),
        (
            {"groups": "a = age; b = class:high", "private_groups": "b"},
            "attributes and records cannot be mixed",
        ),
        ({"groups": "a = class:high; b = class:high", "private_groups": "a"}, "'a' and 'b' overlap"),
    ],
)
def test_groups_of_records_that_cannot_be_compared_are_a_configuration_error(people, values, words):
    settings = {"contribution": "retrain", "contribution_release": "none", **values}
    with pytest.raises(ConfigError, match=words):
        assembly.load_problem(people(**compared(**settings)))


def test_more_than_twelve_groups_need_pairs_of_permutations():
    squares = "; ".join(f"p{k} = {k // 4}:{k // 4 + 1},{k % 4}:{k % 4 + 1}" for k in range(11))
    settings = {"dataset": "digits", "groups": squares, "private_attributes": "7:8,7:8"}
    with pytest.raises(
        ConfigError, match=r"13 groups are too many for exact Shapley values \(at most 12\): .*pairs"
    ):
        assembly.load_problem(config(**settings))
    groups = assembly.load_problem(config(**settings, contribution_pairs=5)).groups
    assert len(groups.names) == 13


def test_what_needs_private_attributes_is_named_when_there_are_none(people):
    for values, words in (
        ({}, "calibration = 'attribute' needs private attributes"),
        ({"drop_private": True, "privacy": "none"}, "drop-private needs private attributes"),
    ):
        with pytest.raises(ConfigError, match=f"private-attributes is empty, and {words}"):
            assembly.load_problem(people(private_attributes="", **values))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"data_path": "/a.csv"}, "data-path = '/a.csv': dataset 'mnist-5k' takes none"),
        ({"data_schema": "/a.toml"}, "data-schema = '/a.toml': dataset 'mnist-5k' takes none"),
        ({"target": "y"}, "target = 'y': dataset 'mnist-5k' takes none"),
        ({"client_column": "who"}, "client-column = 'who': dataset 'mnist-5k' takes none"),
        ({"test_path": "/t.csv"}, "test-path = '/t.csv': dataset 'mnist-5k' takes none"),
        ({"options": "dataset = {columns = 3}"}, "options = .*: dataset 'mnist-5k' takes none"),
    ],
)
def test_settings_of_another_data_set_are_refused(values, words):
    with pytest.raises(ConfigError, match=f"{words} of data-path, target and the like; leave .* empty"):
        assembly.load_problem(config(**values))


# models, streams, folders


def test_a_model_is_a_plugins_or_imported(people, tmp_path, monkeypatch):
    (tmp_path / "nets_of_my_own.py").write_text(
        "from torch import nn\n"
        "def wide(input_shape, num_outputs, hidden):\n"
        "    return nn.Sequential(nn.Linear(*input_shape, hidden), nn.Linear(hidden, num_outputs))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    dataset = assembly.load_problem(people()).dataset

    def shapes(**values: Any) -> list[tuple[int, ...]]:
        module = assembly.learner(people(**values), dataset).module
        return [tuple(parameter.shape) for parameter in module.parameters()]

    assert shapes() == [(2, 5), (2,)]
    assert shapes(model="mlp", hidden_units=7) == [(7, 5), (7,), (2, 7), (2,)]
    assert shapes(model="nets_of_my_own:wide", hidden_units=3) == [(3, 5), (3,), (2, 3), (2,)]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("no_such_package_here:make", "model = 'no_such_package_here:make' cannot be imported: No module"),
        ("math:no_such_name", "model = 'math:no_such_name' cannot be imported: .*no_such_name"),
        (":make", "model = ':make'"),
        (".here:make", "model = '.here:make' cannot be imported"),
        ("math:", "model = 'math:'"),
    ],
)
def test_a_model_that_does_not_exist_is_a_configuration_error(people, model, words):
    with pytest.raises(ConfigError, match=words):
        assembly.learner(people(model=model), assembly.load_problem(people()).dataset)


def test_a_model_that_cannot_be_built_is_a_configuration_error(people):
    with pytest.raises(ConfigError, match="needs images of shape"):
        assembly.learner(people(model="cnn"), assembly.load_problem(people()).dataset)


def test_a_seed_is_for_simulations_only():
    seeded = config(seed=5)
    streams = randomness.run_streams(seeded, simulated=True)
    assert (streams.config_hash, streams.seed) == (seeded.config_hash, 5)
    with pytest.raises(
        ConfigError, match="seed = 5 in a deployment: whoever knows it could subtract the noise"
    ):
        randomness.run_streams(seeded, simulated=False)
    with pytest.raises(ConfigError, match="seed = 0 in a deployment"):
        randomness.run_streams(config(seed=0), simulated=False)


@pytest.mark.parametrize("simulated", [True, False])
def test_without_a_seed_the_systems_entropy_is_used(simulated):
    assert not randomness.run_streams(config(), simulated=simulated).is_seeded


def test_public_streams_follow_the_public_seed_alone():
    def draws(settings: FedSVAConfig) -> list[float]:
        return randomness.public_streams(settings).stream("initial-model").uniform(5).tolist()

    assert draws(config()) == draws(config(epsilon=9.0, seed=5, num_clients=3))
    assert draws(config()) != draws(config(data_seed=1))


def test_public_streams_say_nothing_about_the_secret_ones():
    """Even where the secret seed is the public one."""
    settings = config(seed=0, data_seed=0)
    public = randomness.public_streams(settings).stream("noise", round=1, client=0).words(1000)
    secret = randomness.run_streams(settings, simulated=True).stream("noise", round=1, client=0).words(1000)
    assert not set(public.tolist()) & set(secret.tolist())


def test_run_folders_go_where_the_configuration_says_then_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDVEIL_HOME", str(tmp_path / "home"))
    assert places.output_root(config(output_dir="/elsewhere")) == Path("/elsewhere")
    assert places.output_root(config()) == tmp_path / "home" / "runs"
    monkeypatch.delenv("FEDVEIL_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert places.output_root(config()) == tmp_path / ".fedveil" / "runs"
    monkeypatch.setenv("FEDVEIL_HOME", "~/mine")
    assert places.output_root(config()) == tmp_path / "mine" / "runs"
