"""What `cropstar inspect` prints: the facts of a store, a tile or a model on one screen."""

from __future__ import annotations

import math
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from cropstar.reports.class_lines import WIDTH, bar, class_columns, class_lines, level_sizes
from cropstar.reports.lettering import printable
from cropstar.reports.wording import DASH, percent, plural, score

MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
LABEL = 12
MANY_DATES = 45  # above, a row is a month
MANY_SCENES = 6


def say(facts: dict[str, Any]) -> str:
    """The facts for people; colours are ANSI codes, which a terminal shows and a pipe drops."""
    if facts["kind"] == "season":
        lines = _season_lines(facts)
    else:
        lines = _model_lines(facts) if facts["kind"] in ("model", "run") else _holding_lines(facts)
    return "\n".join(line.rstrip() for line in lines)


def season_words(season: dict[str, Any]) -> str:
    """'8 March to 25 October', or the whole year."""
    if int(season["length"]) >= 365:
        return "the whole year"
    first = date(2021, 1, 1) + timedelta(days=int(season["start"]) - 1)  # no 29 February in this year and the next
    last = first + timedelta(days=int(season["length"]))
    if first == last:
        return f"{first.day} {MONTHS[first.month - 1]} alone"
    return f"{first.day} {MONTHS[first.month - 1]} to {last.day} {MONTHS[last.month - 1]}"


def size_words(size: int) -> str:
    for power, unit in ((9, "GB"), (6, "MB"), (3, "kB")):
        if size >= 10**power:
            return f"{size / 10**power:.1f} {unit}"
    return f"{size} bytes"


def _holding_lines(facts: dict[str, Any]) -> list[str]:
    series = facts["layout"] == "series"
    what = "one tile" if facts["kind"] == "tile" else plural(facts["tiles"], "tile")
    lines = _title(facts, f"a {facts['kind']}, {facts['layout']} layout")
    lines += _fact("holds", f"{what}, {size_words(facts['bytes'])} on disk")
    for number, scene in enumerate(facts["scenes"][:MANY_SCENES]):
        lines += _fact("" if number else "scenes" if len(facts["scenes"]) > 1 else "scene", _scene(scene))
    if len(facts["scenes"]) > MANY_SCENES:
        lines += _fact("", f"and {len(facts['scenes']) - MANY_SCENES} more (--json names them all)")
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
        lines += _fact("labels", f"{plural(labelled, 'date')} of {plural(many, 'class', 'classes')}, a class a date")
    splits = sorted({name for scene in facts["scenes"] for name in scene["provenance"].get("splits", {})})
    if splits:
        lines += _fact("splits", f"{', '.join(splits)} (cropstar train --split NAME)")
    lines += ["", *_date_table(dates, word), "", *class_lines(facts["classes"])]
    return lines


def _scene(scene: dict[str, Any]) -> str:
    said = scene["provenance"]
    parts = [plural(scene["tiles"], "tile")]
    if "shape" in scene:
        size = f"{scene['shape'][1]:,} \u00d7 {scene['shape'][0]:,} pixels"
        parts.append(f"{plural(scene['images'], 'image')} of {size}" if "images" in scene else size)
    parts.append(plural(len(scene["dates"]), "date"))
    if "source" in said:
        parts.append(f"from {said['source']}" + (f" {Path(str(said['file'])).name}" if "file" in said else ""))
    if said.get("products"):
        parts.append(plural(len(said["products"]), "product"))
    return f"{scene['name']} ({scene['recipe'][:8]}): {', '.join(parts)}"


def _date_table(dates: list[dict[str, Any]], word: str) -> list[str]:
    """A little bar a date, or a month where the dates are many, in up to three columns."""
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
    head = f"{'month' if len(rows) != len(dates) else 'date'} \u00d7 {word} share"
    lines = [f"  {head}"]
    return lines + ["  " + "    ".join(cells[place::height]) for place in range(height)]


