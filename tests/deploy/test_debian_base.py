"""deploy/debian-base.sh: what it leaves where debootstrap fails."""

from __future__ import annotations

import subprocess
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "deploy/debian-base.sh"


def test_a_debootstrap_that_fails_is_told_by_its_last_lines_and_leaves_no_file(tmp_path: Path):
    tools, scratch = tmp_path / "tools", tmp_path / "scratch"
    tools.mkdir()
    scratch.mkdir()
    for name, code in (("docker", "exit 1"), ("debootstrap", "echo 'E: no such mirror'; exit 1")):
        (tools / name).write_text(f"#!/bin/sh\n{code}\n")
        (tools / name).chmod(0o755)
    done = subprocess.run(
        ["sh", SCRIPT],
        env={"PATH": f"{tools}:/usr/bin:/bin", "TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "E: no such mirror\n"
    assert list(scratch.iterdir()) == []
