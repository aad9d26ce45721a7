"""Where the studies' tables go: docs/r_q_study.md, between marks."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the benchmarks next door

from trials import table, write_section

__all__ = ["PAGE", "parser", "publish", "table"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "r_q_study.md"


def parser(description: str | None) -> argparse.ArgumentParser:
    """Options that every study has."""
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--page", type=Path, help=f"put the tables between their marks here ({PAGE.name})")
    options.add_argument("--small", action="store_true", help="a tenth of the runs: to see that it works")
    return options


def publish(page: Path | None, name: str, text: str) -> None:
    """Print a study's tables, and put them on the page."""
    print(text)
    if page:
        write_section(page, name, text)
