"""App folders: found, read, checked."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fedveil.run.app import BadInput, built_in_apps, find_app
from fedveil.run.settings import Setting, settings_of

MODEL = """
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field


class Settings(BaseModel):
    model_config = ConfigDict(alias_generator=lambda name: name.replace("_", "-"), extra="forbid")
    path_keys: ClassVar = ("note",)

    mode: str = Field("ok", description="What goes wrong.", json_schema_extra={"unit": "name"})
    num_server_rounds: int = Field(2, ge=1)
    note: str = ""

    @classmethod
    def from_run_config(cls, mapping):
        return cls.model_validate(dict(mapping))
"""


@pytest.fixture
def with_model(copy_of_trap: Callable[[str], Path]) -> Path:
    """A copy of the trap app that names a pydantic model."""
    folder = copy_of_trap("with-model")
    (folder / "trap_app" / "settings.py").write_text(MODEL)
    file = folder / "pyproject.toml"
    file.write_text(file.read_text() + '\n[tool.fedveil]\nconfig = "trap_app.settings:Settings"\n')
    return folder


def test_an_app_folder_is_read(trap: Path):
    app = find_app(str(trap))
    assert (app.name, app.serverapp, app.clientapp) == (
        "trap",
        "trap_app.server_app:app",
        "trap_app.client_app:app",
    )
    assert app.defaults == {"mode": "ok", "num-server-rounds": 2, "note": ""}


def test_every_built_in_app_is_found_by_name():
    assert all(find_app(name).folder == folder.resolve() for name, folder in built_in_apps().items())


def test_an_unknown_app_is_refused(tmp_path: Path):
    with pytest.raises(BadInput, match=r"neither an app of FedVeil nor a folder with a pyproject\.toml"):
        find_app(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[project", "is not valid TOML"),
        ('[project]\nname = "a"\n', "it has no 'tool'"),
        ('[project]\nname="a"\n[tool.flwr.app.components]\nserverapp="a:b"\n', "it has no 'clientapp'"),
        (
            '[project]\nname="a"\n[tool.flwr.app.components]\nserverapp="a"\nclientapp="a:b"\n',
            "serverapp must be 'module:attribute'",
        ),
        (
            '[project]\nname="a"\n[tool.flwr.app]\nconfig={x=[1]}\n'
            '[tool.flwr.app.components]\nserverapp="a:b"\nclientapp="a:b"\n',
            "the default of x must be",
        ),
    ],
)
def test_a_folder_that_is_no_flower_app_is_refused(tmp_path: Path, text: str, complaint: str):
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(BadInput, match=complaint):
        find_app(str(tmp_path))


def test_an_unknown_key_is_refused_with_the_nearest_one(trap: Path):
    with pytest.raises(BadInput, match="unknown key 'num-server-round'; did you mean 'num-server-rounds'"):
        find_app(str(trap)).configure({"num-server-round": 3})


def test_the_apps_own_model_checks_values(with_model: Path):
    app = find_app(str(with_model))
    assert app.configure({"num-server-rounds": 5})["num-server-rounds"] == 5
    with pytest.raises(BadInput, match="num-server-rounds = 0: ") as refusal:
        app.configure({"num-server-rounds": 0})
    assert "\n" not in str(refusal.value)


def test_a_component_that_does_not_exist_is_named(copy_of_trap: Callable[[str], Path]):
    folder = copy_of_trap("broken")
    file = folder / "pyproject.toml"
    file.write_text(file.read_text() + '\n[tool.fedveil]\nconfig = "trap_app.nothing:Settings"\n')
    with pytest.raises(BadInput, match=r"no module 'trap_app.nothing'"):
        find_app(str(folder)).configure({})
    file.write_text(file.read_text().replace("trap_app.nothing:Settings", "trap_app.client_app:Settings"))
    with pytest.raises(BadInput, match=r"no 'Settings' in trap_app.client_app"):
        find_app(str(folder)).configure({})


def test_settings_are_described_with_unit_meaning_and_default(with_model: Path):
    settings = {setting.key: setting for setting in settings_of(find_app(str(with_model)))}
    assert settings["mode"] == Setting("mode", "name", "What goes wrong.", "ok")
    assert list(settings) == ["mode", "num-server-rounds", "note"]


def test_code_of_another_copy_of_the_app_is_not_used(copy_of_trap: Callable[[str], Path]):
    first, second = copy_of_trap("first"), copy_of_trap("second")
    client = second / "trap_app" / "client_app.py"
    client.write_text(client.read_text().replace("STEP = 1.0", "STEP = 100.0"))
    steps = [find_app(str(folder)).load("trap_app.client_app:STEP") for folder in (first, second, first)]
    assert steps == [1.0, 100.0, 1.0]
