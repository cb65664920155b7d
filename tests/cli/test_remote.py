"""Commands on remote names: the maps and stores of local ones, one line where they are refused, no secret anywhere."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rasterio

from cropstar.cli.main import cropstar
from cropstar.errors import CropstarError, InputError, UsageError
from tests.prediction.making import untrained
from tests.store.remote.buckets import Bucket
from tests.store.remote.served import alone as alone
from tests.store.remote.served import bucket as bucket
from tests.store.remote.served import site as site
from tests.store.remote.site import Site
from tests.test_architecture import modules_after

Run = Callable[..., None]


@pytest.fixture(scope="module")
def model(small_scene: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained(tmp_path_factory.mktemp("model") / "model.safetensors", small_scene / "tile.tif")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command line in this process: libraries are loaded once."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def call(*words: str | Path) -> None:
        arguments = [str(word) for word in words]
        monkeypatch.setattr(sys, "argv", ["cropstar", *arguments])
        cropstar.main(arguments, prog_name="cropstar", standalone_mode=False, obj={})

    return call


def refused(run: Run, kind: type[CropstarError], *words: str | Path) -> str:
    with pytest.raises(kind) as caught:
        run(*words)
    return str(caught.value)


def assert_untold(secrets: tuple[str, ...], text: str, *folders: Path) -> None:
    """No secret in what was said, nor in any file."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    contents = [text.encode(), *(path.read_bytes() for path in files)]
    assert len(contents) > 1
    for secret in secrets:
        assert not any(secret.encode() in content for content in contents)


# --- with the flag only


@pytest.mark.parametrize(
    "words",
    [
        ("predict", "s3://bucket/tile.tif"),
        ("predict", "tile.tif", "-o", "gs://bucket/map.tif"),
        ("predict", "tile.tif", "--model", "https://host/model.safetensors?sig=S3CR3T"),
        ("predict", "tile.tif", "--parcels", "s3://bucket/parcels.gpkg"),
        ("ingest", "https://user:S3CR3T@host/tile.tif"),
        ("ingest", "stack", "s3://bucket/tile.tif"),
        ("ingest", "tile.tif", "-o", "s3://bucket/store"),
        ("train", "--store", "s3://bucket/store"),
        ("train", "--config", "s3://bucket/config.yaml"),
        ("update", "season.h5", "gs://bucket/new.tif"),
        ("evaluate", "s3://bucket/model.safetensors"),
    ],
)
def test_without_the_flag(run: Run, words: tuple[str, ...]) -> None:
    line = refused(run, UsageError, *words)
    assert " is remote; give --allow-remote" in line
    assert "S3CR3T" not in line
    assert list(Path().iterdir()) == []


def test_commands_that_take_no_remote_names(run: Run) -> None:
    line = refused(run, UsageError, "inspect", "s3://bucket/store")
    assert line == "s3://bucket/store is remote; copy it to this machine first"


def test_start_up_does_not_pay_for_it() -> None:
    loaded = modules_after("import cropstar.cli.main")
    assert "click" in loaded
    assert not loaded & {"fsspec", "aiohttp", "s3fs", "gcsfs", "botocore"}


def test_workers_must_see_the_copies(run: Run) -> None:
    words = ("predict", "s3://b/tile.tif", "-o", "map.tif", "--scheduler", "tcp://127.0.0.1:9", "--allow-remote")
    assert "a folder that all workers see as --scratch" in refused(run, UsageError, *words)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("predict", "s3://b/tile.tif"), "give -o"),
        (("predict", "tile.tif", "-o", "https://host/map.tif"), "https:// cannot be written"),
        (("predict", "tile.tif", "-o", "s3://b/map.tif", "--shard", "0/2"), "a remote output with --shard"),
        (("predict", "tile.tif", "-o", "map.tif", "--state", "s3://b/season.h5"), "the state cannot be remote"),
        (("predict", "http://host/tile.tif", "-o", "map.tif"), "use s3:// or gs:// or https://"),
        (("update", "s3://b/season.h5", "new.tif"), "the state cannot be remote"),
        (("update", "season.h5", "new.tif", "-o", "s3://b/map.tif"), "the output cannot be remote"),
        (("train", "--runs", "s3://b/runs"), "the runs cannot be remote"),
        (("evaluate", "model.safetensors", "-o", "gs://b/figures.json"), "the output cannot be remote"),
    ],
)
def test_what_is_refused_with_it(run: Run, words: tuple[str, ...], part: str, tmp_path: Path) -> None:
    assert part in refused(run, UsageError, *words, "--allow-remote", "--scratch", tmp_path / "scratch")


