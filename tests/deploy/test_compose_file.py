"""docker-compose.yml as text: what every service must have, and who may share a network with whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
FILES = {name: ROOT / name for name in ("docker-compose.yml", "deploy/site/docker-compose.yml")}
ALL = [
    (file, service)
    for file, path in FILES.items()
    for service in yaml.safe_load(path.read_text())["services"]
]


def services(file: str) -> dict[str, Any]:
    return dict(yaml.safe_load(FILES[file].read_text())["services"])


def networks(service: dict[str, Any]) -> set[str]:
    return set(service["networks"])


@pytest.mark.parametrize(("file", "name"), ALL)
def test_every_service_is_confined(file: str, name: str):
    service = services(file)[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service["user"].startswith("0")
    assert service["mem_limit"]
    assert service["cpus"] > 0
    assert service["pids_limit"] > 0
    assert not service.get("privileged")
    one_shot = name in ("operator", "register")
    assert service["restart"] == ("no" if one_shot else "unless-stopped")
    assert one_shot or service["healthcheck"]["test"][0] == "CMD"


@pytest.mark.parametrize(("file", "name"), ALL)
def test_a_health_check_that_starts_python_is_rare(file: str, name: str):
    check = services(file)[name].get("healthcheck", {"test": [], "interval": "30s"})
    assert check["interval"] == ("30s" if "healthy" in check["test"] or not check["test"] else "10s")


@pytest.mark.parametrize("file", FILES)
def test_secrets_are_files_and_never_variables(file: str):
    document = yaml.safe_load(FILES[file].read_text())
    assert all(set(secret) == {"file"} for secret in document["secrets"].values())
    for service in document["services"].values():
        assert not any(
            word in str(service.get("environment", "")).lower() for word in ("secret", "key", "token")
        )


@pytest.mark.parametrize("file", FILES)
def test_compose_1_29_can_read_it_too(file: str):
    text = FILES[file].read_text()
    assert not {"name", "include", "version"} & set(yaml.safe_load(text))
    for word in ("dockerfile_inline", "start_interval", "attach:", "develop:"):
        assert word not in text


def test_only_the_two_proxies_publish_a_port_and_the_operator_s_on_loopback():
    published = {
        name: service["ports"]
        for name, service in services("docker-compose.yml").items()
        if "ports" in service
    }
    assert set(published) == {"proxy", "operator-proxy"}
    assert published["operator-proxy"][0].startswith("${FEDVEIL_CONTROL_BIND:-127.0.0.1}:")
    assert not any("ports" in service for service in services("deploy/site/docker-compose.yml").values())


def test_no_site_shares_a_network_with_the_superlink_the_operator_or_another_site():
    found = services("docker-compose.yml")
    for name, service in found.items():
        for other, peer in found.items():
            if name.startswith("supernode") and other != name and networks(service) & networks(peer):
                own = name.removeprefix("supernode-")
                on_sites = networks(service) & networks(peer) == {"sites"}
                # the node with a GPU stands for node 1, never beside it
                assert (
                    other == f"superexec-client-{own}"
                    or on_sites
                    or {own, other.split("-")[-1]} == {"1", "gpu"}
                )
            if name.startswith("superexec-client"):
                assert len(networks(service)) == 1
                assert not networks(service) & {"inner", "operator", "edge", "sites"}
    assert networks(found["superlink"]) == {"inner"}
    assert networks(found["operator"]) == networks(found["register"]) == {"operator"}


def test_all_networks_but_the_two_that_publish_a_port_lead_nowhere():
    declared = yaml.safe_load(FILES["docker-compose.yml"].read_text())["networks"]
    assert {name for name, network in declared.items() if not network.get("internal")} == {"edge", "operator"}


def test_the_records_the_policy_and_the_ledger_are_in_one_container_of_a_node_the_first_two_read_only():
    for name, service in services("docker-compose.yml").items():
        nodes = [
            volume
            for volume in service.get("volumes", [])
            if "/nodes/" in volume and "operator" not in volume
        ]
        assert bool(nodes) == name.startswith("superexec-client")
        for volume in nodes:
            assert volume.endswith(":ro") or volume.endswith("/state:/fedveil")


def test_every_node_has_a_partition_of_its_own():
    for number in range(1, 6):
        service = services("docker-compose.yml")[f"supernode-{number}"]
        assert any(f"partition-id={number - 1} " in word for word in service["command"])
        assert {secret["source"] for secret in service["secrets"][1:]} == {
            f"node-{number}-{part}"
            for part in ("key", "runtime-ca", "runtime-certificate", "runtime-key", "superexec")
        }
