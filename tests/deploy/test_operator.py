"""deploy/operator.sh: keys are registered also while the server is still starting, and what fails is said."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STARTING = (
    "Server error '503 Service Unavailable' for url 'https://operator-proxy:8444/v1/control/register-node'"
)


@pytest.fixture
def operator(tmp_path: Path):
    """Run `operator.sh register` for two keys, with a flwr that gives these answers, one a call, and a quick sleep."""
    commands, nodes = tmp_path / "bin", tmp_path / "home/nodes"
    commands.mkdir()
    nodes.mkdir(parents=True)

    def run(*answers: str, keys: tuple[str, ...] = ("site-a", "site-b")) -> subprocess.CompletedProcess[str]:
        for key in keys:
            (nodes / f"{key}.pub").touch()
        for number, answer in enumerate(answers):
            (tmp_path / f"answer-{number}").write_text(answer)
        flwr, sleep = commands / "flwr", commands / "sleep"
        flwr.write_text(
            f"""#!/bin/sh
            cd {tmp_path}; n=$(ls | grep -c called); touch called-$n; [ -e answer-$n ] || n=last
            cat answer-$n; grep -q ^ok answer-$n
            """
        )
        (tmp_path / "answer-last").write_text(answers[-1])
        sleep.write_text("#!/bin/sh\n")
        for command in (flwr, sleep):
            command.chmod(0o755)
        env = {"PATH": f"{commands}:/usr/bin:/bin", "FLWR_HOME": str(tmp_path / "home")}
        return subprocess.run(
            ["sh", ROOT / "deploy/operator.sh", "register"],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_a_server_that_is_starting_is_asked_again(operator):
    result = operator(STARTING, STARTING, "ok", "ok: SuperNode 1234 registered successfully.")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["site-a: registered", "site-b: registered as node 1234"]


def test_a_server_that_does_not_start_is_given_up_with_what_it_said(operator, tmp_path: Path):
    result = operator(STARTING)
    assert result.returncode == 1
    assert "site-a: Server error '503 Service Unavailable'" in result.stderr
    calls = len(list(tmp_path.glob("called-*")))
    assert calls == 32  # 31 for the first, over a minute; the second is asked once


def test_any_other_refusal_is_said_at_once_and_a_key_known_before_is_no_failure(operator):
    result = operator("the public key is already in use", "this key is no EC key")
    assert result.returncode == 1
    assert result.stdout.splitlines() == ["site-a: registered before"]
    assert result.stderr.splitlines() == ["site-b: this key is no EC key"]


def test_without_keys_it_says_where_they_belong(operator):
    result = operator("ok", keys=())
    assert result.returncode == 2
    assert "copy the sites' .pub files there" in result.stderr


def test_a_key_that_cannot_be_read_is_named_and_the_others_are_registered(operator, tmp_path: Path):
    nodes = tmp_path / "home/nodes"
    (nodes / "gone.pub").symlink_to(tmp_path / "nowhere.pub")
    (nodes / "folder.pub").mkdir()
    result = operator("ok: SuperNode 1234 registered successfully.")
    assert result.returncode == 1
    assert result.stdout.splitlines() == [f"site-{name}: registered as node 1234" for name in "ab"]
    assert [line.split(" ")[:4] for line in result.stderr.splitlines()] == [
        [f"{name}:", f"{nodes}/{name}.pub", "cannot", "be"] for name in ("folder", "gone")
    ]


def test_keys_that_cannot_be_read_are_not_the_same_as_no_keys(operator, tmp_path: Path):
    (tmp_path / "home/nodes/gone.pub").symlink_to(tmp_path / "nowhere.pub")
    result = operator("ok", keys=())
    assert result.returncode == 1
    assert "gone.pub cannot be read" in result.stderr
    assert "no public key" not in result.stderr
