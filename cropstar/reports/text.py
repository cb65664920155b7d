"""Text for the terminal: `cropstar inspect` and `cropstar models`, on one screen each."""

from __future__ import annotations

import math
import re
import shlex
import textwrap
from collections.abc import Collection, Iterator, Sequence
from datetime import date, timedelta
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cropstar.config import FITTED
from cropstar.reports.wording import DASH, ELLIPSIS, areas, count, cut, percent, pixel_side, plural, printable, score
from cropstar.store.classes import rgb

if TYPE_CHECKING:
    from cropstar.models.description import ModelFacts, PartFacts


MONTH_NAMES = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
LINE_WIDTH = 100  # of a line
LABEL_WIDTH = 12
MANY_DATES = 45  # above, a row is a month
MANY_SCENES = 6


def format_contents(facts: dict[str, Any]) -> str:
    """The facts for people; colours are ANSI codes, which a terminal shows and a pipe drops."""
    if facts["kind"] == "raster":
        from cropstar.reports.contents import raster_lines

        lines = raster_lines(facts)
    elif facts["kind"] == "season":
        lines = _season_lines(facts)
    else:
        lines = _model_lines(facts) if facts["kind"] in ("model", "run") else _tile_set_lines(facts)
    return "\n".join(line.rstrip() for line in lines)


def season_words(season: dict[str, Any]) -> str:
    """'8 March to 25 October', or the whole year."""
    if int(season["length"]) >= 365:
        return "the whole year"
    first = date(2021, 1, 1) + timedelta(days=int(season["start"]) - 1)  # no 29 February in this year and the next
    last = first + timedelta(days=int(season["length"]))
    if first == last:
        return f"{first.day} {MONTH_NAMES[first.month - 1]} only"
    return f"{first.day} {MONTH_NAMES[first.month - 1]} to {last.day} {MONTH_NAMES[last.month - 1]}"


def size_words(size: int) -> str:
    for power, unit in ((9, "GB"), (6, "MB"), (3, "kB")):
        if size >= 10**power:
            return f"{size / 10**power:.1f} {unit}"
    return f"{size} bytes"


def _tile_set_lines(facts: dict[str, Any]) -> list[str]:
    series = facts["layout"] == "series"
    what = "one tile" if facts["kind"] == "tile" else plural(facts["tiles"], "tile")
    lines = _title(facts, f"a {facts['kind']}, {facts['layout']} layout")
    lines += _fact("holds", f"{what}, {size_words(facts['bytes'])} on disk")
    for number, scene in enumerate(facts["scenes"][:MANY_SCENES]):
        lines += _fact("" if number else "scenes" if len(facts["scenes"]) > 1 else "scene", _scene(scene))
    if len(facts["scenes"]) > MANY_SCENES:
        lines += _fact("", f"and {len(facts['scenes']) - MANY_SCENES} more (--json lists them all)")
    crs = sorted({scene["crs"] for scene in facts["scenes"] if "crs" in scene})
    if crs:
        lines += _fact("grid", f"{_pixel(facts)}, {'; '.join(crs)}")
    lines += _band_facts(facts)
    dates = facts["dates"]
    word = "valid" if series else "clear"
    if dates:
        span = f"{dates[0]['date']} to {dates[-1]['date']}, {percent(facts['clear'])} {word}"
        lines += _fact("dates", f"{plural(len(dates), 'date')} from {span}")
    if labelled := sum(row.get("dates", 0) for row in facts["classes"]):
        many = sum(row["dates"] > 0 for row in facts["classes"])
        lines += _fact(
            "labels", f"{plural(labelled, 'date')} of {plural(many, 'class', 'classes')}, one class per date"
        )
    splits = sorted({name for scene in facts["scenes"] for name in scene["provenance"].get("splits", {})})
    if splits:
        lines += _fact("splits", f"{', '.join(splits)} (cropstar train --split NAME)")
    lines += ["", *_date_table(dates, word), "", *class_lines(facts["classes"])]
    return lines


