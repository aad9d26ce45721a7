"""Running the hooks of a finished run: one that fails is told, and loses nothing."""

from __future__ import annotations

from collections.abc import Iterable

from fedveil.plugins import find, resolve
from fedveil.strategies.hooks.finished_run import FinishedRun
from fedveil.strategies.reasons import one_line

__all__ = ["hook_names", "run_hooks"]


def hook_names(text: str) -> tuple[str, ...]:
    """The hooks that a configuration names, with commas; "none" and nothing are none.

    Raises
    ------
    ValueError
        If a name stands for no hook.
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if names in ((), ("none",)):
        return ()
    for name in names:
        find("hook", name)  # says what is wrong
    return names


def run_hooks(names: Iterable[str], run: FinishedRun) -> tuple[str, ...]:
    """Run hooks in order.

    Returns
    -------
    tuple of str
        The hooks that failed, each told in one line.
    """
    failed = []
    for name in names:
        try:
            resolve("hook", name)(run)
        except Exception as error:  # a hook may fail in any way: the run's results are on disk, and stay
            failed.append(name)
            run.say(
                f"hook {name!r} failed, the run's other results stay: {one_line(f'{error}' or type(error).__name__)}"
            )
    return tuple(failed)