def test_a_missing_package(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    words = ("train", "--store", "s3://bucket/store", "--allow-remote", "--scratch", tmp_path / "scratch")
    assert "aiohttp is not installed; pip install 'cropstar[remote]'" in refused(run, UsageError, *words)


# --- maps


def test_a_map_from_bucket_to_bucket(
    run: Run, bucket: Bucket, model: Path, small_scene: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    scratch = tmp_path / "scratch"
    bucket.put("in/tile.tif", (small_scene / "tile.tif").read_bytes())
    bucket.put("models/model.safetensors", model.read_bytes())
    words: list[Any] = ["predict", bucket.url("in/tile.tif"), "-o", bucket.url("out/map.tif"), "--confidence"]
    words += ["--model", bucket.url("models/model.safetensors"), "--allow-remote", "--scratch", scratch, "--log-json"]
    run(*words)
    assert_untold(bucket.secrets, "".join(capfd.readouterr()), scratch, Path())
    made = {key.removeprefix("out/"): value for key, value in bucket.contents().items() if key.startswith("out/")}
    shutil.copy(small_scene / "tile.tif", "tile.tif")
    run("predict", "tile.tif", "-o", "map.tif", "--confidence", "--model", model)
    assert set(made) == {"map.tif", "map.tif.aux.xml", "map.qml", "map.png", "map-confidence.tif", "map-confidence.qml"}
    Path("fetched").mkdir()
    for name in ("map.tif", "map-confidence.tif"):
        (Path("fetched") / name).write_bytes(made[name])
        with rasterio.open(name) as here, rasterio.open(Path("fetched") / name) as there:
            assert (here.read() == there.read()).all()
            assert here.profile == there.profile
    assert made["map.qml"] == Path("map.qml").read_bytes()
    assert_untold(bucket.secrets, "", Path("fetched"))
    assert not [path for path in (scratch / "outputs").rglob("*") if path.is_file() and path.name != ".lock"]
    assert "the output exists in " + bucket.url("out/map.tif") in refused(run, UsageError, *words)


@pytest.mark.slow
@pytest.mark.parametrize("bucket", ["gs"], indirect=True)
def test_the_map_is_uploaded_last_and_a_stopped_upload_goes_on(
    run: Run, bucket: Bucket, model: Path, small_scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        bucket.put(f"in/{name}.tif", (small_scene / "tile.tif").read_bytes())
    words = ["predict", bucket.url("in/*.tif"), "-o", bucket.url("maps"), "--model", str(model)]
    words += ["--allow-remote", "--scratch", str(tmp_path / "scratch")]
    bucket.failing.add("maps/b-crops.tif")
    assert "access denied" in refused(run, InputError, *words)
    assert "maps/b-crops.tif" not in bucket.contents()
    assert bucket.uploads[-1] == "maps/a-crops.tif"
    assert set(bucket.uploads[:-1]) >= {"maps/b-crops.tif.aux.xml", "maps/b-crops.png"}
    bucket.failing.clear()
    monkeypatch.setattr("cropstar.prediction.job.predict_all", None)  # nothing is computed again
    downloads = list(bucket.downloads)
    run(*words)
    assert bucket.uploads[-1] == "maps/b-crops.tif"
    assert bucket.downloads == downloads
    bucket.put("maps/b-crops.tif", b"of somebody else")
    assert "the output exists in gs://season/maps/a-crops.tif" in refused(run, UsageError, *words)


def test_a_map_from_the_web(run: Run, site: Site, model: Path, small_scene: Path, tmp_path: Path) -> None:
    site.files["tile.tif"] = (small_scene / "tile.tif").read_bytes()
    address = f"{site.address}/tile.tif?X-Amz-Signature=S3CR3T"
    run("predict", address, "-o", "map.tif", "--model", model, "--allow-remote", "--scratch", tmp_path / "scratch")
    with rasterio.open("map.tif") as dataset:
        assert dataset.shape == (96, 96)
    assert_untold(("S3CR3T",), " ".join(sys.argv), Path(), tmp_path / "scratch")


# --- stores


@pytest.mark.slow
def test_a_store_in_a_bucket_is_made_and_trained_on(
    run: Run, bucket: Bucket, small_scene: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    far = ["--allow-remote", "--scratch", str(tmp_path / "scratch")]
    for name in ("tile.tif", "parcels.gpkg"):
        bucket.put(f"in/{name}", (small_scene / name).read_bytes())
    words = ["ingest", bucket.url("in/tile.tif"), "--parcels", bucket.url("in/parcels.gpkg"), "--tile-size", "48"]
    words += ["-o", bucket.url("stores/small"), "--workers", "1"]
    run(*words, *far)
    shutil.copytree(small_scene, "scene")
    run("ingest", "scene/tile.tif", "--tile-size", "48", "-o", "small", "--workers", "1")
    stored = {key.removeprefix("stores/small/"): value for key, value in bucket.contents().items() if "stores" in key}
    local = {str(path.relative_to("small")): path.read_bytes() for path in Path("small").rglob("*") if path.is_file()}
    local.pop(".lock")
    assert stored == local
    assert "the output exists in " + bucket.url("stores/small/manifest.json") in refused(run, UsageError, *words, *far)
    run("train", "--store", bucket.url("stores/small"), "--model", "star", "--epochs", "1", "--device", "cpu", *far)
    [found] = Path("data/runs").iterdir()
    run("evaluate", found, "--store", bucket.url("stores/small"), "-o", "figures.json", *far)
    assert_untold(bucket.secrets, "".join(capfd.readouterr()), Path(), tmp_path / "scratch")
