"""The wheel is the whole package: rooms that are links in a checkout are folders there, and the app runs from it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built through the source distribution as an index would, unpacked into a folder of its own."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)], check=True)
    (wheel,) = folder.glob("*.whl")
    target = folder / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target)]
    subprocess.run([*install, str(wheel)], check=True)
    return target


def command(site: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(site), "FEDVEIL_HOME": str(cwd)}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_wheel_holds_every_room_as_a_folder(site: Path) -> None:
    package = site / "fedveil"
    for room in ("strategies", "clients", "privacy", "datasets", "apps"):
        assert (package / room).is_dir()
        assert not (package / room).is_symlink()
    assert (package / "apps" / "fedsva" / "pyproject.toml").is_file()
    assert (package / "py.typed").is_file()
    assert not (package / "datasets" / "__init__.py").exists()


@pytest.mark.parametrize("engine", ["in-process", "flower"])
def test_the_app_runs_from_the_wheel(site: Path, tmp_path: Path, engine: str) -> None:
    where = command(site, tmp_path, "-c", "import fedveil; print(fedveil.__file__)")
    assert where.stdout.strip() == str(site / "fedveil" / "__init__.py")
    settings = "num-server-rounds=2 seed=1"
    done = command(site, tmp_path, "-m", "fedveil.cli", "run", "fedsva", "--engine", engine, "-c", settings)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    folder = Path(done.stdout.strip().splitlines()[-1].partition("run folder: ")[2])
    assert (folder / "model.safetensors").is_file()
