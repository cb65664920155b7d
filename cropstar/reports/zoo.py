"""What `cropstar models` prints: the zoo on one screen, and one model layer by layer."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from cropstar.reports.class_lines import WIDTH
from cropstar.reports.inspection import size_words
from cropstar.reports.lettering import ELLIPSIS
from cropstar.reports.wording import DASH, count, plural

if TYPE_CHECKING:
    from cropstar.models.description import ModelFacts, PartFacts

LABEL = 10  # of a fact
TILE = 10_980  # pixels a side of a Sentinel-2 tile at 10 m
HEAD = f"  {'model':<16}{'reads':<7}{'parameters':>11}{'MACs':>11}{'radius':>7}  streams "
ROOM = WIDTH - len(HEAD)
PLAIN = {"name", "layers", "hidden"}  # settings that have an option of their own


def say_zoo(facts: Sequence[ModelFacts], left_out: Collection[str]) -> str:
    """A line a model; the models of one cell stand together and share the words about them."""
    families: dict[str, list[ModelFacts]] = {}
    for model in sorted(facts, key=lambda model: (model.reads == "images", model.name)):
        families.setdefault(model.description, []).append(model)
    lines = [f"\x1b[1m{plural(len(facts), 'model')}\x1b[0m  {_of(facts)}", "", f"{HEAD}what it is"]
    for description, family in families.items():
        rows = [_row(model) for model in family]
        words = textwrap.wrap(_brief(description), ROOM, max_lines=2, placeholder=ELLIPSIS)
        rows += [""] * (len(words) - len(rows))
        words += [""] * (len(rows) - len(words))
        lines += [f"{row:<{len(HEAD)}}{said}" for row, said in zip(rows, words, strict=True)]
    if left_out:
        why = "too large, or without such a setting: 'cropstar models NAME' with the same options says which"
        lines += ["", *_fact("left out", f"{', '.join(left_out)} ({why})")]
    dates = plural(facts[0].shape.length, "date")
    lines += [
        "",
        *_fact("MACs", "multiply-accumulates a pixel and date, without what is done once a season (the head)"),
    ]
    lines += _fact("radius", f"how many pixels around a pixel its class depends on, after {dates}")
    lines += _fact("streams", "a new date needs only that image and the state of the map before it")
    lines += _fact("compose", "bi before a name reads both ways, + stacks cells: biconvgru, lstm_forget+star")
    lines += _fact("details", "cropstar models convstar --layers 4")
    return _joined(lines)


def say_model(facts: ModelFacts) -> str:
    """Layer by layer, then the sums, the settings and the equations."""
    streams = "streams" if facts.streams else "does not stream"
    size = "grown from the data" if facts.parameters is None else plural(facts.parameters, "parameter")
    lines = [f"\x1b[1m{facts.name}\x1b[0m  {size} \u00b7 reads {facts.reads} \u00b7 {streams}", ""]
    if facts.parts:
        lines += [*_fact("for", f"{_of([facts])}; day encoding {facts.config['day_encoding']}"), "", *_parts(facts), ""]
        sums = f"{count(facts.macs_per_season)} multiply-accumulates a pixel and season"
        once = f" + {count(facts.macs_once)} once" if facts.macs_once else ""
        parts = f"{facts.shape.length} \u00d7 {count(facts.macs_per_date)}{once}"
        lines += _fact("products", f"{sums} ({parts})")
    lines += _fact("radius", _radius(facts)) + _fact("state", _state(facts))
    for number, option in enumerate(facts.options):
        value = "null" if option.value is None else _yaml(option.value)
        lines += _fact("" if number else "settings", f"model.{option.key} {value}: {option.meaning}")
    for text in facts.documentation:
        lines += ["", *(f"  {line}" for line in _narrowed(text))]
    if facts.radius is None:
        return _joined([*lines, "", *_fact("train it", "from Python alone: a store has pixels and parcels, no clips")])
    return _joined([*lines, "", f"  {'train it':<{LABEL}}{_command(facts)}"])  # in one piece, to be copied


def _of(facts: Sequence[ModelFacts]) -> str:
    """What the numbers are for: the input, and the width of each kind of model."""
    shape, config = facts[0].shape, facts[0].config
    widths = {model.reads: model.config["hidden"] for model in facts}
    if len(set(widths.values())) > 1:
        width = " or ".join(f"{widths[reads]} ({reads})" for reads in sorted(widths, reverse=True))
    else:
        width = str(config["hidden"])
    return (
        f"{plural(shape.bands, 'band')}, {plural(shape.classes, 'class', 'classes')}, {plural(shape.length, 'date')}; "
        f"{plural(config['layers'], 'layer')} of {width}"
    )


def _row(facts: ModelFacts) -> str:
    numbers = f"{count(facts.parameters):>11}{count(facts.macs_per_date):>11}{count(facts.radius):>7}"
    return f"  {facts.name:<16}{facts.reads:<7}{numbers}  {'yes' if facts.streams else 'no'}"


def _brief(description: str) -> str:
    """Without article and brackets: the details name the authors."""
    words = re.sub(r" \([^)]*\)", "", description)
    words = re.sub("^(the|a) ", "", words, flags=re.IGNORECASE)
    return words[:1].upper() + words[1:]


def _parts(facts: ModelFacts) -> list[str]:
    name = max(len(part.name) for part in facts.parts) + 2
    kind = max(len(part.kind) for part in facts.parts) + 2
    lines = [f"  {'layer':<{name}}{'what':<{kind}}{'in':>6}   {'out':<6}{'parameters':>12}{'MACs/date':>12}"]
    for part in facts.parts:
        ways = f"{count(part.inputs):>6} \u2192 {count(part.outputs):<6}" if part.inputs else " " * 15
        lines.append(f"  {part.name:<{name}}{part.kind:<{kind}}{ways}{count(part.parameters):>12}{_macs(part, facts)}")
    rule = "\u2500" * (name + kind + 15 + 24)
    total = f"  {'in all':<{name + kind + 15}}{count(facts.parameters):>12}{count(facts.macs_per_date):>12}"
    once = f"   + {count(facts.macs_once)} once" if facts.macs_once else ""
    return [*lines, f"  {rule}", f"{total}{once}"]


def _macs(part: PartFacts, facts: ModelFacts) -> str:
    if part.once:
        return f"{count(part.macs):>12} once"
    return f"{count(part.macs / facts.shape.length) if part.macs else DASH:>12}"


def _radius(facts: ModelFacts) -> str:
    dates = plural(facts.shape.length, "date")
    if facts.radius is None:
        return "none: one class for a whole clip, and no map"
    if facts.reads == "series":
        return "0 pixels: every pixel is a series of its own"
    return f"{plural(facts.radius, 'pixel')} after {dates}: so far around a pixel its class depends on the images"


def _state(facts: ModelFacts) -> str:
    if facts.state_bytes is None:
        return "none: a new date needs the whole season again"
    tile = size_words(facts.state_bytes * TILE**2)
    return (
        f"{plural(facts.state_bytes, 'byte')} a pixel in float32: {size_words(facts.state_bytes * 1_000_000)} for "
        f"1,000 \u00d7 1,000 pixels, {tile} for a Sentinel-2 tile of {TILE:,} \u00d7 {TILE:,}"
    )


def _command(facts: ModelFacts) -> str:
    """The command that trains this very model; settings that are as they would be anyway are left out."""
    from cropstar.config import ModelConfig

    config = facts.config
    words = ["cropstar", "train", "--model", config["name"]]
    if not facts.parts:
        return shlex.join(words)
    words += ["--layers", str(config["layers"])]
    usual = ModelConfig.model_validate({"name": config["name"]}).model_dump(mode="json")
    if config["hidden"] != usual["hidden"]:
        words += ["--hidden", str(config["hidden"])]
    for key, value in config.items():
        if key not in PLAIN and value != usual[key]:
            words += ["--set", f"model.{key}={_yaml(value)}"]
    return shlex.join(words)


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _narrowed(text: str) -> list[str]:
    """A docstring at our width: running text and lists are set anew, equations are left as they stand."""
    lines: list[str] = []
    for paragraph in text.split("\n\n"):
        if paragraph.startswith(" "):
            lines += paragraph.split("\n")
        else:
            for item in re.split(r"\n(?=- )", paragraph):
                after = "  " if item.startswith("- ") else ""
                lines += textwrap.wrap(" ".join(item.split()), WIDTH - 2, subsequent_indent=after)
        lines.append("")
    return lines[:-1]


def _fact(label: str, text: str) -> list[str]:
    """A labelled line, broken at spaces where it is too long."""
    wrapped = textwrap.wrap(text, WIDTH - LABEL - 2, break_long_words=False, break_on_hyphens=False)
    return [f"  {label if not number else '':<{LABEL}}{line}" for number, line in enumerate(wrapped)]


def _joined(lines: list[str]) -> str:
    return "\n".join(line.rstrip() for line in lines)