def _scene(scene: dict[str, Any]) -> str:
    provenance = scene["provenance"]
    parts = [plural(scene["tiles"], "tile")]
    if "shape" in scene:
        size = f"{scene['shape'][1]:,} \u00d7 {scene['shape'][0]:,} pixels"
        parts.append(f"{plural(scene['images'], 'image')} of {size}" if "images" in scene else size)
    parts.append(plural(len(scene["dates"]), "date"))
    if "source" in provenance:
        parts.append(
            f"from {provenance['source']}" + (f" {Path(str(provenance['file'])).name}" if "file" in provenance else "")
        )
    if provenance.get("products"):
        parts.append(plural(len(provenance["products"]), "product"))
    return f"{scene['name']} ({scene['recipe'][:8]}): {', '.join(parts)}"


def _date_table(dates: list[dict[str, Any]], word: str) -> list[str]:
    """A little bar per date, or a month where the dates are many, in up to three columns."""
    rows = [(row["date"], row["clear"]) for row in dates]
    if len(rows) > MANY_DATES:
        months: dict[str, list[dict[str, Any]]] = {}
        for row in dates:
            months.setdefault(row["date"][:7], []).append(row)
        rows = [
            (month, sum(row["clear"] * row["observations"] for row in of) / sum(row["observations"] for row in of))
            for month, of in months.items()
        ]
    cells = [f"{day}  {bar(share)} {_whole_percent(share):>4} %" for day, share in rows]
    columns = 1 if len(cells) <= 8 else 2 if len(cells) <= 16 else 3
    height = math.ceil(len(cells) / columns)
    head = f"{'month' if len(rows) != len(dates) else 'date'}, {word} share"
    lines = [f"  {head}"]
    return lines + ["  " + "    ".join(cells[place::height]) for place in range(height)]


def _model_lines(facts: dict[str, Any]) -> list[str]:
    finished, provenance = "test" in facts, facts["provenance"]
    lines = _title(facts, "a model file" if facts["kind"] == "model" else "a run" if finished else "an unfinished run")
    lines += _settings_facts(facts)
    lines += _fact("season", f"{season_words(facts['season'])}, up to {facts['shape'].get('length', DASH)} dates")
    lines += _fact("grid", _pixel(facts)) + _band_facts(facts)
    scenes = ", ".join(f"{name} ({str(recipe)[:8]})" for name, recipe in provenance.get("scenes", {}).items())
    if scenes:
        lines += _fact("trained on", scenes)
    if "refit" in provenance:
        lines += _fact("refit", "on training and validation; the figures are of the model before it")
    if fields := _field_words(facts):
        lines += _fact("fields", fields)
    elsewhere = ("scenes", "refit", "class_fields", "out_of_fold", "record")
    others = [f"{name} {value}" for name, value in sorted(provenance.items()) if name not in elsewhere]
    lines += _fact("made by", f"cropstar, {', '.join(others)}" if others else "cropstar")
    lines += _fact("digest", f"{facts['digest']} (verified)")
    lines += _test_lines(facts["test"], provenance) if finished else []
    lines += _normalisation_lines(facts)
    coarser = " and ".join(str(size) for size in level_sizes(facts["classes"])[:-1])
    levels = f", {coarser} on coarser levels" if coarser else ""
    lines += ["", f"  {plural(len(facts['classes']), 'class', 'classes')}{levels}"]
    return lines + class_columns(facts["classes"])


def _settings_facts(facts: dict[str, Any]) -> list[str]:
    """The name and size of the model, and the settings of each of its members."""
    model = facts["model"]
    head = str(model.get("name", DASH))
    if "members" in model:
        head = f"ensemble of {head}"
    elif head not in FITTED:  # which have no layers
        head += f", {plural(int(model.get('layers', 0)), 'layer')} of {model.get('hidden', DASH)}"
    lines = _fact("model", f"{head} \u00b7 {facts['parameters']:,} parameters \u00b7 {size_words(facts['bytes'])}")
    for number, own in enumerate(members := model.get("members", [model]), 1):
        rest = {key: own[key] for key in own if len(members) > 1 or key not in ("name", "layers", "hidden")}
        words = [f"{name.replace('_', ' ')} {DASH if value is None else value}" for name, value in sorted(rest.items())]
        lines += _fact("settings" if len(members) == 1 else f"member {number}", " \u00b7 ".join(words) or DASH)
    return lines


