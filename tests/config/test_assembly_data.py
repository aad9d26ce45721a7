"""From a configuration to the data, the model, the streams and the folder of a run."""

from __future__ import annotations

import math
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil.config import ConfigError, FedSVAConfig, assembly

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
    rows = np.concatenate(problem.parts)
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
    assembly._load_problem.cache_clear()
    other = assembly.load_problem(people())
    assert one is not other
    assert [part.tolist() for part in one.parts] == [part.tolist() for part in other.parts]
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


# models, streams, folders


def test_a_model_is_embedded_or_imported():
    assert assembly.model_factory(config()) == "softmax"
    assert assembly.model_factory(config(model="mlp")) == "mlp"
    assert assembly.model_factory(config(model="math:sqrt")) is math.sqrt


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("softmaks", "model = 'softmaks' is not known; did you mean 'softmax'"),
        ("", "model = '' is not known"),
        ("no_such_package_here:make", "model = 'no_such_package_here:make' cannot be imported: No module"),
        ("math:no_such_name", "model = 'math:no_such_name' cannot be imported: .*no_such_name"),
        (":make", "model = ':make'"),
        (".here:make", "model = '.here:make' cannot be imported"),
        ("math:", "model = 'math:'"),
    ],
)
def test_a_model_that_does_not_exist_is_a_configuration_error(model, words):
    with pytest.raises(ConfigError, match=words):
        assembly.model_factory(config(model=model))


def test_a_seed_is_for_simulations_only():
    seeded = config(seed=5)
    streams = assembly.run_streams(seeded, simulated=True)
    assert (streams.config_hash, streams.seed) == (seeded.config_hash, 5)
    with pytest.raises(
        ConfigError, match="seed = 5 in a deployment: whoever knows it could subtract the noise"
    ):
        assembly.run_streams(seeded, simulated=False)
    with pytest.raises(ConfigError, match="seed = 0 in a deployment"):
        assembly.run_streams(config(seed=0), simulated=False)


@pytest.mark.parametrize("simulated", [True, False])
def test_without_a_seed_the_systems_entropy_is_used(simulated):
    assert not assembly.run_streams(config(), simulated=simulated).is_seeded


def test_public_streams_follow_the_public_seed_alone():
    def draws(settings: FedSVAConfig) -> list[float]:
        return assembly.public_streams(settings).stream("initial-model").uniform(5).tolist()

    assert draws(config()) == draws(config(epsilon=9.0, seed=5, num_clients=3))
    assert draws(config()) != draws(config(data_seed=1))


def test_public_streams_say_nothing_about_the_secret_ones():
    """Even where the secret seed is the public one."""
    settings = config(seed=0, data_seed=0)
    public = assembly.public_streams(settings).stream("noise", round=1, client=0).words(1000)
    secret = assembly.run_streams(settings, simulated=True).stream("noise", round=1, client=0).words(1000)
    assert not set(public.tolist()) & set(secret.tolist())


def test_run_folders_go_where_the_configuration_says_then_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDVEIL_HOME", str(tmp_path / "home"))
    assert assembly.output_root(config(output_dir="/elsewhere")) == Path("/elsewhere")
    assert assembly.output_root(config()) == tmp_path / "home" / "runs"
    monkeypatch.delenv("FEDVEIL_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert assembly.output_root(config()) == tmp_path / ".fedveil" / "runs"
    monkeypatch.setenv("FEDVEIL_HOME", "~/mine")
    assert assembly.output_root(config()) == tmp_path / "mine" / "runs"
