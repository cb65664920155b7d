"""What was judged, in words: parcels, pixels or dates, and what training knew of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cropstar.reports.wording import count, in_hundred, plural

MANY = {"parcel": "parcels", "pixel": "pixels", "date": "dates"}


@dataclass(frozen=True)
class Table:
    """The figures of one way of counting."""

    unit: str  # parcel, pixel or date
    figures: dict[str, Any]
    main: bool  # what the model was trained to get right, or what a reader of a map looks at

    @property
    def many(self) -> str:
        return MANY[self.unit]


@dataclass(frozen=True)
class Words:
    """The sentences of a report that depend on what was judged."""

    lead: str
    dealt: str  # how the parts came about
    shown: str  # what was looked at, and when
    counted: str  # above the table of parts
    test: str  # "test parcels"
    validation: str
    sample: str  # "pixels": what has a confidence of its own
    limits: str = "The figures hold for this region and season. Another region or another year may be harder."


def unit_of(test: dict[str, Any]) -> str:
    """What the table beside that of parcels counts; results of earlier versions do not say it."""
    unit = test.get("unit")
    if unit in MANY:
        return str(unit)
    same = test["pixel"]["confusion"] == test["parcel"]["confusion"]
    return "parcel" if same else "pixel"  # of series each is a parcel: there was one table, twice


def tables(test: dict[str, Any], *, split_by_pixel: bool = False) -> list[Table]:
    """The main one first. One table where parcels are all there is."""
    unit = unit_of(test)
    if unit == "parcel":
        return [Table("parcel", test["parcel"], main=True)]
    finer_first = split_by_pixel or unit == "date"
    both = [
        Table("parcel", test["parcel"], main=not finer_first),
        Table(unit, test["pixel"], main=finer_first),
    ]
    return both[::-1] if finer_first else both


def words_of(data: dict[str, Any]) -> Words:
    """For the result of a training, or for that of an evaluation, which says what it judged."""
    split, test = data["split"], data["test"]
    by_pixel = split["by"] == "pixel"
    main = tables(test, split_by_pixel=by_pixel)[0]
    share = in_hundred(main.figures["overall_accuracy"])
    many = "pixels" if by_pixel else "parcels"
    sample = MANY[unit_of(test)]
    if data.get("judged"):
        return _of_evaluation(data, main, share, sample)
    epochs = len(data["history"])
    best = data["best_epoch"]
    chosen = f" Epoch {best} of {epochs} was chosen on the validation {many}." if best and epochs else ""
    return Words(
        lead=_lead(main, share, by_pixel=by_pixel),
        dealt=_dealt(split),
        shown=f"The model learned from the training {many}.{chosen} "
        f"The test {many} were looked at once, at the end, and decided nothing.",
        counted=_counted(split),
        test=f"test {many}",
        validation=f"validation {many}",
        sample=sample,
    )


def _lead(main: Table, share: str, *, by_pixel: bool) -> str:
    if by_pixel:
        return (
            f"Of the {main.many} that were kept for the test, {share} were given the right crop. They lie in fields "
            "that training has seen, which flatters: fields that are new to the model are harder."
        )
    if main.unit == "date":
        return f"Of the dates of parcels that training never saw, {share} were given the right class."
    return f"Of the parcels that training never saw, {share} were given the right crop."


def _dealt(split: dict[str, Any]) -> str:
    by = split["by"]
    if by == "pixel":
        return (
            "Before training, every pixel went to one of three parts by lot. Pixels of one field are nearly copies of "
            "each other and stand in all three: the figures tell how well known fields are found again, and not how "
            "well new ones are."
        )
    wholes = {"block": "whole blocks of ground", "scene": "whole scenes", "group": "whole groups of parcels"}
    if by in wholes:
        return (
            f"Before training, {wholes[by]} went to one of three parts and to that part alone, so no field is both "
            "learned from and tested on."
        )
    own = f" by the data set\u2019s own split \u2018{split['name']}\u2019" if by == "name" else ""
    return (
        f"Before training, every parcel went to one of three parts and to that part alone{own}, so no field is both "
        "learned from and tested on."
    )


def _counted(split: dict[str, Any]) -> str:
    by = split["by"]
    if by == "pixel":
        return "Divided by pixel: a parcel counts in every part that has a pixel of it, which most of them do."
    if by == "name":
        return f"Divided by the data set\u2019s own split \u2018{split['name']}\u2019."
    return "Divided by parcel, class by class." if by == "parcel" else f"Divided by {by}."


def _of_evaluation(data: dict[str, Any], main: Table, share: str, sample: str) -> Words:
    judged = data["judged"]
    which = "all parcels" if judged["part"] == "all" else f"the {judged['part']} part"
    seen = judged["seen"]
    flatters = f" {count(seen)} of them were in its training or validation, which flatters." if seen else ""
    what = f"{plural(judged['parcels'], 'parcel')} ({which} of {judged['store']})"
    of_what = what if main.unit == "parcel" else f"the {main.many} of {what}"
    return Words(
        lead=f"Of {of_what}, {share} were given the right crop.{flatters}",
        dealt=_dealt(data["split"]),
        shown=f"The finished model was judged again, on {what}.{flatters}",
        counted=f"As in the training. {_counted(data['split'])}",
        test="judged parcels",
        validation="validation parcels",
        sample=sample,
    )