def _test_lines(test: dict[str, Any], provenance: dict[str, Any]) -> list[str]:
    before = ", of the model before the refit" if "refit" in provenance else ""
    unseen = "out of fold, on all" if provenance.get("out_of_fold") else "test, on"
    never = ", each by a model that never saw it" if provenance.get("out_of_fold") else " that training never saw"
    lines = ["", f"  {unseen} {plural(test['parcels'], 'parcel')}{never}{before}"]
    for level in (level for level in ("pixel", "date", "parcel") if level in test):
        accuracy, f1 = percent(test[level]["overall_accuracy"]), score(test[level]["macro_f1"])
        lines.append(f"    by {level:<7} overall accuracy {accuracy:>7}   macro-F1 {f1}")
    return lines


def _normalisation_lines(facts: dict[str, Any]) -> list[str]:
    lines = ["", f"  {'band':<8}{'mean':>9}{'deviation':>11}   normalisation, in reflectance"]
    norm = facts["normalisation"]
    rows = list(zip(facts["bands"], norm["mean"], norm["deviation"], strict=False))
    largest = max((mean for _, mean, _ in rows), default=0.0)
    for band, mean, deviation in rows:
        blocks = bar(mean / largest, ground=" ") if largest > 0 else ""
        lines.append(f"  {printable(band):<8}{mean:>9.4f}{deviation:>11.4f}   {blocks}")
    return lines


def _field_words(facts: dict[str, Any]) -> str:
    """How many fields the training had, and of which classes none was tested."""
    provenance = facts["provenance"]
    counts = provenance.get("class_fields") or {}
    if not counts:
        return ""
    if provenance.get("out_of_fold"):
        return f"{sum(counts['train']):,}, all evaluated out of fold, in {provenance['out_of_fold']} folds"
    words = ", ".join(f"{sum(own):,} for {part}" for part, own in counts.items())
    columns = zip(facts["classes"], *counts.values(), strict=False)
    untested = [
        str(row["name"])
        for number, (row, *own) in enumerate(columns)
        if any(own) and not (counts.get("test") or [1] * (number + 1))[number]
    ]
    return words + (f"; none for the test of {', '.join(untested)}" if untested else "")


def _season_lines(facts: dict[str, Any]) -> list[str]:
    dates, (height, width) = facts["dates"], facts["shape"]
    lines = _title(facts, "the state of a season")
    lines += _fact("holds", f"{_layers(facts['layers'])}, {size_words(facts['bytes'])} on disk")
    lines += _fact("dates", f"{plural(len(dates), 'date')} from {dates[0]} to {dates[-1]}: {', '.join(dates)}")
    lines += _fact(
        "scene", f"{width:,} \u00d7 {height:,} pixels, {facts['bytes_per_pixel']:,} bytes each, {facts['precision']}"
    )
    lines += _fact("grid", f"{_pixel(facts)}, {facts['crs']}") + _band_facts(facts)
    lines += _fact("season", season_words(facts["season"]))
    gone = "" if facts["model_is_there"] else " (missing: cropstar update --model PATH)"
    lines += _fact("model", f"{facts['model_path']}{gone}")
    lines += _fact("digest", facts["model"]) + _fact("map", facts["map"])
    if facts["given"]:
        lines += _fact("read with", ", ".join(f"--{name} {value}" for name, value in sorted(facts["given"].items())))
    lines += _fact("continue", f"cropstar update {facts['path']} NEW")
    return [*lines, "", f"  {plural(len(facts['classes']), 'class', 'classes')}", *class_columns(facts["classes"])]


def _layers(layers: list[list[int]]) -> str:
    """'4 layers of 32', '2 layers of 16 + 16' where a layer keeps two states, '12 \u00d7 64' where it keeps many."""
    sizes = [" + ".join(_repeated(size, len(list(same))) for size, same in groupby(parts)) for parts in layers]
    if len(set(sizes)) == 1:
        return f"{plural(len(sizes), 'layer')} of {sizes[0]}"
    return f"{plural(len(sizes), 'layer')} of {', '.join(sizes)}"


