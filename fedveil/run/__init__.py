"""Running apps: the plan, the engines, and what a run may leave behind."""

from fedveil.run.app import App, BadInput, built_in_apps, find_app
from fedveil.run.in_process import InProcessGrid
from fedveil.run.plan import RunPlan, plan_run
from fedveil.run.runner import execute, run_app

__all__ = [
    "App",
    "BadInput",
    "InProcessGrid",
    "RunPlan",
    "built_in_apps",
    "execute",
    "find_app",
    "plan_run",
    "run_app",
]
