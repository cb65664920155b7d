"""Bad input: one line that names the file, the reason and the remedy, the documented exit code, nothing lost."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import geopandas
import pytest
import rasterio

Cli = Callable[..., "subprocess.CompletedProcess[str]"]
SMALL = ["--layers", "1", "--hidden", "4", "--epochs", "1", "--set", "split.validation=0.3"]


def assert_refused(answer: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    assert answer.returncode == code, answer.stderr
    last = answer.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert "Traceback" not in answer.stderr
    assert "; " in last  # every refusal ends with what to do
    for part in parts:
        assert part in last


@pytest.fixture(scope="module")
def trained(small_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run in data/runs."""
    import torch

    from cropstar.config import resolve_config
    from cropstar.training.train import TrainOptions, train

    folder = tmp_path_factory.mktemp("trained")
    options = {"store": small_store, "model.layers": 1, "model.hidden": 4, "epochs": 1, "split.validation": 0.3}
    train(resolve_config(None, options), TrainOptions(folder / "data" / "runs", torch.device("cpu")))
    return folder


def test_no_store_yet(run_cli: Cli, tmp_path: Path) -> None:
    assert_refused(run_cli("train", cwd=tmp_path), 3, "no store yet", "data/stores", "cropstar ingest")
    assert_refused(run_cli("train", "--store", "nowhere", cwd=tmp_path), 3, "no store in nowhere", "cropstar ingest")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("predict", "tile.tif", "-o", ""), "-o is empty"),
        (("predict", "tile.tif", "--output="), "--output is empty"),
        (("ingest", "tile.tif", "--parcels", " "), "--parcels is empty"),
        (("train", "--resume", ""), "--resume is empty"),
        (("update", "", "late.tif"), "an argument is empty"),
    ],
)
def test_a_variable_of_the_shell_that_is_not_set(
    words: tuple[str, ...], what: str, run_cli: Cli, tmp_path: Path
) -> None:
    """As a path it would be the current folder; `predict -o ""` wrote beside its input."""
    assert_refused(run_cli(*words, cwd=tmp_path), 2, what, "give a value, or leave it out")
    assert list(tmp_path.iterdir()) == []


def test_no_model_yet(run_cli: Cli, small_scene: Path, tmp_path: Path) -> None:
    assert_refused(run_cli("predict", small_scene / "tile.tif", cwd=tmp_path), 4, "no model yet", "cropstar train")


def test_unknown_model(run_cli: Cli, small_store: Path, tmp_path: Path) -> None:
    answer = run_cli("train", "--store", small_store, "--model", "convstr", cwd=tmp_path)
    assert_refused(answer, 2, "unknown model 'convstr'", "did you mean 'convstar'?", "star")
    assert not (tmp_path / "data").exists()


def test_text_named_tif(run_cli: Cli, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "tile.tif").write_text("this is no picture\n")
    (tmp_path / "parcels.gpkg").write_text("nor is this a parcel\n")
    assert_refused(run_cli("ingest", "tile.tif", cwd=tmp_path), 3, "tile.tif", "not a GeoTIFF")
    answer = run_cli("predict", "tile.tif", "--model", next((trained / "data/runs").iterdir()), cwd=tmp_path)
    assert_refused(answer, 3, "tile.tif", "not a GeoTIFF")
    assert not (tmp_path / "data").exists()


def test_parcels_that_cannot_be_used(run_cli: Cli, small_scene: Path, tmp_path: Path) -> None:
    tile, parcels = small_scene / "tile.tif", small_scene / "parcels.gpkg"
    bare = geopandas.read_file(parcels).drop(columns="crop")
    bare.to_file(tmp_path / "bare.gpkg")
    answer = run_cli("ingest", tile, "--parcels", "bare.gpkg", cwd=tmp_path)
    assert_refused(answer, 3, "no label column in bare.gpkg", "parcel_id", "--label-column")
    answer = run_cli("ingest", tile, "--parcels", parcels, "--label-column", "crpo", cwd=tmp_path)
    assert_refused(answer, 3, "no column 'crpo'", "crop", "--label-column")
    answer = run_cli("ingest", tile, "--parcels", "missing.gpkg", cwd=tmp_path)
    assert_refused(answer, 3, "no such file: missing.gpkg")
    (tmp_path / "text.gpkg").write_text("no parcels")
    answer = run_cli("ingest", tile, "--parcels", "text.gpkg", cwd=tmp_path)
    assert_refused(answer, 3, "unreadable parcels in text.gpkg")
    assert not (tmp_path / "data").exists()


