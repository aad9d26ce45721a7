"""What an app's settings mean: every key with unit, meaning and default."""

from __future__ import annotations

from dataclasses import dataclass

from fedveil.run.app import App
from fedveil.run.overrides import Value

__all__ = ["Setting", "settings_of"]


@dataclass(frozen=True)
class Setting:
    """One key of a run configuration.

    Attributes
    ----------
    key, unit, meaning : str
        Unit and meaning are empty where the app does not say.
    default : Value
        The app's own default, as in its pyproject.toml.
    """

    key: str
    unit: str
    meaning: str
    default: Value


def settings_of(app: App) -> list[Setting]:
    """All keys of an app, in the order of its pyproject.toml."""
    model = app.config_class()
    described = {}
    for name, field in (model.model_fields if model is not None else {}).items():
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        described[field.alias or name.replace("_", "-")] = (
            str(extra.get("unit", "")),
            field.description or "",
        )
    return [Setting(key, *described.get(key, ("", "")), default) for key, default in app.defaults.items()]