def _repeated(size: int, times: int) -> str:
    return f"{times} \u00d7 {size}" if times > 2 else " + ".join([str(size)] * times)


def _title(facts: dict[str, Any], what: str) -> list[str]:
    path = Path(facts["path"])
    name = path.resolve().name if facts["kind"] in ("store", "run") else path.name
    return [f"\x1b[1m{printable(name)}\x1b[0m  {what}", ""]


def _fact(label: str, text: str, label_width: int = LABEL_WIDTH) -> list[str]:
    """A labelled line, broken at spaces where it is too long."""
    room = LINE_WIDTH - label_width - 2
    wrapped = textwrap.wrap(printable(text), room, break_long_words=False, break_on_hyphens=False) or [""]
    return [f"  {label if not number else '':<{label_width}}{line}" for number, line in enumerate(wrapped)]


def _band_facts(facts: dict[str, Any]) -> list[str]:
    if facts.get("sensors"):
        lines = []
        for sensor in facts["sensors"]:
            unit = f"value = {_physical(sensor['scale'], sensor['offset'])}"
            lines += _fact("sensor", f"{sensor['name']}: {' '.join(sensor['bands'])}; {unit}")
        return lines + (_fact("context", " ".join(facts["context"])) if facts.get("context") else [])
    return _fact("bands", f"{len(facts['bands'])}: {' '.join(facts['bands'])}") + _fact(
        "scale", f"reflectance = {_physical(facts['scale'], facts['offset'])}"
    )


def _physical(scale: float, offset: float) -> str:
    shift = f" {'+' if offset > 0 else '-'} {abs(offset):g}" if offset else ""
    return f"stored value \u00d7 {scale:g}{shift}"


def _pixel(facts: dict[str, Any]) -> str:
    if not facts["resolution"]:
        return "no pixels, series of samples"
    return f"pixels of {pixel_side(facts['resolution'])}"


def _whole_percent(share: float) -> str:
    """Only all of it reads 100, only nothing at all reads 0."""
    return str(round(100 * share)) if share in (0.0, 1.0) else str(min(max(round(100 * share), 1), 99))


# --- models

MODEL_LABEL = 10  # of a fact
SENTINEL_TILE = 10_980  # pixels a side of a Sentinel-2 tile at 10 m
MODELS_HEAD = f"  {'model':<16}{'reads':<7}{'parameters':>11}{'MACs':>11}{'radius':>7}  streams "
MODELS_ROOM = LINE_WIDTH - len(MODELS_HEAD)
PLAIN_SETTINGS = {"name", "layers", "hidden"}  # settings that have an option of their own


def format_models(facts: Sequence[ModelFacts], left_out: Collection[str]) -> str:
    """A line per model; the models of one cell stand together and share the words about them."""
    families: dict[str, list[ModelFacts]] = {}
    for model in sorted(facts, key=lambda model: (model.reads == "images", model.name)):
        families.setdefault(model.description, []).append(model)
    lines = [f"\x1b[1m{plural(len(facts), 'model')}\x1b[0m  {_input_words(facts)}", "", f"{MODELS_HEAD}what it is"]
    for description, family in families.items():
        rows = [_model_row(model) for model in family]
        words = textwrap.wrap(_brief(description), MODELS_ROOM, max_lines=2, placeholder=ELLIPSIS)
        rows += [""] * (len(words) - len(rows))
        words += [""] * (len(rows) - len(words))
        lines += [f"{row:<{len(MODELS_HEAD)}}{text}" for row, text in zip(rows, words, strict=True)]
    if left_out:
        why = "too large, or without such a setting: 'cropstar models NAME' with the same options says why"
        lines += ["", *_model_fact("left out", f"{', '.join(left_out)} ({why})")]
    dates = plural(facts[0].shape.length, "date")
    lines += [
        "",
        *_model_fact("MACs", "multiply-accumulates per pixel and date, without the head, which runs once per season"),
    ]
    lines += _model_fact("radius", f"of the receptive field in pixels, after {dates}")
    lines += _model_fact("streams", "a new date needs only its image and the stored state of the map")
    lines += _model_fact("compose", "bi before a name is bidirectional, + stacks cells: biconvgru, lstm_forget+star")
    lines += _model_fact("auto", "cropstar train --model auto compares several by cross-validation and trains the best")
    lines += _model_fact("details", "cropstar models convstar --layers 4")
    return _joined(lines)