def test_store_cut_in_half(run_cli: Cli, small_scene: Path, small_store: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(small_store, store)
    tile = sorted((store / "tiles").iterdir())[1]
    whole = tile.read_bytes()
    tile.write_bytes(whole[: len(whole) // 2])
    assert_refused(
        run_cli("train", "--store", "store", *SMALL, cwd=tmp_path), 4, tile.name, "incomplete", "ingest again"
    )
    # The remedy works.
    mended = run_cli("ingest", small_scene / "tile.tif", "--tile-size", "48", "-o", "store", cwd=tmp_path)
    assert mended.returncode == 0
    assert "made again" in mended.stderr
    assert tile.read_bytes() == whole

    manifest = store / "manifest.json"
    manifest.write_text(manifest.read_text()[: manifest.stat().st_size // 2])
    assert_refused(run_cli("train", "--store", "store", *SMALL, cwd=tmp_path), 4, "manifest.json")


def test_bytes_flipped_inside_a_tile(run_cli: Cli, small_store: Path, tmp_path: Path) -> None:
    """Same length, other content: reading it says so instead of training on rubbish."""
    store = tmp_path / "store"
    shutil.copytree(small_store, store)
    for tile in (store / "tiles").iterdir():
        data = bytearray(tile.read_bytes())
        middle = len(data) // 2
        data[middle : middle + 2000] = bytes(2000)
        tile.write_bytes(bytes(data))
    answer = run_cli("train", "--store", "store", *SMALL, cwd=tmp_path)
    assert_refused(answer, 4, "a tile is damaged", "ingest again")


def test_model_of_other_bands(run_cli: Cli, trained: Path, small_scene: Path, tmp_path: Path) -> None:
    with rasterio.open(small_scene / "tile.tif") as old:
        wanted = [i for i in old.indexes if old.tags(i)["BAND"] in ("B02", "B03", "SCL")]
        with rasterio.open(tmp_path / "two.tif", "w", **{**old.profile, "count": len(wanted)}) as new:
            for position, index in enumerate(wanted, 1):
                new.write(old.read(index), position)
                new.set_band_description(position, old.descriptions[index - 1])
            new.scales = [old.scales[index - 1] for index in wanted]
    answer = run_cli("predict", "two.tif", "--model", next((trained / "data/runs").iterdir()), cwd=tmp_path)
    assert_refused(answer, 5, "two.tif", "B08", "missing")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["two.tif"]


def test_output_that_exists(run_cli: Cli, trained: Path, small_scene: Path, tmp_path: Path) -> None:
    (tmp_path / "map.tif").write_text("precious")
    model = next((trained / "data/runs").iterdir())
    answer = run_cli("predict", small_scene / "tile.tif", "-o", "map.tif", "--model", model, cwd=tmp_path)
    assert_refused(answer, 2, "the output exists in map.tif", "--overwrite")
    assert (tmp_path / "map.tif").read_text() == "precious"


def test_another_scene_into_the_same_store(run_cli: Cli, small_scene: Path, small_store: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(small_store, store)
    before = {path: path.read_bytes() for path in store.rglob("*.h5")}
    answer = run_cli("ingest", small_scene / "tile.tif", "--tile-size", "32", "-o", "store", cwd=tmp_path)
    assert_refused(answer, 2, "other content or options", "--overwrite")
    assert {path: path.read_bytes() for path in store.rglob("*.h5")} == before


def test_broken_models(run_cli: Cli, trained: Path, small_scene: Path, tmp_path: Path) -> None:
    model = next((trained / "data/runs").glob("*/model.safetensors"))
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(model.read_bytes()[:-100])
    text = tmp_path / "text.safetensors"
    text.write_text("weights, honestly")
    for path in (cut, text):
        answer = run_cli("predict", small_scene / "tile.tif", "-o", "map.tif", "--model", path, cwd=tmp_path)
        assert_refused(answer, 4, path.name)
    assert not (tmp_path / "map.tif").exists()


def test_debug_shows_the_traceback(run_cli: Cli, tmp_path: Path) -> None:
    answer = run_cli("train", "--store", "nowhere", "--debug", cwd=tmp_path)
    assert answer.returncode == 3
    assert "Traceback" in answer.stderr
    assert answer.stderr.splitlines()[-1].startswith("error: no store in nowhere")


def test_configuration_mistakes(run_cli: Cli, tmp_path: Path) -> None:
    def configure(text: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "run.yaml").write_text(text)
        return run_cli("train", "--config", "run.yaml", cwd=tmp_path)

    assert_refused(
        configure("store: s\nmodel: {layrs: 4}\n"), 2, "unknown key 'model.layrs'", "did you mean 'model.layers'?"
    )
    assert_refused(configure("store: s\nepochs: 1\nepochs: 2\n"), 2, "'epochs' appears twice", "line 3")
    assert_refused(configure("store: s\nepochs: many\n"), 2, "'epochs'", "integer")
    assert_refused(run_cli("train", "--config", "demo-convstr", cwd=tmp_path), 2, "did you mean 'demo-convstar'?")


def test_a_folder_with_other_things_is_no_store(run_cli: Cli, small_scene: Path, tmp_path: Path) -> None:
    (tmp_path / "mine" / "tiles").mkdir(parents=True)
    thesis = tmp_path / "mine" / "tiles" / "thesis.h5"
    thesis.write_text("years of work")
    answer = run_cli("ingest", small_scene / "tile.tif", "-o", "mine", cwd=tmp_path)
    assert_refused(answer, 2, "not a store in mine", "-o")
    assert thesis.read_text() == "years of work"
