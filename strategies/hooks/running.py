"""Running the hooks of a finished run: one that fails is told, and loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fedveil.plugins import find, resolve
from fedveil.strategies.hooks.finished_run import FinishedRun
from fedveil.strategies.hooks.reason import reason_of

__all__ = ["hook_names", "hooks_after", "run_hooks"]


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


def hooks_after(names: Iterable[str], build: Callable[[], FinishedRun], say: Callable[[str], None]) -> None:
    """Run the hooks of a run whose results are on disk; that it cannot be read any more loses nothing either.

    Parameters
    ----------
    build : callable
        Gives the finished run; called once, where there are hooks.
    """
    names = tuple(names)
    if not names:
        return
    try:
        run = build()
    except Exception as error:  # data or files may have gone in any way: the results are on disk, and stay
        say(f"the hooks {', '.join(names)} were not run, the run's results stay: {reason_of(error)}")
        return
    run_hooks(names, run)


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
        # a hook may fail in any way: the results are on disk, and stay
        except (Exception, SystemExit) as error:
            failed.append(name)
            run.say(f"hook {name!r} failed, the run's other results stay: {reason_of(error)}")
    return tuple(failed)
