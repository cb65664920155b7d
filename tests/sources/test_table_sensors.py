"""Tables with columns of several sensors: radar has rows of its own, and a missing value masks its sensor alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import cropstar
from cropstar.errors import InputError, MismatchError, UsageError
from cropstar.geo.sensors import DECIBEL_SCALE, backscatter_kind, decibel_counts, radar_band, radar_name, to_decibels
from cropstar.geo.weather import Warmth, to_celsius
from cropstar.sources.table import TableOptions, open_table
from cropstar.store.reader import TileReader
from cropstar.store.tile import write_tile


def a_table(fields: int = 3, dates: int = 4) -> pd.DataFrame:
    random = np.random.default_rng(0)
    rows = fields * dates
    return pd.DataFrame(
        {
            "field_id": np.repeat([f"f{number}" for number in range(fields)], dates),
            "date": np.tile(pd.date_range("2022-03-01", periods=dates, freq="10D").strftime("%Y-%m-%d"), fields),
            "crop": np.repeat(["maize", "wheat", "maize"][:fields], dates),
            "S2-L2A-B04": random.integers(100, 3000, rows),
            "S2-L2A-B08": random.integers(100, 5000, rows),
            "S1-SIGMA0-VH": random.integers(900, 3000, rows),
            "S1-SIGMA0-VV": random.integers(2000, 6000, rows),
            "elevation": np.repeat(random.integers(0, 900, fields), dates),
            "AGERA5-TMEAN": np.full(rows, 28_315),  # ten degrees
        }
    )


def read(frame: pd.DataFrame, folder: Path, **options: object) -> TileReader:
    frame.to_csv(folder / "t.csv", index=False)
    (scene,) = open_table(folder / "t.csv", TableOptions(**options))  # type: ignore[arg-type]
    write_tile(folder / "t.h5", scene.build(scene.tile_specs()[0]))
    return TileReader(folder / "t.h5")


def test_radar_is_a_sensor_of_its_own(tmp_path: Path) -> None:
    frame = a_table()
    frame.loc[1, "S2-L2A-B08"] = 65535  # a cloud: radar stays
    frame.loc[2, "S1-SIGMA0-VV"] = 65535  # no radar: the optical bands stay
    frame.loc[4:7, ["S1-SIGMA0-VV", "S1-SIGMA0-VH"]] = 65535  # a field without radar
    reader = read(frame, tmp_path)
    assert [(sensor.name, sensor.bands) for sensor in reader.fingerprint.sensors] == [
        ("S2", ("B04", "B08")),
        ("S1", ("VV", "VH")),
    ]
    assert reader.starts.tolist() == [0, 6, 10, 18]
    assert reader.sensors is not None
    assert reader.sensors[:6].tolist() == [0, 1, 1, 0, 0, 1]
    values, valid, _ = reader.sample(0)
    assert valid.all()
    expected = 20 * np.log10(frame["S1-SIGMA0-VV"].to_numpy()[0]) - 83
    assert values[1, 2] * DECIBEL_SCALE - 45 == pytest.approx(expected, abs=DECIBEL_SCALE / 2)
    assert values[0, :2].tolist() == frame[["S2-L2A-B04", "S2-L2A-B08"]].to_numpy()[0].tolist()
    assert not values[0, 2:].any()


def test_a_field_that_nobody_saw_stays_a_sample(tmp_path: Path) -> None:
    frame = a_table()
    frame.loc[0:3, ["S2-L2A-B04", "S1-SIGMA0-VV"]] = 65535
    reader = read(frame, tmp_path)
    _, valid, days = reader.sample(0)
    assert valid.tolist() == [False]
    assert len(days) == 1


def test_only_optical_columns_are_as_ever(tmp_path: Path) -> None:
    frame = a_table()
    plain = frame.drop(columns=["S1-SIGMA0-VH", "S1-SIGMA0-VV"])
    chosen = read(frame, tmp_path, bands=("B04", "B08"))
    assert chosen.fingerprint == read(plain, tmp_path).fingerprint
    assert chosen.fingerprint.sensors == ()


def test_radar_alone(tmp_path: Path) -> None:
    reader = read(a_table(), tmp_path, bands=("VV", "VH"))
    assert reader.fingerprint.bands == ("VV", "VH")
    assert reader.fingerprint.sensors == ()
    assert (reader.fingerprint.scale, reader.fingerprint.offset) == (0.001, -45.0)


def test_two_orbits(tmp_path: Path) -> None:
    frame = a_table().rename(columns={"S1-SIGMA0-VV": "VV_asc", "S1-SIGMA0-VH": "VV_desc"})
    reader = read(frame, tmp_path)
    assert [sensor.name for sensor in reader.fingerprint.sensors] == ["S2", "S1-ASC", "S1-DESC"]
    assert reader.fingerprint.bands == ("B04", "B08", "S1-ASC:VV", "S1-DESC:VV")
    again = read(frame, tmp_path, bands=reader.fingerprint.bands)  # as a model asks for them
    assert again.fingerprint == reader.fingerprint


def test_context_and_warmth(tmp_path: Path) -> None:
    reader = read(a_table(), tmp_path, context=("elevation",), temperature="AGERA5-TMEAN", base_temperature=4.0)
    assert reader.fingerprint.context == ("elevation", "gdd")
    values, _, days = reader.sample(1)
    assert set(values[:, 4]) == {a_table().loc[4, "elevation"]}
    assert values[:, 5] == pytest.approx((days - days[0]) * 6.0, abs=1e-3)


def test_context_beside_one_sensor(tmp_path: Path) -> None:
    frame = a_table()
    frame.loc[5, "elevation"] = 65535
    reader = read(frame, tmp_path, bands=("B04", "B08"), context=("elevation",))
    assert [sensor.name for sensor in reader.fingerprint.sensors] == ["S2"]
    assert set(reader.sample(1)[0][:, 2]) == {frame.loc[4, "elevation"]}  # a gap has the value beside it


@pytest.mark.parametrize(
    ("change", "options", "error", "why"),
    [
        ({"S1-SIGMA0-VV": -12.5}, {}, InputError, "mixed"),
        ({"S1-SIGMA0-VV": 65535}, {}, InputError, "no valid observation of radar"),
        ({}, {"context": ("height",)}, UsageError, "height"),
        ({}, {"temperature": "S1-SIGMA0-VV"}, InputError, "neither degrees nor kelvins"),
        ({}, {"temperature": "AGERA5-TMEAN", "warm_from": "13-01"}, UsageError, "not a day of the year"),
    ],
)
def test_bad_columns(
    tmp_path: Path, change: dict[str, float], options: dict[str, object], error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        read(a_table().assign(**change), tmp_path, **options)


def test_a_whole_training(tmp_path: Path) -> None:
    """Radar tells the crops apart, optical bands are noise: the model finds out, and forests do too."""
    random = np.random.default_rng(1)
    pieces = [a_table(2, 6) for _ in range(20)]
    for number, piece in enumerate(pieces):
        piece["field_id"] += f"-{number}"
    frame = pd.concat(pieces)
    maize = (frame["crop"] == "maize").to_numpy()
    frame["S1-SIGMA0-VV"] = np.where(maize, 5000, 2500) + random.integers(-300, 300, len(frame))
    frame["S2-L2A-B04"] = random.integers(100, 3000, len(frame))
    frame.to_csv(tmp_path / "t.csv", index=False)
    cropstar.ingest(tmp_path / "t.csv", output=tmp_path / "store")
    folders = {}
    for model in ("star", "rf"):
        settings = {"augmentation.sensor_dropout": 0.3, "augmentation.noise": 0.05, "augmentation.scale": 0.05}
        own: Any = {"settings": settings, "epochs": 25, "hidden": 16} if model == "star" else {}
        run = cropstar.train(store=tmp_path / "store", model=model, runs=tmp_path / model, seed=0, **own)
        folders[model] = run
        assert run.metrics["parcel"]["overall_accuracy"] > 0.9, model
        cropstar.predict(tmp_path / "t.csv", model=run, output=tmp_path / f"{model}.csv")
        found = pd.read_csv(tmp_path / f"{model}.csv")
        assert (found["class"] == found["declared"]).mean() > 0.9
    frame.drop(columns=["S2-L2A-B04", "S2-L2A-B08"]).to_csv(tmp_path / "radar.csv", index=False)
    cropstar.predict(tmp_path / "radar.csv", model=folders["star"], output=tmp_path / "alone.csv")  # learnt to
    alone = pd.read_csv(tmp_path / "alone.csv")
    assert (alone["class"] == alone["declared"]).mean() > 0.9
    with pytest.raises(MismatchError, match="no column for B04, B08"):  # a forest without such training
        cropstar.predict(tmp_path / "radar.csv", model=run, output=tmp_path / "refused.csv")


# --- what columns and numbers are


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("S1-SIGMA0-VV", ("VV", "S1")),
        ("vh_db", ("VH", "S1")),
        ("S1_GRD_ASCENDING_VV", ("VV", "S1-ASC")),
        ("VV_asc_dB", ("VV", "S1-ASC")),
        ("S1A_VH_desc", ("VH", "S1-DESC")),
        ("SAR-VV-20m", ("VV", "S1")),
        ("B04", None),
        ("VVX", None),
    ],
)
def test_names_of_radar(text: str, found: tuple[str, str] | None) -> None:
    assert radar_band(text) == found


def test_orbits_in_names_of_files() -> None:
    assert radar_name("S1 GRD-ASCENDING 20m") == "S1-ASC"
    assert radar_name("basic S1") == "S1"


def test_kinds_of_backscatter() -> None:
    random = np.random.default_rng(0)
    decibels = random.normal(-12, 3, 5000).astype(np.float32)
    power = 10 ** (decibels / 10)
    assert backscatter_kind(decibels) == "dB"
    assert backscatter_kind(power) == "linear"
    assert backscatter_kind(np.round(10 ** ((decibels + 83) / 20))) == "DN"
    assert to_decibels(power, "linear") == pytest.approx(decibels, abs=1e-4)
    counts = decibel_counts(decibels)
    assert counts * DECIBEL_SCALE - 45 == pytest.approx(decibels, abs=DECIBEL_SCALE / 2 + 1e-4)
    for numbers in (np.concatenate([decibels, power]), decibels * 100, power * 1e6 + 0.5):
        with pytest.raises(ValueError, match="values are below"):
            backscatter_kind(numbers)


def test_warmth_by_hand() -> None:
    warmth = Warmth(base=5.0, start="01-03")
    first = 18_262  # 2020-01-01
    daily = {first + day: float(day) for day in range(10)}
    sums = warmth.of_days(daily)
    assert [sums[first + day] for day in (0, 1, 2, 3, 7, 8, 10)] == [0, 0, 0, 0, 1, 3, 10]
    days, means = np.array([first, first + 6, first + 9], dtype=np.int32), np.array([7.0, 10.0, 0.0])
    rows = warmth.of_rows(days, means, np.array([0, 3]))
    assert rows.tolist() == [0.0, 8.0, 23.0]  # from the third day on: four days of 2, three of 5
    with pytest.raises(ValueError, match="kelvins"):
        to_celsius(np.array([1e6]))
