"""The ``fedveil`` command."""

from __future__ import annotations

import gc
import io
import sys
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from fedveil import __version__

__all__ = ["main"]

_BAD_INPUT = 2
_FILE_WIDTH = 140  # columns, where no terminal says

cli = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Federated learning on Flower whose privacy can be explained and checked.",
)

AppArgument = Annotated[
    str, typer.Argument(help="An app of FedVeil by name (fedsva), or the path of an app folder.")
]


@cli.callback(invoke_without_command=True)
def version_option(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Print the version when asked for."""
    if version:
        print(__version__)
        raise typer.Exit


@cli.command()
def run(
    app: AppArgument,
    engine: Annotated[
        str,
        typer.Option(
            help="flower: through a SuperLink of its own and Ray. in-process: neither, starts at once."
        ),
    ] = "flower",
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--run-config", "-c", help="'key=value key=\"text\"', or a .toml file; see `fedveil config APP`."
        ),
    ] = None,
    num_supernodes: Annotated[int, typer.Option(help="Simulated nodes; they share the logical clients.")] = 2,
    num_cpus: Annotated[
        int | None,
        typer.Option(
            "--client-resources-num-cpus", help="Cores that Ray sets aside for a node (default 2, Flower's)."
        ),
    ] = None,
    num_gpus: Annotated[
        float,
        typer.Option("--client-resources-num-gpus", help="GPUs, or a share of one, that Ray gives a node."),
    ] = 0.0,
    resume: Annotated[str | None, typer.Option(help="Folder of an unfinished run to go on with.")] = None,
    output_dir: Annotated[str | None, typer.Option(help="Where the run's folder goes.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print the traceback of a failure.")] = False,
) -> None:
    """Run an app; the exit status is 0 only when it worked."""
    from fedveil.run.overrides import parse_overrides
    from fedveil.run.plan import plan_run
    from fedveil.run.runner import execute

    try:
        plan = plan_run(
            app,
            engine=engine,
            overrides=parse_overrides(config or []),
            num_nodes=num_supernodes,
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            resume=resume,
            output_dir=output_dir,
        )
    except ValueError as error:
        _refuse(error)
    raise typer.Exit(execute(plan, verbose=verbose))


@cli.command()
def config(app: AppArgument) -> None:
    """Print every key of an app with its unit, meaning and default."""
    from fedveil.run.app import find_app
    from fedveil.run.settings import settings_of

    try:
        settings = settings_of(find_app(app))
    except ValueError as error:
        _refuse(error)
    table = Table(box=None, pad_edge=False)
    for heading in ("key", "default", "unit", "meaning"):
        table.add_column(heading, no_wrap=heading == "key", overflow="fold")
    for setting in settings:
        default = f'"{setting.default}"' if isinstance(setting.default, str) else str(setting.default)
        shown = default.lower() if isinstance(setting.default, bool) else default
        table.add_row(setting.key, shown, setting.unit, setting.meaning)
    _show(table)


@cli.command("list")
def list_plugins() -> None:
    """List the plugins of every kind that are installed, from where, and whether each can be used."""
    from fedveil.plugins import check_all

    table = Table(box=None, pad_edge=False)
    for heading in ("kind", "name", "from", "object", "state"):
        table.add_column(heading, no_wrap=heading in ("kind", "name", "state"), overflow="fold")
    checks = check_all()
    for check in checks:
        plugin = check.plugin
        state = "broken" if check.problem else "ok"
        table.add_row(plugin.kind, plugin.name, plugin.source, plugin.reference, state)
    _show(table)
    for check in checks:
        if check.problem:
            print(f"broken: {check.problem}")


@cli.command()
def plan(
    app: AppArgument,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--run-config", "-c", help="'key=value key=\"text\"', or a .toml file; see `fedveil config APP`."
        ),
    ] = None,
) -> None:
    """Print what a run would release and guarantee, without starting it."""
    from fedveil.run.overrides import parse_overrides
    from fedveil.run.plan import plan_run

    try:
        planned = plan_run(app, engine="in-process", overrides=parse_overrides(config or []), num_nodes=1)
        if planned.app.plan is None:
            raise ValueError(f"app {planned.app.name} has no plan: its pyproject.toml names none.")
        show, model = planned.app.load(planned.app.plan), planned.app.config_class()
        with planned.app.importable():
            show(planned.config if model is None else model.from_run_config(planned.config), print)
    except ValueError as error:
        _refuse(error)


@cli.command()
def quantize(
    run: Annotated[str, typer.Argument(help="Folder of a finished run.")],
    schemes: Annotated[
        str | None, typer.Option(help="Quantizers, with commas, as in sign,ternary-90,int4/channel.")
    ] = None,
    candidates: Annotated[
        int | None, typer.Option(help="Models of the run's trajectory that r_Q compares.")
    ] = None,
    app: Annotated[str | None, typer.Option(help="The run's app, where it is not FedVeil's own.")] = None,
) -> None:
    """Quantize the model of a finished run: files, sizes, figures, and how private each quantizer leaves it (r_Q)."""
    from fedveil.run.quantized import quantize_run

    try:
        quantize_run(run, schemes=schemes, candidates=candidates, app=app, say=print)
    except (ValueError, OSError) as error:
        _refuse(error)


@cli.command()
def load(
    file: Annotated[str, typer.Argument(help="A quantized model, as in RUN/quantized/int4.safetensors.")],
) -> None:
    """Check a quantized model and say what is in it; `fedveil.load_quantized` gives its torch module."""
    from fedveil.run.quantized import load_quantized, read_quantized

    try:
        model = read_quantized(file)
        module = load_quantized(file)
    except (ValueError, OSError) as error:
        _refuse(error)
    table = Table(box=None, pad_edge=False)
    for heading in ("array", "shape", "as"):
        table.add_column(heading)
    for name, part in model.parts.items():
        table.add_row(
            name, str(tuple(part.shape)), model.scheme.name if name in model.quantized else "float32"
        )
    _show(table)
    print(f"whole and unchanged; a {type(module).__name__}: fedveil.load_quantized({file!r})")


@cli.command()
def policy(
    file: Annotated[
        str | None,
        typer.Option(help="A policy file; else the node's, $FEDVEIL_POLICY or policy.toml in $FEDVEIL_HOME."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Say nothing of what has been spent; exit status 2 if unusable.")
    ] = False,
) -> None:
    """Explain this node's policy, and what its records have spent over all runs."""
    from fedveil.run.policy import explain_policy

    try:
        explain_policy(file, say=print, check=check)
    except (ValueError, OSError) as error:
        _refuse(error)


@cli.command()
def doctor(
    node: Annotated[
        bool,
        typer.Option("--node", help="As a node of a deployment: its ledger, and nothing that simulates."),
    ] = False,
) -> None:
    """Check this installation; the exit status is 0 only when all is well."""
    from fedveil.run.doctor import examine

    checks = examine(node=node)
    for check in checks:
        print(f"{'ok  ' if check.ok else 'FAIL'}  {check.name}: {check.detail}")
    raise typer.Exit(0 if all(check.ok for check in checks) else 1)


def _show(table: Table) -> None:
    width = None if sys.stdout.isatty() else _FILE_WIDTH
    Console(highlight=False, markup=False, width=width).print(table)


def _refuse(error: ValueError | OSError) -> NoReturn:
    print(f"fedveil: {error}", file=sys.stderr)
    raise typer.Exit(_BAD_INPUT)


def main() -> None:
    """Entry point of the console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # Flower's log has signs that not every terminal has
    try:
        cli()
    finally:
        gc.freeze()  # without it, Python walks all of torch's objects again at exit: 1.5 s


if __name__ == "__main__":
    main()
