"""The keys of a configuration in words: type, default, bounds and meaning, all read from the pydantic sections.

`cropstar config`, the comments of --print-config, the schema for editors and the reference page come from here.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

SCHEMA = Path(__file__).parent / "config.schema.json"  # shipped, so that editors can complete and check YAML

# What other programs call these keys.
OTHER_NAMES = {
    **dict.fromkeys(("lr", "learning-rate", "base_lr", "max_lr"), "optimiser.learning_rate"),
    **dict.fromkeys(("wd", "l2"), "optimiser.weight_decay"),
    **dict.fromkeys(("optimizer", "optim", "adam"), "optimiser"),
    **dict.fromkeys(("scheduler", "lr_schedule", "lr_scheduler"), "optimiser.schedule"),
    **dict.fromkeys(("ema", "swa"), "optimiser.average"),
    **dict.fromkeys(("clip_norm", "grad_clip", "max_grad_norm", "gradient_clip_val"), "optimiser.clip"),
    **dict.fromkeys(("batch_size", "bs", "batchsize"), "batch"),
    **dict.fromkeys(("num_epochs", "n_epochs", "max_epochs", "iterations"), "epochs"),
    **dict.fromkeys(("num_layers", "n_layers", "depth"), "model.layers"),
    **dict.fromkeys(("hidden_size", "hidden_dim", "width", "units", "filters", "channels"), "model.hidden"),
    **dict.fromkeys(("n_estimators", "num_trees", "ntree"), "model.trees"),
    **dict.fromkeys(("min_samples_leaf", "nodesize"), "model.leaf"),
    **dict.fromkeys(("nhead", "n_head", "num_heads"), "model.heads"),
    **dict.fromkeys(("architecture", "arch", "backbone", "network"), "model.name"),
    **dict.fromkeys(("patch_size", "crop_size", "tile_size"), "patch"),
    **dict.fromkeys(("early_stopping", "early-stopping"), "patience"),
    **dict.fromkeys(("random_state", "random_seed"), "seed"),
    **dict.fromkeys(("test_size", "test_share"), "split.test"),
    **dict.fromkeys(("val", "val_size", "validation_split"), "split.validation"),
    **dict.fromkeys(("k_fold", "kfold", "cv", "n_splits"), "split.folds"),
    **dict.fromkeys(("class_weight", "class_weights"), "loss.balance"),
    **dict.fromkeys(("gamma", "focal"), "loss.focus"),
    **dict.fromkeys(("label_smoothing",), "loss.smoothing"),
    **dict.fromkeys(("amp", "fp16", "bf16", "dtype", "half"), "precision"),
    **dict.fromkeys(("normalize", "batch_norm", "batchnorm"), "model.normalise"),
}


@dataclass(frozen=True)
class Key:
    """One key of a configuration."""

    name: str  # with its section, such as model.layers
    type: str
    default: str
    bounds: str  # empty where there are none
    meaning: str

    @property
    def comment(self) -> str:
        """The meaning and the bounds in a line, as --print-config writes them."""
        return f"{self.meaning} ({self.bounds})" if self.bounds else self.meaning


@cache
def config_keys() -> dict[str, Key]:
    """All keys by their names, in the order of the configuration."""
    schema = config_schema()
    return {key.name: key for key in _keys_of(schema, schema["$defs"], "")}


@cache
def config_sections() -> dict[str, str]:
    """The sections and what each is for; the keys without a section are ''."""
    schema = config_schema()
    parts = {"": schema["description"]}
    for name, entry in schema["properties"].items():
        if "$ref" in entry:
            parts[name] = _target(entry, schema["$defs"])["description"]
    return parts


@cache
def config_schema() -> dict[str, Any]:
    """The JSON schema of a configuration file."""
    from cropstar.config import TrainConfig

    schema = TrainConfig.model_json_schema()
    schema.pop("required", None)  # a file may leave the store to the command line
    for section in (schema, *schema["$defs"].values()):
        for name, entry in section["properties"].items():
            entry.pop("title", None)
            if name == "seed":
                entry.pop("exclusiveMaximum", None)  # of 64 bits, which JSON numbers do not hold
            if "$ref" in entry:
                entry.pop("default", None)  # those of its keys say the same
    return {**schema, "title": "Configuration of cropstar train"}


def schema_text() -> str:
    """The schema as it is shipped."""
    return json.dumps(config_schema(), indent=1, ensure_ascii=False) + "\n"


def nearest_keys(name: str) -> str:
    """The remedy for an unknown key: the one that was probably meant, and where to find all."""
    near = nearest_key(name)
    question = f"did you mean '{near}'? " if near else ""
    return f"{question}'cropstar config' lists all keys"


def nearest_key(name: str) -> str | None:
    """The key or section that was probably meant: by another program's name, by its last part, or by its letters."""
    known = [*config_keys(), *filter(None, config_sections())]
    last = name.rpartition(".")[2]
    wanted = OTHER_NAMES.get(last.lower().replace("-", "_"))
    if wanted is not None:
        return wanted
    for candidates in (
        [key for key in known if key.rpartition(".")[2] == last.replace("-", "_")],
        difflib.get_close_matches(name, known, n=1, cutoff=0.6),
    ):
        if candidates:
            return candidates[0]
    parts = {key.rpartition(".")[2]: key for key in reversed(known)}
    near = difflib.get_close_matches(last, parts, n=1, cutoff=0.7)
    return parts[near[0]] if near else None


