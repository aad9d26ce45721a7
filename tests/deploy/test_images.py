"""What runs in the containers: not root, nothing to write on, and no package that a node does not need."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.deploy

SERVICES = ("superlink", "superexec-server", "proxy", "operator-proxy", "supernode-1", "superexec-client-1")


@pytest.mark.parametrize("service", SERVICES)
def test_no_process_is_root_and_the_root_file_system_cannot_be_written(running: Any, service: str):
    host = json.loads(running.inspect(service, "{{json .HostConfig}}"))
    assert host["ReadonlyRootfs"] is True
    assert host["CapDrop"] == ["ALL"]
    assert not host["Privileged"]
    assert host["Memory"] > 0
    assert host["NanoCpus"] > 0
    assert host["RestartPolicy"]["Name"] == "unless-stopped"
    pids = running.execute(service, "sh", "-c", "cat /proc/[0-9]*/status").splitlines()
    users = {line.split()[1] for line in pids if line.startswith("Uid:")}
    assert users
    assert "0" not in users
    privileges = {line.split()[1] for line in pids if line.startswith("CapEff:")}
    assert privileges == {"0000000000000000"}
    said = running.execute(
        service, "sh", "-c", "touch /opt/new || touch /etc/new || touch /usr/new", check=False
    )
    assert said.count("Read-only file system") == 3


def test_records_and_policy_cannot_be_written_by_the_code_that_a_run_brings(running: Any):
    said = running.execute("superexec-client-1", "cat", "/proc/self/mountinfo")
    mounts = [line.split() for line in said.splitlines()]
    options = {words[4]: words[5].split(",") for words in mounts}
    assert {
        path: "ro" in options[path] for path in ("/", "/data", "/etc/fedveil/policy.toml", "/fedveil")
    } == {
        "/": True,
        "/data": True,
        "/etc/fedveil/policy.toml": True,
        "/fedveil": False,
    }


def test_the_image_has_what_a_node_needs_and_not_what_a_simulation_needs(running: Any):
    listing = (
        "import importlib.metadata as m, json; print(json.dumps([d.name.lower() for d in m.distributions()]))"
    )
    found = set(json.loads(running.execute("superexec-client-1", "python", "-c", listing).splitlines()[-1]))
    assert {"fedveil", "flwr", "torch", "numpy", "scipy", "pillow"} <= found
    assert not {"ray", "torchvision", "plotly", "statsmodels", "pandas", "triton", "pip", "pytest"} & found
    assert not [name for name in found if name.startswith("nvidia")]
    step = "import torch; x = torch.ones(3, requires_grad=True); (x * x).sum().backward(); print(x.grad.tolist())"
    assert running.execute("superexec-client-1", "python", "-c", step).splitlines()[-1] == "[2.0, 2.0, 2.0]"