def format_model(facts: ModelFacts) -> str:
    """Layer by layer, then the sums, the settings and the equations."""
    streams = "streams" if facts.streams else "does not stream"
    size = "grown from the data" if facts.parameters is None else plural(facts.parameters, "parameter")
    lines = [f"\x1b[1m{facts.name}\x1b[0m  {size} \u00b7 reads {facts.reads} \u00b7 {streams}", ""]
    if facts.parts:
        lines += [
            *_model_fact("for", f"{_input_words([facts])}; day encoding {facts.config['day_encoding']}"),
            "",
            *_parts(facts),
            "",
        ]
        sums = f"{count(facts.macs_per_season)} multiply-accumulates per pixel and season"
        once = f" + {count(facts.macs_once)} once" if facts.macs_once else ""
        parts = f"{facts.shape.length} \u00d7 {count(facts.macs_per_date)}{once}"
        lines += _model_fact("MACs", f"{sums} ({parts})")
    lines += _model_fact("radius", _radius_words(facts)) + _model_fact("state", _state_words(facts))
    for number, option in enumerate(facts.options):
        value = "null" if option.value is None else _yaml(option.value)
        lines += _model_fact("" if number else "settings", f"model.{option.key} {value}: {option.meaning}")
    for text in facts.documentation:
        lines += ["", *(f"  {line}" for line in _narrowed(text))]
    if facts.radius is None:
        return _joined(
            [*lines, "", *_model_fact("train it", "from Python only: a store has pixels and parcels, no clips")]
        )
    return _joined([*lines, "", f"  {'train it':<{MODEL_LABEL}}{_command(facts)}"])  # in one piece, to be copied


def _input_words(facts: Sequence[ModelFacts]) -> str:
    """The input and the widths that the numbers are for."""
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


def _model_row(facts: ModelFacts) -> str:
    numbers = f"{count(facts.parameters):>11}{count(facts.macs_per_date):>11}{count(facts.radius):>7}"
    return f"  {facts.name:<16}{facts.reads:<7}{numbers}  {'yes' if facts.streams else 'no'}"


def _brief(description: str) -> str:
    """A description without article and brackets."""
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


def _radius_words(facts: ModelFacts) -> str:
    dates = plural(facts.shape.length, "date")
    if facts.radius is None:
        return "none: one class for a whole clip, and no map"
    if facts.reads == "series":
        return "0 pixels: each pixel is classified on its own"
    return f"{plural(facts.radius, 'pixel')}: the reach of the receptive field after {dates}"


