"""`cropstar predict` on tables and stores of series, against the model asked directly."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import cropstar

CROPS = ("maize", "wheat", "beet")
BANDS = ("B04", "B08", "B11")


def fields_frame(count: int = 60, *, year: int = 2021, seed: int = 3) -> pd.DataFrame:
    """Fields with 7 to 9 dates and curves that differ by crop."""
    generator = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for field in range(count):
        crop = field % len(CROPS)
        for step in range(7 + field % 3):
            curve = 0.2 + 0.1 * crop + 0.15 * np.sin(step * (1 + crop) / 3)
            values = np.clip(curve + generator.normal(0, 0.02, len(BANDS)), 0.01, 1) * 10_000
            day = date(year, 3, 1) + timedelta(days=25 * step + field % 4)
            numbers = dict(zip(BANDS, values.astype(int).tolist(), strict=True))
            rows.append({"field_id": 100 + field, "date": str(day), "crop": CROPS[crop], **numbers})
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return fields_frame()


@pytest.fixture(scope="module")
def table(frame: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "fields.parquet"
    frame.to_parquet(path, index=False)
    return path


@pytest.fixture(scope="module")
def store(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cropstar.ingest(table, output=tmp_path_factory.mktemp("stores") / "fields").path


@pytest.fixture(scope="module")
def run(store: Path, tmp_path_factory: pytest.TempPathFactory) -> cropstar.TrainingResult:
    return train(store, tmp_path_factory.mktemp("runs"))


def train(store: Path, runs: Path, model: str = "star", **settings: Any) -> cropstar.TrainingResult:
    return cropstar.train(
        store=store, recipe="paper", model=model, layers=1, hidden=8, epochs=2, runs=runs, device="cpu", **settings
    )


def predict(path: Path | list[Path], run: Any, output: Path, **options: Any) -> cropstar.TableProduct:
    (made,) = cropstar.predict(path, model=run, output=output, device="cpu", **options)
    assert isinstance(made, cropstar.TableProduct)
    return made


def test_a_table_says_what_the_model_says(
    frame: pd.DataFrame, table: Path, run: cropstar.TrainingResult, tmp_path: Path
) -> None:
    made = predict(table, run, tmp_path / "classes.parquet")
    found = pd.read_parquet(made.table)
    model = cropstar.load_model(run, device="cpu")
    likely = model.predict_proba(frame)
    assert found["id"].tolist() == likely.index.tolist()  # numbers, as the table has them
    columns = [f"p_{name}" for name in model.card.classes]
    assert found[columns].to_numpy() == pytest.approx(likely.to_numpy(), abs=1e-6)
    assert found["class"].tolist() == likely.idxmax(axis=1).tolist()
    assert found["confidence"].to_numpy() == pytest.approx(likely.max(axis=1).to_numpy(), abs=1e-6)
    counts = frame.groupby("field_id").size()
    assert found["observations"].tolist() == counts.tolist()
    declared = frame.groupby("field_id")["crop"].first()
    assert found["declared"].tolist() == declared.tolist()
    right = float((found["class"] == found["declared"]).mean())
    assert (made.series, made.unseen, made.declared) == (60, 0, 60)
    assert made.accuracy == pytest.approx(right)
    # A set holds the named class, and its classes are those of the model.
    for row in found.itertuples():
        members = str(row.set).split("; ")
        assert row[list(found.columns).index("class") + 1] in members
        assert set(members) <= set(model.card.classes)
        assert len(members) == row.set_size


def test_sets_cover_as_the_training_promised(store: Path, run: cropstar.TrainingResult, tmp_path: Path) -> None:
    """The threshold of the model's own card, applied to the written probabilities."""
    from cropstar.store.model_file import read_model

    found = pd.read_csv(predict(store, run, tmp_path / "classes.csv").table)
    card, _, _ = read_model(run.model)
    assert card.calibration is not None
    threshold = card.calibration["sets"]["threshold"]
    likely = found[[f"p_{name}" for name in card.fingerprint.classes.names]].to_numpy()
    expected = (1 - likely <= threshold).sum(axis=1).clip(1)
    assert (found["set_size"].to_numpy() == expected).mean() > 0.95  # but for the rounding of CSV


