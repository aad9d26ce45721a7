"""After training: what is done with a finished run."""

from fedveil.strategies.hooks.finished_run import FinishedRun, Hook
from fedveil.strategies.hooks.running import hook_names, hooks_after, run_hooks

__all__ = ["FinishedRun", "Hook", "hook_names", "hooks_after", "run_hooks"]