def _state_words(facts: ModelFacts) -> str:
    if facts.state_bytes is None:
        return "none: a new date needs the whole season again"
    tile = size_words(facts.state_bytes * SENTINEL_TILE**2)
    return (
        f"{plural(facts.state_bytes, 'byte')} per pixel in float32: {size_words(facts.state_bytes * 1_000_000)} for "
        f"1,000 \u00d7 1,000 pixels, {tile} for a Sentinel-2 tile of {SENTINEL_TILE:,} \u00d7 {SENTINEL_TILE:,}"
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
        if key not in PLAIN_SETTINGS and value != usual[key]:
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
                lines += textwrap.wrap(" ".join(item.split()), LINE_WIDTH - 2, subsequent_indent=after)
        lines.append("")
    return lines[:-1]


def _model_fact(label: str, text: str) -> list[str]:
    return _fact(label, text, MODEL_LABEL)


def _joined(lines: list[str]) -> str:
    return "\n".join(line.rstrip() for line in lines)


# --- class tables

WIDEST_NAME = 44
INDENT = 2
BAR = 10
COUNTS = ("parcels", "pixels", "hectares", "samples")

Row = dict[str, Any]


def class_lines(classes: Sequence[Row]) -> list[str]:
    """A line per class; where classes have coarser ones, these stand above them with the sums of what they hold."""
    columns = [name for name in COUNTS if name in classes[0]] if classes else []
    if any(row.get("hectares") is None for row in classes):
        columns = [name for name in columns if name != "hectares"]
    total = _sum("in all", classes, columns)
    lines = list(_ordered(classes, columns))
    # One precision for the column and its sums.
    texts = areas([line["hectares"] for _, line in [*lines, (0, total)]]) if "hectares" in columns else []
    measure = columns[-1] if columns else None
    largest = max((row[measure] for row in classes), default=0) if measure else 0
    width = max((INDENT * depth + len(printable(line["name"])) for depth, line in lines), default=0)
    width = min(width, WIDEST_NAME)

    def cells(place: int, line: Row) -> str:
        return "".join(f"{texts[place] if name == 'hectares' else f'{line[name]:,}':>11}" for name in columns)

    said = [f"  {'class':<{width + 2}}" + "".join(f"{name:>11}" for name in columns)]
    for place, (depth, line) in enumerate(lines):
        indent = " " * (INDENT * depth)
        if "colour" in line:
            blocks = "  " + bar(line[measure] / largest, ground=" ") if measure and largest else ""
            said.append(f"  {indent}{swatch(line)} {fit(line, width - len(indent))}{cells(place, line)}{blocks}")
        else:
            said.append(f"  {indent}{fit(line, width + 2 - len(indent))}{cells(place, line)}")
    if len(classes) > 1 and columns:
        said.append(f"    {'in all':<{width}}{cells(len(lines), total)}")
    return said


def class_columns(classes: Sequence[Row]) -> list[str]:
    """Numbers and names alone, in up to three columns."""
    width = min(max((len(printable(row["name"])) for row in classes), default=0), WIDEST_NAME)
    columns = max(1, min(3, (LINE_WIDTH - 2) // (width + 9), math.ceil(len(classes) / 4)))
    height = math.ceil(len(classes) / columns)
    cells = [f"{row['number']:>3} {swatch(row)} {fit(row, width)}" for row in classes]
    return [" " + "   ".join(cells[row::height]) for row in range(height)]


def level_sizes(classes: Sequence[Row]) -> list[int]:
    """The number of classes on each level, the coarsest first; a flat table has one level."""
    depth = max((len(row.get("lineage", ())) for row in classes), default=0)
    coarser = [{tuple(row["lineage"][: level + 1]) for row in classes if "lineage" in row} for level in range(depth)]
    return [*(len(names) for names in coarser), len(classes)]


def bar(share: float, ground: str = "\u2591") -> str:
    """Ten blocks; only nothing at all is empty."""
    filled = min(BAR, max(math.floor(min(max(share, 0), 1) * BAR + 0.5), 1 if share > 0 else 0))
    return "\u2588" * filled + ground * (BAR - filled)


def swatch(row: Row) -> str:
    red, green, blue = rgb(str(row["colour"]))
    return f"\x1b[38;2;{red};{green};{blue}m\u25a0\x1b[0m"


def fit(row: Row, width: int) -> str:
    """A name filled up or cut to a width."""
    return f"{cut(printable(row['name']), width):<{width}}"


def _ordered(classes: Sequence[Row], columns: list[str]) -> Iterator[tuple[int, Row]]:
    """The lines with how far each is moved in: classes, and coarser ones before the first of theirs."""
    open_groups: list[tuple[str, ...]] = []
    for row in sorted(classes, key=lambda row: tuple(row.get("lineage", ()))):  # stable: else in the table's order
        lineage = tuple(row.get("lineage", ()))
        groups = []
        for depth in range(1, len(lineage) + 1):
            members = [other for other in classes if tuple(other.get("lineage", ()))[:depth] == lineage[:depth]]
            if len(members) == 1 and lineage[depth - 1] == row["name"]:
                continue  # a class that is its only finer class as well
            groups.append(lineage[:depth])
            if lineage[:depth] not in open_groups:
                yield len(groups) - 1, _sum(lineage[depth - 1], members, columns)
        open_groups = groups
        yield len(groups), row


def _sum(name: str, rows: Sequence[Row], columns: list[str]) -> Row:
    return {"name": name, **{column: sum(row[column] for row in rows) for column in columns}}
