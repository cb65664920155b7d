"""Maps that say what they do not know, from the command line: the model that is meant, parcels, masks, rasters."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import geopandas
import numpy as np
import pytest
import rasterio
import shapely

import cropstar
from cropstar.errors import InputError, PartialResult, UsageError
from cropstar.prediction.request import MapInput, UpdateRequest
from cropstar.prediction.season import update
from cropstar.store.classes import NOT_A_FIELD
from cropstar.store.store import Store
from tests.prediction.making import untrained
from tests.prediction.seasons import cut, pixels

Cli = Callable[..., CompletedProcess[str]]


def a_run(folder: Path, raster: Path, store: str) -> Path:
    folder.mkdir(parents=True)
    untrained(folder / "model.safetensors", raster)
    (folder / "config.yaml").write_text(f"store: {store}\nseed: 0\n")
    (folder / "result.json").write_text("{}")
    return folder


def test_a_model_must_be_named_where_runs_are_of_several_stores(
    small_scene: Path, tmp_path: Path, run_cli: Cli, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    raster = Path(shutil.copy(small_scene / "tile.tif", tmp_path / "tile.tif"))
    a_run(tmp_path / "data/runs/one", raster, "data/stores/one")
    monkeypatch.chdir(tmp_path)
    with caplog.at_level("INFO"):
        cropstar.predict("tile.tif", output="map.tif")
    assert "model   data/runs/one/model.safetensors: convstar, for 4 classes" in caplog.text
    a_run(tmp_path / "data/runs/two", raster, "data/stores/two")
    found = run_cli("predict", "tile.tif", cwd=tmp_path)
    assert found.returncode == 2
    assert found.stderr.count("\n") == 1
    assert "which model?" in found.stderr
    assert "name one with --model" in found.stderr
    cropstar.predict("tile.tif", output="map.tif", model="data/runs/two", overwrite=True)


def test_no_parcel_with_a_class_ends_with_code_7(small_scene: Path, tmp_path: Path) -> None:
    model = untrained(tmp_path / "model.safetensors", small_scene / "tile.tif")
    parcels = geopandas.read_file(small_scene / "parcels.gpkg")[:5]
    parcels["geometry"] = parcels.geometry.translate(1e6)
    parcels.to_file(tmp_path / "far.gpkg")
    with pytest.raises(PartialResult, match="0 of 5 parcels have a class") as failure:
        cropstar.predict(
            small_scene / "tile.tif", output=tmp_path / "map.tif", model=model, parcels=tmp_path / "far.gpkg"
        )
    assert failure.value.exit_code == 7
    assert (tmp_path / "map.tif").exists()
    assert (tmp_path / "map-parcels.gpkg").exists()


@pytest.mark.parametrize(
    ("cause", "said"), [("mask", "lie outside of the mask; check the mask"), ("unknown", "are unknown; check the warn")]
)
def test_a_map_without_any_class_is_no_success(cause: str, said: str, small_scene: Path, tmp_path: Path) -> None:
    model = untrained(tmp_path / "model.safetensors", small_scene / "tile.tif")
    with rasterio.open(small_scene / "tile.tif") as tile:
        nowhere = np.zeros(tile.shape, dtype=np.uint8)
        profile = {"crs": tile.crs, "transform": tile.transform, "height": tile.height, "width": tile.width}
    with rasterio.open(tmp_path / "mask.tif", "w", driver="GTiff", count=1, dtype="uint8", **profile) as raster:
        raster.write(nowhere, 1)
    options: dict[str, Any] = {"mask": tmp_path / "mask.tif"} if cause == "mask" else {"min_confidence": 1.0}
    with pytest.raises(PartialResult, match=said) as failure:
        cropstar.predict(small_scene / "tile.tif", output=tmp_path / "map.tif", model=model, **options)
    assert failure.value.exit_code == 7
    assert (tmp_path / "map.tif").exists()


def test_a_map_that_another_call_finished_is_not_taken_for_an_empty_one(small_scene: Path, tmp_path: Path) -> None:
    model = untrained(tmp_path / "model.safetensors", small_scene / "tile.tif")
    for _ in range(2):  # a scheduler that starts a shard once more
        cropstar.predict(small_scene / "tile.tif", output=tmp_path / "map.tif", model=model, shard="0/1")


def test_parcels_without_rows_or_the_declared_column_are_refused_before_the_map(
    small_scene: Path, tmp_path: Path
) -> None:
    model = untrained(tmp_path / "model.safetensors", small_scene / "tile.tif")
    frame = geopandas.read_file(small_scene / "parcels.gpkg")
    frame[:0].to_file(tmp_path / "empty.gpkg")
    frame.to_file(tmp_path / "parcels.gpkg")
    for name, column, said in (("empty", None, "the file has no rows"), ("parcels", "sown", "no column 'sown'")):
        with pytest.raises(InputError, match=said):
            cropstar.predict(
                small_scene / "tile.tif",
                output=tmp_path / "map.tif",
                model=model,
                parcels=tmp_path / f"{name}.gpkg",
                declared_column=column,
            )
    assert not list(tmp_path.glob("map*"))


@pytest.mark.parametrize("folds", [None, 3])
def test_agreement_with_what_the_model_learnt_is_no_test(
    folds: int | None, small_scene: Path, small_store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = cropstar.train(store=small_store, model="rf", target="parcel", folds=folds, runs=tmp_path / "runs")
    parcels = small_scene / "parcels.gpkg"
    with caplog.at_level("INFO"):
        cropstar.predict(small_scene / "tile.tif", output=tmp_path / "map.tif", model=run, parcels=parcels)
    found = geopandas.read_file(tmp_path / "map-parcels.gpkg", layer="map-parcels")
    if folds:  # each was judged by a model that never saw it, and this model learnt from all of them
        assert set(found["part"]) == {"train"}
        assert "parcels are mapped as declared; the model learnt from them: no test" in caplog.text
    else:
        assert {"train", "test"} <= set(found["part"])
        assert "; of those that training never saw, " in caplog.text
    assert "each by its mean series: single pixels were not tested" in caplog.text


def test_parcels_say_declared_and_mapped_and_keep_the_columns_of_the_user(small_scene: Path, tmp_path: Path) -> None:
    model = untrained(tmp_path / "model.safetensors", small_scene / "tile.tif", seed=2)
    frame = geopandas.read_file(small_scene / "parcels.gpkg")
    frame["sown"] = ["maize", "wheat", "oats", None] * (len(frame) // 4) + ["rape"] * (len(frame) % 4)
    frame["part"] = "north"
    frame.to_file(tmp_path / "parcels.gpkg")
    (product,) = cropstar.predict(
        small_scene / "tile.tif",
        output=tmp_path / "map.tif",
        model=model,
        parcels=tmp_path / "parcels.gpkg",
        declared_column="sown",
        confidence=True,
    )
    names = {path.name for path in product.files}
    assert {"map-parcels.gpkg", "map-parcels.qml", "map-confidence.qml", "map-confidence.tif", "map.png"} <= names
    assert all(path.exists() for path in product.files)
    found = geopandas.read_file(tmp_path / "map-parcels.gpkg")
    assert (found["part_input"] == "north").all()
    known = found["mapped"].notna() & found["sown"].isin(["maize", "wheat", "rape", "grass"])
    assert known.any()
    assert (found["agreement_with_declared"][known].astype(bool) == (found["mapped"] == found["sown"])[known]).all()
    assert found["agreement_with_declared"][found["sown"] == "oats"].isna().all()
    assert (found["second"] != found["mapped"])[found["mapped"].notna()].all()
    assert (found["second_probability"] <= found["probability"])[found["mapped"].notna()].all()
    # Once more, on its own product: nothing is doubled.
    shutil.copy(tmp_path / "map-parcels.gpkg", tmp_path / "again.gpkg")
    cropstar.predict(small_scene / "tile.tif", output=tmp_path / "b.tif", model=model, parcels=tmp_path / "again.gpkg")
    again = geopandas.read_file(tmp_path / "b-parcels.gpkg")
    assert sorted(again.columns) == sorted(found.columns)
    assert (again["declared"].dropna() == found["declared"].dropna()).all()
    with pytest.raises(InputError, match="no column 'crops'"):
        cropstar.predict(
            small_scene / "tile.tif",
            output=tmp_path / "c.tif",
            model=model,
            parcels=tmp_path / "parcels.gpkg",
            declared_column="crops",
        )


def test_declared_crops_are_compared_by_the_class_table(small_scene: Path, tmp_path: Path) -> None:
    model = untrained(tmp_path / "model.safetensors", small_scene / "tile.tif", seed=2)
    frame = geopandas.read_file(small_scene / "parcels.gpkg")
    frame["crop"] = ["corn", "oats"] * (len(frame) // 2) + ["corn"] * (len(frame) % 2)
    frame.to_file(tmp_path / "parcels.gpkg")
    (tmp_path / "classes.yaml").write_text("maize: [corn, '211']\nwheat: [spelt]\n")
    cropstar.predict(
        small_scene / "tile.tif",
        output=tmp_path / "map.tif",
        model=model,
        parcels=tmp_path / "parcels.gpkg",
        declared_classes=tmp_path / "classes.yaml",
    )
    found = geopandas.read_file(tmp_path / "map-parcels.gpkg")
    corn = (found["crop"] == "corn") & found["mapped"].notna()
    assert corn.any()
    assert (found["declared"][corn] == "maize").all()
    assert (found["agreement_with_declared"][corn].astype(bool) == (found["mapped"] == "maize")[corn]).all()
    assert found["agreement_with_declared"][~corn].isna().all()
    with pytest.raises(UsageError, match="--declared-classes without --parcels"):
        cropstar.predict(
            small_scene / "tile.tif", output=tmp_path / "b.tif", model=model, declared_classes=tmp_path / "classes.yaml"
        )


def test_an_update_makes_every_product_again(small_scene: Path, tmp_path: Path) -> None:
    tile = small_scene / "tile.tif"
    first = cut(tile, tmp_path / "first.tif", slice(0, 4))
    late, every = cut(tile, tmp_path / "late.tif", slice(4, 6)), cut(tile, tmp_path / "all.tif", slice(0, 6))
    model = untrained(tmp_path / "model.safetensors", every, seed=2)
    mask = tmp_path / "mask.tif"
    with rasterio.open(every) as dataset:
        profile = {"driver": "GTiff", "height": dataset.height, "width": dataset.width, "crs": dataset.crs}
        profile["transform"] = dataset.transform
    inside = np.ones((profile["height"], profile["width"]), dtype=np.uint8)
    inside[:20] = 0
    with rasterio.open(mask, "w", count=1, dtype="uint8", **profile) as dataset:
        dataset.write(inside, 1)
    asked: dict[str, Any] = {
        "confidence": True, "html": True, "parcels": small_scene / "parcels.gpkg", "mask": mask,
        "min_confidence": 0.3, "smooth": "majority",
    }  # fmt: skip
    state = tmp_path / "season.h5"
    cropstar.predict(first, output=tmp_path / "map.tif", model=model, state=state, **asked)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("map*")}
    cropstar.update(state, late)
    after = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("map*")}
    assert before.keys() == after.keys()
    assert [name for name in before if before[name] == after[name]] == []
    cropstar.predict(every, output=tmp_path / "whole.tif", model=model, **asked)
    for name in ("", "-confidence"):
        assert (pixels(tmp_path / f"map{name}.tif") != pixels(tmp_path / f"whole{name}.tif")).mean() < 0.002
    mask.unlink()
    later = cut(tile, tmp_path / "later.tif", slice(5, 6))
    with pytest.raises(InputError, match="which is gone"):
        update(state, [MapInput(later)], UpdateRequest(device="cpu"))


def test_a_class_for_what_is_no_field(small_scene: Path, tmp_path: Path) -> None:
    tile = small_scene / "tile.tif"
    with rasterio.open(tile) as dataset:
        profile = {"driver": "GTiff", "height": dataset.height, "width": dataset.width, "crs": dataset.crs}
        profile["transform"] = dataset.transform
        shape, bounds = dataset.shape, dataset.bounds
    cover = np.full(shape, 40, dtype=np.uint8)
    cover[:, :30], cover[:40, 30:60], cover[50:, 60:] = 10, 50, 30
    with rasterio.open(tmp_path / "cover.tif", "w", count=1, dtype="uint8", **profile) as dataset:
        dataset.write(cover, 1)
    fields = geopandas.GeoDataFrame(
        {"parcel_id": [1, 2], "crop": ["maize", "wheat"]},
        geometry=[
            shapely.box(bounds.left + 650, bounds.top - 400, bounds.left + 900, bounds.top - 100),
            shapely.box(bounds.left + 100, bounds.top - 900, bounds.left + 200, bounds.top - 800),
        ],
        crs=profile["crs"],
    )
    fields.to_file(tmp_path / "fields.gpkg")
    made = cropstar.ingest(
        tile, parcels=tmp_path / "fields.gpkg", background=tmp_path / "cover.tif", output=tmp_path / "store"
    )
    store = Store.open(Path(made))
    names = store.fingerprint.classes.names
    assert names == ["maize", "wheat", NOT_A_FIELD]
    squares = 0
    for _, reader in store.readers():
        labels, parcels = reader.labels(), reader.parcels()
        top, left = (round(float(each)) for each in _corner(reader.grid.transform, profile["transform"]))
        under = cover[top : top + labels.shape[0], left : left + labels.shape[1]]
        assert set(np.unique(under[labels == 2])) <= {10, 50}  # neither cropland nor grass
        squares += len(np.unique(parcels[labels == 2]))
        assert (labels == 1).sum() in (0, *range(1, 101))  # the field within the woods keeps its pixels
    assert squares >= 20
    store.close()
    with rasterio.open(tmp_path / "cover.tif", "r+") as dataset:
        dataset.write(cover + 7, 1)
    with pytest.raises(UsageError, match="unknown codes of land cover"):
        cropstar.ingest(
            tile, parcels=tmp_path / "fields.gpkg", background=tmp_path / "cover.tif", output=tmp_path / "other"
        )


def _corner(tile: tuple[float, ...], scene: rasterio.Affine) -> tuple[float, float]:
    column, row = ~scene @ (tile[2], tile[5])
    return row, column


def test_inspect_opens_maps_layers_and_images(small_scene: Path, tmp_path: Path, run_cli: Cli) -> None:
    model = untrained(tmp_path / "model.safetensors", small_scene / "tile.tif")
    cropstar.predict(small_scene / "tile.tif", output=tmp_path / "map.tif", model=model, confidence=True)
    found = run_cli("inspect", "map.tif", "--json", cwd=tmp_path)
    facts = json.loads(found.stdout)
    assert facts["what"] == "map"
    assert sum(row["pixels"] for row in facts["classes"]) == 96 * 96
    assert len(facts["dates"]) == 6
    from cropstar.reports.contents import raster_facts, raster_lines

    layer = raster_facts(tmp_path / "map-confidence.tif")
    assert layer["meaning"].startswith("calibrated probability")
    text = "\n".join(raster_lines(raster_facts(small_scene / "tile.tif")))
    assert "6 dates from" in text
    assert "hectares" in "\n".join(raster_lines(raster_facts(tmp_path / "map.tif")))
    with rasterio.open(tmp_path / "plain.tif", "w", driver="GTiff", width=3, height=3, count=1, dtype="uint8") as one:
        one.write(np.zeros((1, 3, 3), np.uint8))
    assert "note" in "\n".join(raster_lines(raster_facts(tmp_path / "plain.tif")))