def _model_lines(facts: dict[str, Any]) -> list[str]:
    model = facts["model"]
    finished = "test" in facts
    lines = _title(facts, "a model file" if facts["kind"] == "model" else "a run" if finished else "an unfinished run")
    head = str(model.get("name", DASH))
    if head != "rf":  # a forest has no layers
        head += f", {plural(int(model.get('layers', 0)), 'layer')} of {model.get('hidden', DASH)}"
    lines += _fact("model", f"{head} \u00b7 {facts['parameters']:,} parameters \u00b7 {size_words(facts['bytes'])}")
    rest = {name: value for name, value in model.items() if name not in ("name", "layers", "hidden")}
    words = [f"{name.replace('_', ' ')} {DASH if value is None else value}" for name, value in sorted(rest.items())]
    lines += _fact("settings", " \u00b7 ".join(words) or DASH)
    lines += _fact("season", f"{season_words(facts['season'])}, up to {facts['shape'].get('length', DASH)} dates")
    lines += _fact("grid", _pixel(facts)) + _band_facts(facts)
    provenance = facts["provenance"]
    scenes = ", ".join(f"{name} ({str(recipe)[:8]})" for name, recipe in provenance.get("scenes", {}).items())
    if scenes:
        lines += _fact("trained on", scenes)
    others = [f"{name} {value}" for name, value in sorted(provenance.items()) if name != "scenes"]
    lines += _fact("made by", f"cropstar, {', '.join(others)}" if others else "cropstar")
    lines += _fact("digest", f"{facts['digest']} (verified)")
    if finished:
        test = facts["test"]
        lines += ["", f"  test, on {plural(test['parcels'], 'parcel')} that training never saw"]
        for level in (level for level in ("pixel", "date", "parcel") if level in test):
            row = test[level]
            accuracy, f1 = percent(row["overall_accuracy"]), score(row["macro_f1"])
            lines.append(f"    by {level:<7} overall accuracy {accuracy:>7}   macro-F1 {f1}")
    lines += ["", f"  {'band':<8}{'mean':>9}{'deviation':>11}   normalisation, in reflectance"]
    norm = facts["normalisation"]
    rows = list(zip(facts["bands"], norm["mean"], norm["deviation"], strict=False))
    largest = max((mean for _, mean, _ in rows), default=0.0)
    for band, mean, deviation in rows:
        blocks = bar(mean / largest, ground=" ") if largest > 0 else ""
        lines.append(f"  {printable(band):<8}{mean:>9.4f}{deviation:>11.4f}   {blocks}")
    coarser = " and ".join(str(size) for size in level_sizes(facts["classes"])[:-1])
    levels = f", {coarser} on coarser levels" if coarser else ""
    lines += ["", f"  {plural(len(facts['classes']), 'class', 'classes')}{levels}"]
    return lines + class_columns(facts["classes"])


def _season_lines(facts: dict[str, Any]) -> list[str]:
    dates, (height, width) = facts["dates"], facts["shape"]
    lines = _title(facts, "the state of a season")
    lines += _fact("holds", f"{_layers(facts['layers'])}, {size_words(facts['bytes'])} on disk")
    lines += _fact("dates", f"{plural(len(dates), 'date')} from {dates[0]} to {dates[-1]}: {', '.join(dates)}")
    lines += _fact("scene", f"{width:,} \u00d7 {height:,} pixels, {facts['bytes_per_pixel']:,} bytes each")
    lines += _fact("grid", f"{_pixel(facts)}, {facts['crs']}") + _band_facts(facts)
    lines += _fact("season", season_words(facts["season"]))
    gone = "" if facts["model_is_there"] else " (not there: cropstar update --model PLACE)"
    lines += _fact("model", f"{facts['model_path']}{gone}")
    lines += _fact("digest", facts["model"]) + _fact("map", facts["map"])
    if facts["given"]:
        lines += _fact("read with", ", ".join(f"--{name} {value}" for name, value in sorted(facts["given"].items())))
    lines += _fact("go on with", f"cropstar update {facts['path']} NEW")
    return [*lines, "", f"  {plural(len(facts['classes']), 'class', 'classes')}", *class_columns(facts["classes"])]


def _layers(layers: list[list[int]]) -> str:
    """'4 layers of 32', or '2 layers of 16 + 16' where a layer keeps two states."""
    sizes = [" + ".join(map(str, parts)) for parts in layers]
    if len(set(sizes)) == 1:
        return f"{plural(len(sizes), 'layer')} of {sizes[0]}"
    return f"{plural(len(sizes), 'layer')} of {', '.join(sizes)}"


def _title(facts: dict[str, Any], what: str) -> list[str]:
    path = Path(facts["path"])
    name = path.resolve().name if facts["kind"] in ("store", "run") else path.name
    return [f"\x1b[1m{printable(name)}\x1b[0m  {what}", ""]


def _fact(label: str, text: str) -> list[str]:
    """A labelled line, broken at spaces where it is too long."""
    room, lines = WIDTH - LABEL - 2, [""]
    for word in printable(text).split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > room:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return [f"  {label if not number else '':<{LABEL}}{line}" for number, line in enumerate(lines)]


def _band_facts(facts: dict[str, Any]) -> list[str]:
    offset = facts["offset"]
    shift = f" {'+' if offset > 0 else '-'} {abs(offset):g}" if offset else ""
    return _fact("bands", f"{len(facts['bands'])}: {' '.join(facts['bands'])}") + _fact(
        "scale", f"reflectance = stored value \u00d7 {facts['scale']:g}{shift}"
    )


def _pixel(facts: dict[str, Any]) -> str:
    if not facts["resolution"]:
        return "no pixels, series of samples"
    unit = "m" if facts["resolution"] >= 0.02 else "degrees"  # no satellite sees centimetres
    return f"pixels of {facts['resolution']:g} {unit}"


def _whole_percent(share: float) -> str:
    """Only all of it reads 100, only nothing at all reads 0."""
    return str(round(100 * share)) if share in (0.0, 1.0) else str(min(max(round(100 * share), 1), 99))