# --- From the schema to words


def _keys_of(section: dict[str, Any], definitions: dict[str, Any], prefix: str) -> Iterator[Key]:
    for name, entry in section["properties"].items():
        if "$ref" in entry:
            yield from _keys_of(_target(entry, definitions), definitions, f"{prefix}{name}.")
            continue
        default = _value(entry["default"]) if "default" in entry else "none"
        yield Key(prefix + name, _type(entry), default, _bounds(entry), entry.get("description", ""))


def _target(entry: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    target: dict[str, Any] = definitions[entry["$ref"].rpartition("/")[2]]
    return target


WORDS = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false", "null": "null"}


def _type(entry: dict[str, Any]) -> str:
    if "enum" in entry:
        return " | ".join(map(str, entry["enum"]))
    if "const" in entry:
        return str(entry["const"])
    if "anyOf" in entry:
        return " | ".join(_type(each) for each in entry["anyOf"])
    if entry.get("type") == "array":
        return "list of models" if "$ref" in entry["items"] else "list of names"
    if entry.get("type") == "object":
        return f"mapping to {_type(entry['additionalProperties'])}s"
    return "path" if entry.get("format") == "path" else WORDS[entry["type"]]


def _bounds(entry: dict[str, Any]) -> str:
    """Such as '1 to 64', 'above 0' or '0 to below 1'."""
    for each in (entry, *entry.get("anyOf", ()), *([entry["additionalProperties"]] if _is_mapping(entry) else [])):
        low, above = each.get("minimum"), each.get("exclusiveMinimum")
        high, below = each.get("maximum"), each.get("exclusiveMaximum")
        start = f"{low:,}" if low is not None else f"above {above:,}" if above is not None else ""
        end = f"{high:,}" if high is not None else f"below {below:,}" if below is not None else ""
        if start and end:
            return f"{start} to {end}"
        if start:
            return start if start.startswith("above") else f"at least {start}"
        if end:
            return end if end.startswith("below") else f"at most {end}"
    return ""


def _is_mapping(entry: dict[str, Any]) -> bool:
    return isinstance(entry.get("additionalProperties"), dict)


def _value(value: Any) -> str:
    return json.dumps(value) if not isinstance(value, str) else value


if __name__ == "__main__":  # after a change of the configuration: python -m cropstar.config_keys
    SCHEMA.write_text(schema_text(), encoding="utf-8")
