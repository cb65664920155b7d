"""What data are: compared at each hop, and every difference named."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from cropstar.errors import ArtifactError, MismatchError
from cropstar.geo.calendar import Season
from cropstar.store.classes import ClassTable
from cropstar.store.fingerprint import Fingerprint
from tests.examples import a_fingerprint

PATH = Path("place/file")
GOOD: dict[str, Any] = {"bands": ("B04", "B08"), "resolution": 10.0, "dates": [date(2023, 5, 1)], "path": PATH}


def test_json_and_back() -> None:
    mine = a_fingerprint(season=Season(300, 90))
    assert Fingerprint.from_json(json.loads(mine.dumps()), PATH) == mine


@pytest.mark.parametrize("field", ["bands", "scale", "offset", "resolution", "season", "classes"])
@pytest.mark.parametrize("value", [None, "absent"])
def test_a_spoilt_fingerprint_is_refused(field: str, value: str | None) -> None:
    data = a_fingerprint().to_json()
    if value is None:
        data[field] = None
    else:
        del data[field]
    with pytest.raises(ArtifactError, match="the fingerprint cannot be read in place/file"):
        Fingerprint.from_json(data, PATH)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bands": ("B04",)}, ["bands [B04, B08] against [B04]"]),
        ({"bands": ("B08", "B04")}, ["bands [B04, B08] against [B08, B04]"]),
        ({"scale": 1e-3}, ["scale 0.0001 against 0.001"]),
        ({"offset": -0.1}, ["offset 0.0 against -0.1"]),
        ({"resolution": 20.0}, ["resolution 10.0 against 20.0"]),
        ({"classes": ClassTable.from_names(["maize"])}, ["classes [maize, wheat] against [maize]"]),
        ({"scale": 1.0, "offset": 1.0}, ["scale 0.0001 against 1.0", "offset 0.0 against 1.0"]),
        ({"season": Season(1, 300)}, []),  # another year's data may be added
        ({}, []),
    ],
)
def test_every_difference_is_named(changes: dict[str, Any], words: list[str]) -> None:
    mine, theirs = a_fingerprint(), a_fingerprint(**changes)
    assert mine.differences(theirs) == words
    if not words:
        mine.require_same(theirs, "they differ", PATH, "choose")
        return
    with pytest.raises(MismatchError) as caught:
        mine.require_same(theirs, "they differ", PATH, "choose")
    assert str(caught.value) == f"they differ in place/file: {', '.join(words)}; choose"
    assert caught.value.exit_code == 5


def test_data_that_fit() -> None:
    mine = a_fingerprint()
    mine.require_fits(**GOOD)
    mine.require_fits(**GOOD | {"bands": ("B02", "B08", "B04")})  # more bands, in another order
    mine.require_fits(**GOOD | {"resolution": 10.000001})
    mine.require_fits(**GOOD | {"dates": [date(2019, 5, 1)]})  # another year
    assert mine == a_fingerprint()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bands": ("B08",)}, "bands [B04] are missing (the model needs [B04, B08])"),
        ({"resolution": 20.0}, "pixels of 20 m against the model's 10 m"),
        ({"dates": [date(2023, 5, 1), date(2023, 12, 1)]}, "1 dates outside the season of the training, such as 2023-"),
    ],
)
def test_data_that_do_not_fit(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(MismatchError) as caught:
        a_fingerprint().require_fits(**GOOD | changes)
    assert words in str(caught.value)
    assert "place/file" in str(caught.value)
    assert ("--any-dates" in str(caught.value)) == ("dates" in changes)


def test_all_that_does_not_fit_is_said_at_once() -> None:
    with pytest.raises(MismatchError) as caught:
        a_fingerprint().require_fits(bands=(), resolution=60, dates=[date(2023, 12, 1)], path=PATH)
    assert all(word in str(caught.value) for word in ("B04, B08", "60 m", "2023-12-01"))
    assert "--any-dates" not in str(caught.value)  # it would not help


def test_strange_dates_on_request() -> None:
    winter = GOOD | {"dates": [date(2023, 12, 1)]}
    a_fingerprint().require_fits(**winter, any_dates=True)
    with pytest.raises(MismatchError, match="pixels of 20 m"):
        a_fingerprint().require_fits(**winter | {"resolution": 20.0}, any_dates=True)


def test_only_the_season_changes() -> None:
    mine = a_fingerprint()
    longer = mine.with_season(Season(1, 360))
    assert longer.season == Season(1, 360)
    assert longer.differences(mine) == []