@pytest.mark.parametrize("kind", ["csv", "store", "float", "shuffled"])
def test_the_same_fields_in_other_clothes(
    kind: str, frame: pd.DataFrame, table: Path, store: Path, run: cropstar.TrainingResult, tmp_path: Path
) -> None:
    expected = pd.read_parquet(predict(table, run, tmp_path / "a.parquet").table)
    source = tmp_path / "other.csv"
    if kind == "store":
        source = store
    elif kind == "float":
        frame.assign(**{band: frame[band] / 10_000 for band in BANDS}).to_csv(source, index=False)
    else:
        order = frame.sample(frac=1, random_state=1) if kind == "shuffled" else frame
        order.drop(columns="crop").rename(columns={"B04": "S2-L2A-B04"}).assign(NDVI=3).to_csv(source, index=False)
    found = pd.read_parquet(predict(source, run, tmp_path / "b.parquet").table)
    assert found["id"].astype(int).tolist() == expected["id"].tolist()
    columns = [name for name in expected if str(name).startswith("p_")]
    assert found[columns].to_numpy() == pytest.approx(expected[columns].to_numpy(), abs=1e-5)
    assert ("declared" in found) == (kind in ("store", "float"))


def test_a_band_that_the_model_does_not_need_may_be_empty(
    frame: pd.DataFrame, run: cropstar.TrainingResult, tmp_path: Path
) -> None:
    frame.assign(B8A=65535).to_parquet(tmp_path / "fields.parquet")
    made = predict(tmp_path / "fields.parquet", run, tmp_path / "classes.csv")
    assert made.unseen == 0


def test_a_field_never_seen_has_no_class(frame: pd.DataFrame, run: cropstar.TrainingResult, tmp_path: Path) -> None:
    hidden = frame.assign(B04=frame["B04"].where(frame["field_id"] != 117, 65535))
    hidden.to_parquet(tmp_path / "fields.parquet")
    made = predict(tmp_path / "fields.parquet", run, tmp_path / "classes.parquet", uncertainty="margin")
    found = pd.read_parquet(made.table).set_index("id")
    assert made.unseen == 1
    assert made.declared == 59
    assert found.loc[117, ["class", "confidence", "set", "margin", "p_wheat"]].isna().all()
    assert (found.at[117, "observations"], found.at[117, "set_size"]) == (0, 0)
    assert found.drop(index=117)["margin"].between(0, 1).all()


def test_groups_and_unknown_crops(frame: pd.DataFrame, run: cropstar.TrainingResult, tmp_path: Path) -> None:
    other = frame.assign(crop=frame["crop"].replace("beet", "hops"), year=2021)
    both = pd.concat([other, fields_frame(6, year=2022).assign(year=2022)])
    both.to_csv(tmp_path / "fields.csv", index=False)
    made = predict(tmp_path / "fields.csv", run, tmp_path / "classes.csv")
    found = pd.read_csv(made.table)
    assert found["group"].tolist() == [2021] * 60 + [2022] * 6
    assert made.declared == 46  # those of a crop that the model knows
    assert "hops" in set(found["declared"])


