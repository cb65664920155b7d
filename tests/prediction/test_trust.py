"""What is said of a map beside its classes: figures for its day, other years, regions and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cropstar.geo.calendar import Season, season_days, to_days
from cropstar.geo.grid import Grid, degrees_of
from cropstar.prediction.job import predict
from cropstar.prediction.request import MapOptions, MapRequest
from cropstar.prediction.trust import RECORD, judge_trust, likely_reason, measure_bands, value_caveats
from cropstar.reports.record import TestRecord, wilson_interval
from cropstar.sources.stack import StackSeries
from cropstar.store.classes import ClassTable
from cropstar.store.fingerprint import Normalisation
from cropstar.store.model_file import ModelCard, read_model, write_model
from tests.examples import UTM
from tests.prediction.making import untrained

BANDS = ("B02", "B03", "B04", "B08", "B11")
LEARNT = np.array([0.05, 0.08, 0.07, 0.30, 0.20])
SPREAD = np.array([0.03, 0.03, 0.04, 0.08, 0.06])


def a_record(**changes: Any) -> TestRecord:
    given: dict[str, Any] = {
        "store": "demo", "years": (2023,), "season": (67, 231), "parcels": 79, "unit": "pixel", "accuracy": 0.9,
        "macro_f1": 0.88, "parcel_accuracy": 0.95, "parcel_macro_f1": 0.94, "classes": 10, "absent": (),
        "days": (0, 100, 231), "accuracy_by_day": (0.1, 0.5, 0.9), "macro_f1_by_day": (0.05, 0.4, 0.88),
    }  # fmt: skip
    return TestRecord(**{**given, **changes})


@pytest.fixture
def mapped(small_scene: Path, tmp_path: Path) -> tuple[ModelCard, Path, StackSeries]:
    """A card whose statistics and record are those of the small scene."""
    raster = small_scene / "tile.tif"
    model = untrained(tmp_path / "model", raster)
    series = StackSeries(raster)
    card, weights, _ = read_model(model)
    found = measure_bands(card, series)
    assert found is not None
    mean, spread = found
    bounds = degrees_of(series.grid)
    record = a_record(years=(series.dates[0].year,), bounds=bounds)
    card = replace(card, normalisation=Normalisation(tuple(mean), tuple(spread)), provenance={RECORD: record.to_json()})
    write_model(model, card, weights)
    return card, model, series


def test_the_figures_are_those_of_the_day() -> None:
    record = a_record()
    assert record.figures_by(99) == (0.1, 0.05)
    assert record.figures_by(100) == (0.5, 0.4)
    assert record.figures_by(-1) is None
    early = record.headline(120)
    assert "overall accuracy 0.500, macro-F1 0.400 by pixel for maps that end by day 120" in early
    assert early.endswith("(at its end 0.900)")
    assert "for maps that end" not in record.headline(231)
    assert "over 9 of 10 classes" in a_record(classes=9, absent=("oats",)).headline()
    assert "; overall accuracy 0.950 (0.88 to 0.98 at 95 % confidence), macro-F1 0.940 by parcel" in record.headline()
    assert "confidence" not in a_record(too_optimistic=True).headline()  # pixels of the same parcels: no interval holds
    assert "each by a model of 5 that never saw it" in a_record(out_of_fold=5).headline()


def test_a_few_parcels_have_no_figure_of_three_digits() -> None:
    few = {"parcels": 9, "parcel_accuracy": 1.0, "parcel_macro_f1": 1.0, "accuracy": 1.0, "macro_f1": 1.0}
    record = a_record(**few, classes=2, absent=("oats", "peas", "beet", "grass"), accuracy_by_day=(0.1, 0.5, 1.0))
    said = "9 of 9 right over 2 of 6 classes, an accuracy of 0.70 to 1.00 at 95 % confidence"
    assert record.headline() == f"on 9 parcels that training never saw, too few to rely on: {said}"
    for day in (None, 5, 120, 231):
        assert "1.000" not in record.headline(day)
    assert "50% of their pixels right over 2 of 6 classes for maps" in record.headline(120)
    assert "an accuracy of 0.00 to 0.30" in a_record(**{**few, "parcel_accuracy": 0.0}).headline()
    assert wilson_interval(80, 100) == pytest.approx((0.7112, 0.8666), abs=1e-4)  # as statsmodels has it


def test_a_day_that_was_not_tested_has_no_figure_of_its_own() -> None:
    assert "no figure for maps that end by day -3 of the season (at its end 0.900)" in a_record().headline(-3)
    whole = a_record(days=(), accuracy_by_day=(), macro_f1_by_day=())
    assert "at the end of the season, not by its day 100: overall accuracy 0.900" in whole.headline(100)
    assert "at the end of the season" not in whole.headline(220)


def test_a_record_survives_json_and_strangers_are_not_believed() -> None:
    record = a_record(bounds=(7.0, 47.0, 8.0, 48.0))
    assert TestRecord.from_json(record.to_json()) == record
    for damage in ({"days": [1]}, {"years": ["x"]}, {"accuracy": "high"}, {"more": 1}):
        assert TestRecord.from_json({**record.to_json(), **damage}) is None
    assert TestRecord.from_json({}) is None


def test_nothing_to_say_of_the_same_images(mapped: tuple[ModelCard, Path, StackSeries]) -> None:
    card, model, series = mapped
    trust = judge_trust(card, model, series.dates, series)
    assert trust.caveats == ()
    assert trust.accuracy.startswith("on 79 parcels that training never saw: ")
    assert trust.note == "every pixel is given one of 4 classes, woods and houses too"
    assert trust.tags()["CROPSTAR_NOTE"] == trust.note
    assert judge_trust(card, model, series.dates, series, MapOptions(min_confidence=0.5)).note == ""
    later = [day + timedelta(days=365) for day in series.dates]
    assert "never saw, not valid for these images: " in judge_trust(card, model, later, series).accuracy


def test_another_year_region_and_too_few_dates(mapped: tuple[ModelCard, Path, StackSeries]) -> None:
    card, model, series = mapped
    later = [day + timedelta(days=365) for day in series.dates]
    (caveat,) = judge_trust(card, model, later, series).caveats
    assert f"these images are of {later[0].year}, the test was of {series.dates[0].year}" in caveat
    far = a_record(years=(series.dates[0].year,), bounds=(20.0, 40.0, 21.0, 41.0), absent=("oats",))
    moved = replace(card, provenance={RECORD: far.to_json()})
    region, absent = judge_trust(moved, model, series.dates, series).caveats
    assert "km from the parcels of the test" in region
    assert "no test parcel of oats" in absent
    few = replace(card, shape={**card.shape, "length": 40})
    assert any("where training had up to 40" in each for each in judge_trust(few, model, series.dates, series).caveats)


def test_the_accuracy_of_a_single_class_means_nothing(mapped: tuple[ModelCard, Path, StackSeries]) -> None:
    card, model, series = mapped
    one = replace(card, fingerprint=replace(card.fingerprint, classes=ClassTable(list(card.fingerprint.classes)[:1])))
    (caveat,) = judge_trust(one, model, series.dates, series).caveats
    assert caveat.startswith("the model knows one class: all becomes ")


def test_unknown_is_not_promised_for_other_dates_and_years(mapped: tuple[ModelCard, Path, StackSeries]) -> None:
    card, model, series = mapped
    season = card.fingerprint.season
    days = season_days(to_days(series.dates)[None], season)[0].tolist()
    card = replace(card, calibration={"unknown": {"days": days}})

    def said(dates: Sequence[date], unknown: float | None = 0.05) -> list[str]:
        trust = judge_trust(card, model, dates, series, MapOptions(unknown=unknown))
        return [each for each in trust.caveats if "--unknown is not promised here" in each]

    assert said(series.dates) == []
    assert said(series.dates[:4]) == []  # in season, on the dates of the training
    (few,) = said(series.dates[::2])
    assert "dates that training had by then have no image here" in few
    assert said(series.dates[::2], None) == []
    (later,) = said([day + timedelta(days=365) for day in series.dates])
    assert later.endswith("images of another year or region")
    # A model that learnt to do without some dates promises the rate without them, but not for a single date.
    card = replace(card, calibration={"unknown": {"days": days, "hidden": [{"share": 0.25}, {"share": 0.5}]}})
    assert said(series.dates[::2]) == []
    assert "5 of 6 dates" in said(series.dates[-1:])[0]


def test_older_models_say_that_nothing_is_known(mapped: tuple[ModelCard, Path, StackSeries]) -> None:
    card, model, series = mapped
    trust = judge_trust(replace(card, provenance={}), model, series.dates, series)
    assert trust.accuracy == ""
    assert "no test figures are known" in trust.caveats[-1]


@pytest.mark.parametrize(
    ("mean", "word"),
    [
        (LEARNT + 0.1, "+0.1"),
        (LEARNT - 0.1, "-0.1"),
        (LEARNT * 10_000, "another scale"),
        (LEARNT / 10_000, "another scale"),
        (LEARNT + np.array([0.07, 0.05, 0.04, 0.0, -0.01]), "Level-1C"),
        (LEARNT + np.array([0.0, 0.0, 0.0, -0.2, 0.3]), "another sensor"),
    ],
)
def test_the_likely_reason(mean: np.ndarray[Any, Any], word: str) -> None:
    assert word in likely_reason(BANDS, mean, LEARNT, SPREAD)


def test_shifted_reflectance_is_a_warning_that_names_bands(mapped: tuple[ModelCard, Path, StackSeries]) -> None:
    card, _, series = mapped
    assert value_caveats(card, series) == []
    series.offset += 0.1  # as products since 2022 have it where -1000 is not applied
    (caveat,) = value_caveats(card, series)
    assert "offset of -1000 was not applied" in caveat
    assert any(band in caveat for band in card.fingerprint.bands)


def test_the_map_carries_what_is_said(mapped: tuple[ModelCard, Path, StackSeries], tmp_path: Path) -> None:
    import rasterio

    card, model, series = mapped
    write_model(model, replace(card, provenance={RECORD: a_record(years=(1999,)).to_json()}), read_model(model)[1])
    path = Path(series.files[0])
    predict(path, tmp_path / "map.tif", MapRequest(model=model, device="cpu", page=True))
    with rasterio.open(tmp_path / "map.tif") as dataset:
        tags = dataset.tags()
    assert "the test was of 1999" in tags["CROPSTAR_CAVEATS"]
    assert tags["CROPSTAR_ACCURACY"].startswith("on 79 parcels")
    assert "the test was of 1999" in (tmp_path / "map.html").read_text()


def test_degrees_of_a_grid() -> None:
    grid = Grid(UTM, (10.0, 0.0, 600_000.0, 0.0, -10.0, 5_400_000.0), 100, 100)
    west, south, east, north = degrees_of(grid) or (0, 0, 0, 0)
    assert 10 < west < east < 11
    assert 48 < south < north < 49
    assert Season.of([date(2023, 3, 1), date(2023, 9, 1)]).length == 184
