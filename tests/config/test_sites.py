"""Partition "sites": where a site's records are looked for, what is refused, and what of a description is compared."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedveil.config import ConfigError, FedSVAConfig, sites
from fedveil.config.loading import load_problem, load_sites
from fedveil.config.sites import SiteData, own_client, schema_digest, site_data
from fedveil.datasets.regression_schema import RegressionSchema
from fedveil.datasets.request import DataRequest
from fedveil.datasets.schema import Dataset, Records, Schema

EXAMPLE = runpy.run_path(str(Path(__file__).parents[1] / "datasets" / "example_table.py"))
GOOD = {
    "partition": "sites",
    "dataset": "csv",
    "target": "income",
    "data-schema": "/public/schema.toml",
    "test-path": "/public/test.csv",
    "private-attributes": "age",
}
NODE = {"partition-id": 1, "num-partitions": 4, "data-path": "/own/records.csv"}


def config(**values: Any) -> FedSVAConfig:
    """A configuration of sites; underscores stand for hyphens."""
    given = {key.replace("_", "-"): value for key, value in values.items()}
    return FedSVAConfig.from_run_config(GOOD | given)


# where records lie


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/data/site-{client}.csv", "/data/site-7.csv"),
        ("/data/{client}/records-{client}.csv", "/data/7/records-7.csv"),
        ("/data/{client}/{other}.csv", "/data/7/{other}.csv"),
    ],
)
def test_a_simulated_client_is_found_where_the_run_says_with_its_number_in_place(path: str, found: str):
    assert site_data(config(data_path=path), NODE, 7, simulated=True) == SiteData(
        found, "/public/schema.toml"
    )


@pytest.mark.parametrize("schema", ["", "/own/schema.toml"])
def test_a_real_client_is_found_where_its_owner_says_whatever_the_run_says_of_schemas(schema: str):
    given = NODE | ({"data-schema": schema} if schema else {})
    assert site_data(config(), given, 1, simulated=False) == SiteData("/own/records.csv", schema)


@given(
    st.integers(0, 12),
    st.integers(1, 12).flatmap(lambda nodes: st.tuples(st.integers(0, nodes - 1), st.just(nodes))),
)
def test_a_real_node_is_the_client_of_its_own_number_or_none(clients: int, place: tuple[int, int]):
    node, nodes = place
    if clients == nodes:
        assert own_client(clients, node, nodes) == node
        return
    with pytest.raises(ConfigError, match=r"^[^\n]+\.$"):
        own_client(clients, node, nodes)


# contradictions

CONTRADICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "one file for all": (
        {"data-path": "/data/all.csv"},
        "data-path = '/data/all.csv' with partition = 'sites' names one file",
    ),
    "no test set": ({"test-path": ""}, "partition = 'sites' needs test-path, a public test set"),
    "no description": ({"data-schema": ""}, "partition = 'sites' needs data-schema"),
    "no target": ({"target": ""}, "dataset = 'csv' needs target"),
    "a client column": ({"client-column": "site"}, "client-column = 'site' with partition = 'sites'"),
    "clients left out": ({"small-clients": "drop"}, "small-clients = 'drop' with partition = 'sites'"),
    "records of nobody's": (
        {"dataset": "mnist-5k"},
        "partition = 'sites' is for records in files, dataset csv, parquet, npz, image-folder or a plugin's",
    ),
    "a relative path": (
        {"data-path": "site-{client}.csv"},
        "data-path = 'site-{client}.csv' must be an absolute path",
    ),
}


@pytest.mark.parametrize(("values", "sentence"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_settings_that_sites_cannot_use_are_refused_by_name(values: dict[str, Any], sentence: str):
    with pytest.raises(ConfigError) as refused:
        FedSVAConfig.from_run_config(GOOD | values)
    assert sentence in str(refused.value)
    assert re.fullmatch(r"[^\n]+\.", str(refused.value))


# descriptions


def schema(**values: Any) -> Schema:
    """Two numbers and two classes."""
    given = {
        "names": ("age", "hours"),
        "shape": (2,),
        "low": np.array([18, 0], np.float32),
        "high": np.array([90, 80], np.float32),
        "baseline": np.array([0.5, 0.25], np.float32),
        "target": "income",
        "classes": ("low", "high"),
    }
    return Schema(**(given | values))


def regression(**values: Any) -> RegressionSchema:
    """Two numbers and one to predict."""
    given = {
        "names": ("age", "hours"),
        "low": np.array([18.0, 0.0]),
        "high": np.array([90.0, 80.0]),
        "baseline": np.array([40.0, 20.0]),
        "target": "wage",
        "target_low": 0.0,
        "target_high": 100.0,
        "target_baseline": 30.0,
    }
    return RegressionSchema(**(given | values))


OTHER: dict[str, dict[str, Any]] = {
    "names": {"names": ("age", "days")},
    "order": {"names": ("hours", "age")},
    "low": {"low": np.array([18, 1])},
    "high": {"high": np.array([90, 81])},
    "baseline": {"baseline": np.array([0.5, 0.5])},
    "target": {"target": "rent"},
    "sources": {"sources": ("age", "age")},
}
OF_CLASSES = {
    "classes": {"classes": ("high", "low")},
    "more classes": {"classes": ("low", "high", "top")},
    "shape": {"shape": (1, 1, 2)},
}
OF_NUMBERS = {
    "the target's low": {"target_low": 1.0},
    "the target's high": {"target_high": 101.0},
    "the target's baseline": {"target_baseline": 31.0},
    "no baseline of the target": {"target_baseline": None},
    "no range of the target": {"target_low": None, "target_high": None},
    "a baseline in between": {"baseline": np.array([40.5, 20.0])},
}


@pytest.mark.parametrize(
    ("make", "others"),
    [(schema, OTHER | OF_CLASSES), (regression, (OTHER | {"baseline": {}}) | OF_NUMBERS)],
    ids=["classes", "numbers"],
)
def test_two_descriptions_have_one_digest_exactly_when_they_say_the_same_of_numbers(
    make: Callable[..., Any], others: dict[str, dict[str, Any]]
):
    kind = np.float32 if make is schema else np.float64
    seen = {schema_digest(make())}
    assert {schema_digest(make())} == seen
    for name, values in others.items():
        if not values:
            continue
        typed = {key: v.astype(kind) if isinstance(v, np.ndarray) else v for key, v in values.items()}
        digest = schema_digest(make(**typed))
        assert digest not in seen, name
        seen.add(digest)


def test_where_a_record_comes_from_is_no_part_of_its_description():
    assert schema_digest(schema(client_column="site")) == schema_digest(schema())


# every format


def _csv(path: Path, records: Path) -> None:
    path.write_text(records.read_text())


def _parquet(path: Path, records: Path) -> None:
    pq.write_table(pa.csv.read_csv(records), path)


def _people(folder: Path, write: Callable[[Path, Path], None], ending: str) -> dict[str, Any]:
    text = EXAMPLE["SCHEMA"].replace('ignore = ["row"]', 'ignore = ["row", "site"]')
    (folder / "schema.toml").write_text(text)
    for seed, (name, rows) in enumerate({"site-0": 12, "site-1": 7, "test": 9}.items()):
        records = EXAMPLE["write_example_table"](folder, rows, 1, seed=seed, name=f"{name}.raw")
        write(folder / f"{name}.{ending}", records)
    return {"data-schema": str(folder / "schema.toml")}


def _arrays(folder: Path) -> dict[str, Any]:
    (folder / "schema.toml").write_text('features = "x"\ntarget = "y"\n[classes]\ny = 3\n')
    rng = np.random.default_rng(0)
    for name, rows in {"site-0": 12, "site-1": 7, "test": 9}.items():
        x = rng.integers(0, 256, (rows, 3, 4), dtype=np.uint8)
        np.savez(folder / f"{name}.npz", x=x, y=np.arange(rows) % 2)
    return {"data-schema": str(folder / "schema.toml"), "target": "", "private-attributes": "0:1,0:1"}


def _images(folder: Path) -> dict[str, Any]:
    from PIL import Image

    rng = np.random.default_rng(0)
    kinds = {"site-0": ["cat"] * 12, "site-1": ["dog"] * 7, "test": ["cat", "dog", "owl"] * 3}
    for name, classes in kinds.items():
        for index, kind in enumerate(classes):
            place = folder / name / kind / f"{index}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (3, 4), dtype=np.uint8)).save(place)
    return {
        "data-schema": "",
        "target": "",
        "private-attributes": "0:1,0:1",
        "options": 'dataset = {classes = ["cat", "dog", "owl"], channels = 1}',
    }


FORMATS: dict[str, tuple[str, Callable[[Path], dict[str, Any]]]] = {
    "csv": (".csv", lambda folder: _people(folder, _csv, "csv")),
    "parquet": (".parquet", lambda folder: _people(folder, _parquet, "parquet")),
    "npz": (".npz", _arrays),
    "image-folder": ("", _images),
}


@pytest.mark.parametrize(
    ("dataset", "ending", "write"), [(name, *of) for name, of in FORMATS.items()], ids=FORMATS
)
def test_every_format_serves_sites_and_server_and_node_describe_their_records_alike(
    tmp_path: Path, dataset: str, ending: str, write: Callable[[Path], dict[str, Any]]
):
    values = {
        "partition": "sites",
        "dataset": dataset,
        "num-clients": 2,
        "data-path": str(tmp_path / f"site-{{client}}{ending}"),
        "test-path": str(tmp_path / f"test{ending}"),
        "target": "income",
        "private-attributes": "age",
        "min-records": 7,
    }
    run = FedSVAConfig.from_run_config(values | write(tmp_path))
    server = load_problem(run)
    places = {client: site_data(run, {}, client, simulated=True) for client in range(2)}
    node = load_sites(run, places)
    assert (len(server.dataset.train), len(server.dataset.test), server.examples) == (0, 9, {})
    assert server.met({0: 12, 1: 7}).examples == node.examples == {0: 12, 1: 7}
    assert schema_digest(server.dataset.schema) == schema_digest(node.dataset.schema)
    assert server.private is not None
    assert node.private is not None
    np.testing.assert_array_equal(server.private, node.private)
    assert len(node.dataset.test) == 0
    for client, size in node.examples.items():
        records = node.records(client)
        assert len(records) == size
        at_baseline = node.baseline_features(records)
        assert at_baseline is not None
        baseline = node.dataset.schema.baseline
        np.testing.assert_array_equal(
            at_baseline[:, node.private], np.tile(baseline[node.private], (size, 1))
        )


def test_a_source_that_sets_records_of_a_site_apart_is_refused(monkeypatch: pytest.MonkeyPatch):
    """A plugin may take no notice of the share that is asked for."""
    records = Records(np.zeros((4, 2), np.float32), np.zeros(4, np.int64))
    whole = Dataset("own", schema(), records, replace(records))
    monkeypatch.setattr(sites, "load_data", lambda name, request, expected: whole)
    with pytest.raises(ValueError, match="dataset 'own' sets records of client 3 apart for testing"):
        sites.load_whole("own", DataRequest(path="/x"), Dataset, "client 3")
    monkeypatch.setattr(
        sites, "load_data", lambda name, request, expected: replace(whole, test=records.take(np.arange(0)))
    )
    assert len(sites.load_whole("own", DataRequest(path="/x"), Dataset, "client 3").train) == 4


def test_sites_of_one_node_that_describe_records_in_two_ways_are_named(tmp_path: Path):
    values = _people(tmp_path, _csv, "csv")
    other = tmp_path / "other.toml"
    other.write_text(Path(values["data-schema"]).read_text().replace("high = 90", "high = 99"))
    run = config(**{key.replace("-", "_"): value for key, value in values.items()})
    places = {
        0: SiteData(str(tmp_path / "site-0.csv"), values["data-schema"]),
        1: SiteData(str(tmp_path / "site-1.csv"), str(other)),
    }
    with pytest.raises(ConfigError, match="clients 0 and 1 describe their records in different ways"):
        load_sites(run, places)
