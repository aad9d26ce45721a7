"""Trials: runs of FedSVA in this machine's processes, each remembered in a file, so that a stopped sweep goes on.

A trial is known by its settings. The file has one JSON object a line; remove it when the code has changed.
"""

from __future__ import annotations

import contextlib
import io
import json
import statistics
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from pyarrow import parquet

from fedveil.artifacts import RunFolder
from fedveil.run import run_app
from fedveil.run.overrides import parse_overrides

_REFUSED = "standard deviation"  # of a planned release of the contribution that would be mostly noise


@dataclass(frozen=True)
class Outcome:
    """What one run came to.

    Attributes
    ----------
    settings : str
        The run's settings, as ``fedveil run fedsva -c`` takes them.
    accuracy : float
        On the public test set, after the last round; NaN where the plan was refused.
    guarantees : dict
        What the run's ledger states for the worst-off client: relation to ``kind`` and ``epsilon`` ("inf": none).
    readings : dict
        Relation to the epsilon that the rows of the worst-off client compose to, where the guarantee is a budget.
    rates : list of float
        Released contribution R of each client.
    seconds : float
        Of the whole run, imports left out.
    rounds : list of float
        Seconds of each round.
    refused : str
        Why the plan was refused; empty where it was not.
    """

    settings: str
    accuracy: float = float("nan")
    guarantees: dict[str, dict[str, Any]] = field(default_factory=dict)
    readings: dict[str, float] = field(default_factory=dict)
    rates: list[float] = field(default_factory=list)
    seconds: float = 0.0
    rounds: list[float] = field(default_factory=list)
    refused: str = ""


def run_trial(settings: str) -> Outcome:
    """Run FedSVA in this process and read its folder.

    Raises
    ------
    RuntimeError
        If the run failed for any reason but a refused release of the contribution.
    """
    log = io.StringIO()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            status = run_app("fedsva", "in-process", parse_overrides([settings]), 1, output_dir=place)
        seconds = time.monotonic() - began
        if status != 0:
            reason = log.getvalue().strip().splitlines()[-1]
            if _REFUSED not in reason:
                raise RuntimeError(f"{settings}: {reason}")
            return Outcome(settings, seconds=seconds, refused=reason)
        folder = RunFolder(next(Path(place).iterdir()))
        facts = folder.load_model()[1]
        released = folder.path / "contributions.json"
        clients = json.loads(released.read_text())["clients"].values() if released.exists() else ()
        metrics = parquet.read_table(folder.path / "metrics.parquet").to_pylist()
    return Outcome(
        settings,
        accuracy=float(facts["accuracy"]),
        guarantees={
            row["relation"]: {"kind": row["kind"], "epsilon": row["epsilon"]} for row in facts["guarantees"]
        },
        readings=dict(facts.get("readings", {})),
        rates=[float(client["contribution"]) for client in clients],
        seconds=seconds,
        rounds=[row["seconds"] for row in metrics if row["round"] > 0],
    )


@dataclass
class Sweep:
    """Outcomes of trials by their settings, kept in a file of JSON lines."""

    file: Path
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read what earlier sweeps left; a last line cut short by a stop is run again."""
        for line in self.file.read_text().splitlines() if self.file.exists() else ():
            with contextlib.suppress(json.JSONDecodeError):
                outcome = Outcome(**json.loads(line))
                self.outcomes[outcome.settings] = outcome

    def run(self, settings: Iterable[str], processes: int = 2) -> None:
        """Run the trials that are missing, some at a time, and write down each as it ends."""
        missing = [one for one in dict.fromkeys(settings) if one not in self.outcomes]
        began = time.monotonic()
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            waiting = [pool.submit(run_trial, one) for one in missing]
            try:
                for done, future in enumerate(as_completed(waiting), 1):
                    outcome = future.result()
                    self.outcomes[outcome.settings] = outcome
                    with self.file.open("a") as file:
                        file.write(json.dumps(asdict(outcome)) + "\n")
                    left = (time.monotonic() - began) / done * (len(missing) - done)
                    print(
                        f"{done}/{len(missing)}  {left / 60:.1f} min left  accuracy {outcome.accuracy:.3f}  "
                        f"{outcome.seconds:.1f} s  {outcome.settings}  {outcome.refused}",
                        flush=True,
                    )
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def of(self, settings: Iterable[str]) -> list[Outcome]:
        """The outcomes that are there, in the order of these settings."""
        return [self.outcomes[one] for one in settings if one in self.outcomes]


def mean_and_error(values: list[float]) -> str:
    """Mean and its standard error, in Markdown; one value has no error."""
    if not values:
        return "not run"
    mean = f"{statistics.mean(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values) / len(values) ** 0.5:.3f}"


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown, its first column to the left."""
    header = list(header)
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write_section(page: Path, name: str, text: str) -> None:
    """Put a benchmark's section of the page of results between its marks; the other sections stay as they are."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    whole = page.read_text() if page.exists() else ""
    before, found, rest = whole.partition(begin)
    if not found:
        page.write_text(f"{whole.rstrip()}\n\n{begin}\n{text.strip()}\n{end}\n".lstrip())
        return
    page.write_text(f"{before}{begin}\n{text.strip()}\n{end}{rest.partition(end)[2]}")
