"""The class table, `--classes classes.yaml`: which labels of the parcels become which class.

winter cereals: [winter wheat, winter barley]        # merged
maize: {labels: [maize, 211], colour: "#e67e22"}     # renamed and painted
drop: [unknown, building]                            # these parcels are left out
others: error                                        # of labels that stand nowhere: error, drop or keep
"""

from __future__ import annotations

import difflib
import re
import reprlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cropstar.config import StrictLoader, read_config
from cropstar.errors import InputError, UsageError
from cropstar.inputs import MAXIMUM_CLASSES
from cropstar.registry import did_you_mean, short_list
from cropstar.runtime import logger
from cropstar.store.classes import ClassTable, CropClass, choose_colours

DROP, OTHERS = "drop", "others"
OTHERS_CHOICES = ("error", "drop", "keep")
COLOUR = re.compile(r"#[0-9a-fA-F]{6}")
LABELS_NAMED = 5  # labels that one message names


class _TextLoader(StrictLoader):
    """Takes every scalar as it is written: the code 010 is not eight and the crop `no` is not false."""


_TextLoader.yaml_implicit_resolvers = {}


@dataclass(frozen=True)
class _ClassRule:
    name: str
    labels: tuple[str, ...]
    colour: str | None = None


@dataclass(frozen=True)
class ClassRules:
    """The class of each label; without rules every label is a class of its own."""

    classes: tuple[_ClassRule, ...] = ()
    dropped: tuple[str, ...] = ()
    others: str = "keep"
    path: Path | None = None

    def apply(self, labels: Sequence[str]) -> list[str | None]:
        """The class of each label, None where the parcel is to be left out."""
        known: dict[str, str | None] = dict.fromkeys(self.dropped)
        known.update((label, rule.name) for rule in self.classes for label in rule.labels)
        if self.path is not None:
            self._log_rules(Counter(labels), known)
        return [known.get(label, label if self.others == "keep" else None) for label in labels]

    def rename(self, labels: Sequence[str | None]) -> list[str | None]:
        """Labels by the names of their classes; what no class takes keeps its own."""
        known = {label: rule.name for rule in self.classes for label in rule.labels}
        return [None if label is None else known.get(label, label) for label in labels]

    def _log_rules(self, counts: Counter[str], known: dict[str, str | None]) -> None:
        unknown = sorted((label for label in counts if label not in known), key=lambda label: (-counts[label], label))
        if unknown and self.others == "error":
            first, more = unknown[0], len(unknown) - 1
            why = f"{counts[first]} parcels have it"
            if near := difflib.get_close_matches(first, known, n=1, cutoff=0):
                why += f", the nearest known label is '{near[0]}'"
            if more:
                why += f", and {more} more labels are missing"
            remedy = "add it to a class or to 'drop', or write 'others: drop'"
            raise InputError(f"the label '{first}' is not in the class table", path=self.path, why=why, remedy=remedy)
        if unknown and self.others == "drop":
            counted = (f"{label} ({counts[label]})" for label in unknown)
            logger.info("labels left out by %s: %s", self.path, short_list(counted, LABELS_NAMED))
        if unused := [label for label in known if label not in counts]:
            logger.info("labels in %s that no parcel has: %s", self.path, short_list(unused, LABELS_NAMED))

    def table(self, names: Iterable[str]) -> ClassTable:
        """All classes in the order of the file, also those without a parcel here; then the kept labels by name.

        Scenes that are ingested one after the other with one file thus have one class table.
        """
        listed = [rule.name for rule in self.classes]
        ordered = [*listed, *sorted(set(names) - set(listed))]
        given = {rule.name: rule.colour for rule in self.classes if rule.colour}
        colours = dict(zip(ordered, choose_colours(ordered), strict=True))
        # Where the file gives a chosen colour to another class, that class's own choice is free.
        spare = [colours[name] for name in given if colours[name] not in given.values()]
        for name, colour in colours.items():
            if name not in given and colour in given.values() and spare:
                colours[name] = spare.pop(0)
        colours |= given
        return ClassTable(CropClass(number, name, colours[name]) for number, name in enumerate(ordered))

    def to_json(self) -> dict[str, Any]:
        """The content for the recipe: the file's name, its comments and the order of labels make no difference."""
        classes = [[rule.name, sorted(rule.labels), rule.colour] for rule in self.classes]
        return {"classes": classes, DROP: sorted(self.dropped), OTHERS: self.others}


EVERY_LABEL = ClassRules()


def read_rules(path: Path) -> ClassRules:
    """Read and check a class table."""
    data: dict[Any, Any] = read_config(path, _TextLoader)
    others = data.pop(OTHERS, "error")
    if others not in OTHERS_CHOICES:
        raise _wrong_table(path, f"'others' is {reprlib.repr(others)}", f"choose one of {', '.join(OTHERS_CHOICES)}")
    dropped = _labels(path, DROP, data.pop(DROP)) if DROP in data else ()
    classes = tuple(_rule(path, name, value) for name, value in data.items())
    if not classes and others != "keep":
        raise _wrong_table(path, "no class is left", "write lines such as 'cereals: [wheat, barley]'")
    if len(classes) > MAXIMUM_CLASSES:
        raise _wrong_table(path, f"{len(classes)} classes", f"merge them to at most {MAXIMUM_CLASSES}")
    places = [(label, rule.name) for rule in classes for label in rule.labels] + [(label, DROP) for label in dropped]
    seen: dict[str, str] = {}
    for label, place in places:
        if label in seen:
            raise _wrong_table(path, f"the label '{label}' is under '{seen[label]}' and '{place}'", "keep one of them")
        seen[label] = place
    return ClassRules(classes, dropped, others, path)


def _rule(path: Path, name: Any, value: Any) -> _ClassRule:
    if not isinstance(name, str) or not name.strip():
        raise _wrong_table(path, "a class without a name", "give it one")
    if (meant := name.strip().lower()) in (DROP, OTHERS):
        raise _wrong_table(path, f"'{name}' would be a class", f"write '{meant}'")
    if not isinstance(value, dict):
        return _ClassRule(name, _labels(path, name, value))
    for key in value:
        if key not in ("labels", "colour"):
            raise _wrong_table(path, f"unknown key '{key}' in '{name}'", did_you_mean(str(key), ("labels", "colour")))
    colour = value.get("colour")
    if colour is not None and not (isinstance(colour, str) and COLOUR.fullmatch(colour)):
        why = f"the colour of '{name}' is {reprlib.repr(colour)}"
        raise _wrong_table(path, why, 'write it in quotes, such as "#d9a441"')
    return _ClassRule(name, _labels(path, name, value.get("labels")), colour and colour.lower())


def _labels(path: Path, name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not (value or name == DROP):
        raise _wrong_table(path, f"'{name}' has no list of labels", f"write '{name}: [label, label]'")
    for label in value:
        if not isinstance(label, str) or not label.strip():
            raise _wrong_table(path, f"{reprlib.repr(label)} in '{name}' is not a label", "write names or codes")
    return tuple(label.strip() for label in value)


def _wrong_table(path: Path, why: str, remedy: str) -> UsageError:
    return UsageError("not a class table", path=path, why=why, remedy=remedy)
