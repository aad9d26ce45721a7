"""What goes wrong with `flwr run` in Flower 1.42 and cannot go wrong with `fedveil run`."""

import json
import shutil
import signal
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

TRAP = Path(__file__).parent / "apps" / "trap"


def mode(name: str) -> list[str]:
    """The options that make the trap app fail this way; one core a node, so that two run at once."""
    return ["-c", f"mode='{name}'", "--client-resources-num-cpus", "1"]


def test_a_server_app_that_raises_fails_the_run_with_its_reason(launch):
    run = launch(TRAP, *mode("server-raises"))
    assert run.wait() == 1
    assert run.last_line() == "fedveil: the run failed: the server always fails (status finished:failed)"
    assert run.nothing_left()


def test_a_run_whose_clients_all_raise_fails_though_flower_calls_it_completed(launch):
    run = launch(TRAP, *mode("clients-raise"))
    assert run.wait() == 1
    assert "no client gave a good reply in rounds 1, 2: " in run.last_line()
    assert "this client always fails" in run.last_line()
    assert run.nothing_left()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("flower-superlink", "its SuperLink ended before the run did: killed by signal 9"),
        ("flwr-simulation", "its simulation process died, perhaps killed for its memory"),
    ],
)
def test_a_run_that_loses_its_superlink_or_simulation_fails(launch, name: str, reason: str):
    run = launch(TRAP, *mode("slow"))
    assert run.wait_for(run.at_work)
    for process in run.named(name):
        process.send_signal(signal.SIGKILL)
    assert run.wait() == 1
    assert run.last_line() == f"fedveil: the run failed: {reason}"
    assert run.nothing_left()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_leaves_nothing(launch, number: signal.Signals, status: int):
    run = launch(TRAP, *mode("slow"))
    assert run.wait_for(run.at_work)
    run.process.send_signal(number)
    assert run.wait() == status
    assert "the run was stopped by" in run.last_line()
    assert run.nothing_left()


def test_a_killed_runner_leaves_nothing(launch):
    run = launch(TRAP, *mode("slow"))
    assert run.wait_for(run.at_work)
    run.process.send_signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    assert run.nothing_left()


def test_each_run_uses_the_code_of_its_own_folder_with_all_nodes_and_without_installing(
    launch, tmp_path: Path
):
    """Stale code, the first-round race, foreign folders and dependency installation, in two runs."""
    first, second = (Path(shutil.copytree(TRAP, tmp_path / name / "trap")) for name in "ab")
    client = second / "trap_app" / "client_app.py"
    client.write_text(client.read_text().replace("STEP = 1.0", "STEP = 100.0"))
    # uv would have to fetch this one, and fail
    file = second / "pyproject.toml"
    file.write_text(
        file.read_text().replace("dependencies = []", 'dependencies = ["no-such-package-at-all==9"]')
    )
    found = []
    for folder in (first, second):
        note = tmp_path / f"{folder.parent.name}.json"
        # started inside the first folder, as `flwr run` was when its clients kept on running that folder's code
        run = launch(folder, *mode("ok"), "-c", f"note='{note}'", "--num-supernodes", "4", cwd=first)
        assert run.wait() == 0, run.text()
        assert "fedveil: " not in run.text()
        assert run.nothing_left()
        found.append(json.loads(note.read_text()) | {"temporary": str(run.folder)})
    assert [note["model"] for note in found] == [[2.0, 2.0], [200.0, 200.0]]
    for note in found:
        assert not note["installs"]
        assert len(note["client_folders"]) == 2 * 4
        assert {str(Path(folder).parents[1]) for folder in note["client_folders"]} == {note["temporary"]}
        assert note["flwr_home"].startswith(note["temporary"])
