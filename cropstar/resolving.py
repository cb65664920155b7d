"""How a configuration comes about: defaults, then a YAML file, then options, then `--set key=value`.

It is strict: an unknown key, a wrong type or a key given twice is an error with a suggestion. What came
out of it is saved with every run.
"""

from __future__ import annotations

import reprlib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cropstar.config import AUTO, TrainConfig
from cropstar.errors import InputError, UsageError
from cropstar.limits import MAXIMUM_CONFIG_BYTES
from cropstar.places import STORES
from cropstar.registry import did_you_mean
from cropstar.strictyaml import dump_yaml, load_yaml

SHORT = reprlib.Repr()  # of a wrong value in a message: a few words of YAML aliases can stand for gigabytes
SHORT.maxlevel = 2


def resolve(
    file: Path | None,
    options: dict[str, Any],
    assignments: tuple[str, ...] = (),
    defaults: dict[str, Any] | None = None,
) -> TrainConfig:
    """The configuration of a run; later layers win. `options` has dotted keys, None means not given."""
    data = {key: value for key, value in (defaults or {}).items() if value is not None}
    data |= read_config(file) if file else {}
    for key, value in options.items():
        if value is not None:
            _put(data, key, value)
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key:
            raise UsageError(
                f"--set {assignment}", why="not of the form key=value", remedy="e.g. --set model.hidden=64"
            )
        _put(data, key.strip(), load_yaml(text, f"--set {key}"))
    try:
        return TrainConfig.model_validate(data)
    except ValidationError as failure:
        raise _explain(failure, file) from None


def find_config(name: str) -> Path:
    """A path as it is, else the configuration of that name that ships with cropstar."""
    path = Path(name)
    if path.exists():
        return path
    package = Path(__file__).parent
    installed, checkout = package / "configs", package.parent / "configs"
    folder = installed if installed.is_dir() else checkout
    shipped = {file.stem: file for file in sorted(folder.glob("*.yaml"))}
    if path.suffix or path.name != name or not shipped:
        raise UsageError("no such configuration", path=path, remedy="check the path")
    if name not in shipped:
        raise UsageError(f"unknown configuration '{name}'", remedy=did_you_mean(name, shipped))
    return shipped[name]


def read_config(file: Path) -> dict[str, Any]:
    """A YAML file as a plain dictionary."""
    if not file.is_file():
        raise UsageError("no such configuration", path=file, remedy="check the path")
    if file.stat().st_size > MAXIMUM_CONFIG_BYTES:
        raise UsageError("a configuration this large is none", path=file, remedy="give a YAML file")
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError("not a text file", path=file, remedy="give a YAML file") from None
    data = load_yaml(text, file)
    if not isinstance(data, dict):
        raise UsageError("not a configuration", path=file, why="no keys at the top", remedy="write 'key: value' lines")
    return data


def dump(config: TrainConfig) -> str:
    """The resolved configuration as YAML that `resolve` reads back to the same value.

    With the model 'auto' it has what was given alone: the recipe of each candidate fills in the rest.
    """
    return dump_yaml(config.model_dump(mode="json", exclude_unset=config.model.name == AUTO))


def _put(data: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, last = dotted.split(".")
    for parent in parents:
        data = data.setdefault(parent, {})
        if not isinstance(data, dict):
            raise UsageError(f"cannot set '{dotted}'", why=f"'{parent}' is a value", remedy="check the key")
    data[last] = value


def _explain(failure: ValidationError, file: Path | None) -> UsageError | InputError:
    """The first of pydantic's complaints as one line of ours."""
    first = failure.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = _keys_beside(first["loc"])
        parent = key.rpartition(".")[0]
        full = [f"{parent}.{name}" if parent else name for name in known]
        return UsageError(f"unknown key '{key}'", path=file, remedy=did_you_mean(key, full))
    if first["type"] == "missing" and key == "store":
        return InputError(
            "no store yet", path=STORES, remedy="make one with 'cropstar ingest', or name it with --store"
        )
    if first["type"] == "missing":
        return UsageError(f"the key '{key}' is missing", path=file, remedy="give it in the configuration or as option")
    why = f"{first['msg'].lower()}, not {SHORT.repr(first['input'])}" if key else first["msg"]
    what = f"wrong value of '{key}'" if key else "wrong configuration"
    return UsageError(what, path=file, why=why, remedy="correct it; --print-config shows all keys")


def _keys_beside(location: tuple[int | str, ...]) -> list[str]:
    section: Any = TrainConfig
    for part in location[:-1]:
        section = section.model_fields[part].annotation
    return list(section.model_fields)
