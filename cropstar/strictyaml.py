"""YAML without its traps: no objects, no duplicate keys, and 1e-3 is a number."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from cropstar.errors import UsageError


class StrictLoader(yaml.SafeLoader):
    """PyYAML's safe loader that refuses a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, (str, int, float, bool)):
                raise yaml.constructor.ConstructorError(None, None, "a key is not plain text", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key '{key}' stands twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


class StrictDumper(yaml.SafeDumper):
    """Writes what the strict loader reads back to the same value."""


# YAML 1.1 reads 1e-3 as text, because it has no dot; everyone means the number. Text of that form gets quotes.
NUMBER = re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")
StrictLoader.add_implicit_resolver("tag:yaml.org,2002:float", NUMBER, list("-+0123456789"))
StrictDumper.add_implicit_resolver("tag:yaml.org,2002:float", NUMBER, list("-+0123456789"))


def load_yaml(text: str, origin: Path | str) -> Any:
    try:
        return StrictLoader(text).get_single_data()
    except (yaml.YAMLError, RecursionError, ValueError) as failure:  # ValueError: a date that is none
        mark = getattr(failure, "problem_mark", None)
        place = f"line {mark.line + 1}: " if mark else ""
        why = place + str(getattr(failure, "problem", None) or failure)
        raise UsageError("not valid YAML", path=origin, why=why, remedy="mend the file") from None


def dump_yaml(data: Any) -> str:
    return yaml.dump(data, Dumper=StrictDumper, sort_keys=False)