def test_a_scale_of_its_own_is_remembered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Trained with --scale on numbers that look like something else: prediction finds the same probabilities."""
    frame = fields_frame()
    small = frame.assign(**{band: frame[band] / 200 for band in BANDS})  # 0 to 50: the scale is not clear
    small.to_csv(tmp_path / "small.csv", index=False)
    store = cropstar.ingest(tmp_path / "small.csv", output=tmp_path / "store", scale=0.02)
    run = train(store.path, tmp_path / "runs")
    with caplog.at_level(logging.WARNING):
        found = pd.read_csv(predict(tmp_path / "small.csv", run, tmp_path / "a.csv").table)
    assert "the scale of the model's training, 0.02" in caplog.text
    expected = pd.read_csv(predict(store.path, run, tmp_path / "b.csv").table)
    assert found["confidence"].to_numpy() == pytest.approx(expected["confidence"].to_numpy(), abs=1e-5)
    given = pd.read_csv(predict(tmp_path / "small.csv", run, tmp_path / "c.csv", scale=0.02).table)
    assert given["confidence"].to_numpy() == pytest.approx(expected["confidence"].to_numpy(), abs=1e-5)


def test_forests_and_regular_dates(table: Path, store: Path, tmp_path: Path) -> None:
    for number, (model, setting) in enumerate((("rf", {"model.trees": 5}), ("star", {"regular.every": 30}))):
        run = train(store, tmp_path / f"runs-{number}", model, settings=setting)
        found = pd.read_parquet(predict(table, run, tmp_path / f"{number}.parquet").table)
        likely = cropstar.load_model(run, device="cpu").predict_proba(pd.read_parquet(table))
        columns = [f"p_{name}" for name in likely]
        assert found[columns].to_numpy() == pytest.approx(likely.to_numpy(), abs=1e-5)


# --- refusals


def test_what_is_refused(
    frame: pd.DataFrame, table: Path, run: cropstar.TrainingResult, small_scene: Path, small_store: Path, tmp_path: Path
) -> None:
    missing, late, far = (tmp_path / f"{name}.csv" for name in ("missing", "late", "far"))
    frame.drop(columns="B11").to_csv(missing, index=False)
    frame.assign(date=frame["date"].str.replace("2021-03", "2021-12")).to_csv(late, index=False)
    frame.assign(**{band: frame[band] * 1e7 for band in BANDS}).to_csv(far, index=False)
    output = tmp_path / "classes.csv"
    with pytest.raises(cropstar.MismatchError, match=r"no column for B11 .* name columns with --bands"):
        predict(missing, run, output)
    with pytest.raises(cropstar.MismatchError, match="outside the season of the training"):
        predict(late, run, output)
    assert predict(late, run, tmp_path / "late-classes.csv", any_dates=True).series == 60
    with pytest.raises(cropstar.MismatchError, match="far from all that the model was trained on"):
        predict(far, run, output)
    with pytest.raises(cropstar.UsageError, match="--state does not apply to tables"):
        predict(table, run, output, state=tmp_path / "state.h5")
    with pytest.raises(cropstar.UsageError, match="--id-column does not apply to images"):
        cropstar.predict(small_scene / "tile.tif", model=run, output=tmp_path / "map.tif", id_column="field_id")
    with pytest.raises(cropstar.UsageError, match="tables and images in one call"):
        cropstar.predict([table, small_scene / "tile.tif"], model=run, output=tmp_path)
    with pytest.raises(cropstar.UsageError, match=r"ends in .parquet or .pq or .csv"):
        predict(table, run, tmp_path / "classes.tif")
    copy = tmp_path / "fields.parquet"
    copy.write_bytes(table.read_bytes())
    with pytest.raises(cropstar.UsageError, match="the output is the input"):
        predict(copy, run, copy, overwrite=True)
    assert not output.exists()


def test_a_table_says_what_the_test_does_not_cover(
    frame: pd.DataFrame, run: cropstar.TrainingResult, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    later = frame.assign(date=frame["date"].str.replace("2021", "2022"))
    shifted = frame.assign(**{band: frame[band] + 6000 for band in BANDS})
    early = frame[frame["date"] < "2021-06-15"]

    def said(own: pd.DataFrame) -> str:
        own.to_parquet(tmp_path / "own.parquet", index=False)
        caplog.clear()
        with caplog.at_level("INFO"):
            predict(tmp_path / "own.parquet", run, tmp_path / "classes.csv", overwrite=True, scale=0.0001)
        return caplog.text

    plain = said(frame)
    assert "too few to rely on: " in plain
    assert "not valid for these images" not in plain
    assert "these images are of 2022, the test was of 2021" in (text := said(later))
    assert "not valid for these images" in text
    assert "band means are unlike those of the training images, B" in said(shifted)
    assert "where training had up to" not in plain
    assert "for maps that end by day" in said(early)
    assert "no test figures are known" in said_of_an_older_model(frame, run, tmp_path, caplog)


def said_of_an_older_model(
    frame: pd.DataFrame, run: cropstar.TrainingResult, folder: Path, caplog: pytest.LogCaptureFixture
) -> str:
    from dataclasses import replace

    from cropstar.store.model_file import read_model, write_model

    card, weights, _ = read_model(run.model)
    write_model(folder / "old.safetensors", replace(card, provenance={}), weights)
    frame.to_parquet(folder / "fields.parquet", index=False)
    caplog.clear()
    predict(folder / "fields.parquet", folder / "old.safetensors", folder / "old.csv")
    return caplog.text


def test_a_model_of_images_is_refused(table: Path, small_store: Path, tmp_path: Path) -> None:
    run = train(small_store, tmp_path / "runs", "convstar")
    with pytest.raises(cropstar.MismatchError, match="the model reads images"):
        predict(table, run, tmp_path / "classes.csv")


def test_on_the_command_line(
    run_cli: Callable[..., subprocess.CompletedProcess[str]], table: Path, run: cropstar.TrainingResult, tmp_path: Path
) -> None:
    place = tmp_path / "fields.parquet"
    place.write_bytes(table.read_bytes())
    done = run_cli("predict", place, "--model", run.folder, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    output = tmp_path / "fields-crops.parquet"
    assert f"table   {output}: 60 rows" in done.stderr
    assert " of 60 rows have the class that is declared, " in done.stderr
    before = output.read_bytes()
    again = run_cli("predict", place, "--model", run.folder, "-q", cwd=tmp_path)
    assert again.returncode == 2
    assert again.stderr.splitlines() == [
        f"error: the output exists in {output}; choose another with -o, or give --overwrite"
    ]
    quiet = run_cli("predict", place, "--model", run.folder, "-q", "--overwrite", cwd=tmp_path)
    assert (quiet.returncode, quiet.stderr, quiet.stdout) == (0, "", "")
    assert output.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".partial")] == []
