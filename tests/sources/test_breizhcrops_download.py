"""Regions from the network: whole and checked under their names, or not there; never without being asked for."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cropstar.errors import ArtifactError, CropstarError, InputError, ResourceError, UsageError
from cropstar.sources import breizhcrops_download
from cropstar.sources.breizhcrops import BreizhCropsOptions, open_breizhcrops
from cropstar.sources.breizhcrops_download import read_tables
from cropstar.sources.catalogue import SOURCES, IngestRequest
from cropstar.store.files import locked
from tests.sources.examples import regions
from tests.sources.examples.breizhcrops_server import Site, install_package, serving, tar_gz, zipped
from tests.sources.examples.regions import a_series, write_region

H5, INDEX = "2017/L1C/frh01.h5", "2017/L1C/frh01.csv"
ARCHIVE = f"{H5}.tar.gz"
UNFINISHED = "2017/L1C/.frh01.h5.tar.gz.download"


@pytest.fixture
def original(tmp_path: Path) -> Path:
    """Two regions as the package has them."""
    folder = tmp_path / "original"
    write_region(folder, "frh01")
    write_region(folder, "frh02", series={key: a_series(regions.L1C, 5, key) for key in (5, 7)})
    return folder


@pytest.fixture
def site(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """They are served, and a package that knows them is installed."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for name in ("http_proxy", "https_proxy"):  # no test reaches the network, whatever goes wrong
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    (tmp_path / "packages").mkdir()
    monkeypatch.delitem(sys.modules, "breizhcrops", raising=False)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    with serving() as site:
        for path in original.rglob("*.csv"):
            site.files[path.relative_to(original).as_posix()] = path.read_bytes()
        for path in original.rglob("*.h5"):
            name = path.relative_to(original).as_posix()
            site.files[f"{name}.tar.gz"] = tar_gz({f"data/{path.name}": path.read_bytes()})
        sizes = {path.stem: path.stat().st_size for path in original.rglob("*.h5")}
        install_package(tmp_path / "packages", site.address, sizes)
        yield site


def download(root: Path, *names: str, **options: Any) -> list[Any]:
    return open_breizhcrops(root, BreizhCropsOptions(regions=names or ("frh01",), download=True, **options))


def failure(root: Path, kind: type[CropstarError] = InputError, **options: Any) -> str:
    """The one line; no file has a final name that it does not deserve."""
    with pytest.raises(kind) as caught:
        download(root, **options)
    assert "\n" not in str(caught.value)
    assert not (root / H5).exists()
    assert not list(root.rglob("*.partial"))
    return str(caught.value)


def test_missing_regions_are_fetched_and_read(site: Site, original: Path, tmp_path: Path) -> None:
    root = tmp_path / "deep" / "root"
    scenes = download(root, "frh02", "frh01")
    assert [scene.name for scene in scenes] == ["frh01-2017-L1C", "frh02-2017-L1C"]
    for path in (path for path in original.rglob("*") if path.is_file()):
        assert (root / path.relative_to(original)).read_bytes() == path.read_bytes()
    assert sorted(path.name for path in root.rglob(".*")) == [".lock"]
    expected = open_breizhcrops(original, BreizhCropsOptions(regions=("frh01",)))[0]
    (tile, other) = (scene.build(scene.tile_specs()[0]) for scene in (scenes[0], expected))
    assert np.array_equal(tile.values, other.values)
    assert scenes[0].recipe == expected.recipe

    count = len(site.requests)
    download(root)
    assert len(site.requests) == count == 6  # nothing is fetched twice


def test_only_what_is_missing(site: Site, original: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(original, root)
    (root / H5).unlink()
    assert [scene.name for scene in SOURCES["breizhcrops"](request(root))] == ["frh01-2017-L1C"]
    assert [path for path, _ in site.requests] == [ARCHIVE]


def request(root: Path) -> IngestRequest:
    return IngestRequest(root, special={"regions": ("frh01",), "download": True})


def test_on_the_command_line(site: Site, tmp_path: Path, run_cli: Any) -> None:
    command = ("ingest", "breizhcrops", "data", "--regions", "frh01", "-o", "store")
    place = {"cwd": tmp_path, "env": {"PYTHONPATH": str(tmp_path / "packages")}}
    assert run_cli(*command, **place).returncode == 3
    assert site.requests == []
    done = run_cli(*command, "--download", **place)
    assert (done.returncode, "4 samples" in done.stderr) == (0, True), done.stderr


def test_never_without_being_asked(site: Site, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        open_breizhcrops(tmp_path / "root", BreizhCropsOptions(regions=("frh01",)))
    (tmp_path / "root").mkdir()
    with pytest.raises(InputError, match=r"classmapping\.csv is missing; .*--download"):
        open_breizhcrops(tmp_path / "root", BreizhCropsOptions(regions=("frh01",)))
    assert site.requests == []
    with pytest.raises(UsageError, match="no regions"):
        BreizhCropsOptions(download=True)


def test_a_broken_connection_and_how_it_goes_on(site: Site, original: Path, tmp_path: Path) -> None:
    half = len(site.files[ARCHIVE]) // 2
    site.broken[ARCHIVE] = half
    line = failure(tmp_path)
    assert f"broke after {half} of {len(site.files[ARCHIVE])} bytes; run the same command again" in line
    assert (tmp_path / UNFINISHED).stat().st_size == half
    site.broken.clear()
    download(tmp_path)
    assert site.requests[-1] == (ARCHIVE, f"bytes={half}-")
    assert (tmp_path / H5).read_bytes() == (original / H5).read_bytes()
    assert not (tmp_path / UNFINISHED).exists()


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("have", [1.0, 0.5, 1.5])
def test_what_an_earlier_attempt_left(site: Site, original: Path, tmp_path: Path, have: float, ranges: bool) -> None:
    """All of it, a part of it, more than there is; from a server that goes on, and one that starts again."""
    content, site.ranges = site.files[ARCHIVE], ranges
    (tmp_path / UNFINISHED).parent.mkdir(parents=True)
    (tmp_path / UNFINISHED).write_bytes((content + content)[: int(have * len(content))])
    download(tmp_path)
    assert (tmp_path / H5).read_bytes() == (original / H5).read_bytes()


def test_the_beginning_of_another_file_is_thrown_away(site: Site, tmp_path: Path) -> None:
    (tmp_path / UNFINISHED).parent.mkdir(parents=True)
    (tmp_path / UNFINISHED).write_bytes(site.files["2017/L1C/frh02.h5.tar.gz"][:100])
    assert "a wrong or damaged archive" in failure(tmp_path)
    assert not (tmp_path / UNFINISHED).exists()
    download(tmp_path)


def test_not_found(site: Site, tmp_path: Path) -> None:
    del site.files[ARCHIVE]
    assert f"cannot download in {site.address}/{ARCHIVE}: 404 Not Found" in failure(tmp_path)
    del site.files["classmapping.csv"]
    assert "classmapping.csv: 404" in failure(tmp_path / "other")
    assert not (tmp_path / "other" / "classmapping.csv").exists()


PAGE = b"\n<!DOCTYPE html><html><body>Please sign in</body></html>" + bytes(20)


@pytest.mark.parametrize("name", [ARCHIVE, INDEX, "classmapping.csv", "codes.csv"])
def test_a_page_instead_of_a_file(site: Site, tmp_path: Path, name: str) -> None:
    site.files[name] = PAGE
    assert f"{site.address}/{name}: " in failure(tmp_path)
    assert not (tmp_path / name).exists()
    assert not list(tmp_path.rglob("*.download"))


@pytest.mark.parametrize("name", [INDEX, "classmapping.csv", "codes.csv"])
def test_another_table(site: Site, tmp_path: Path, name: str) -> None:
    site.files[name] = b"one\n1\n"
    assert f"not the file in {site.address}/{name}: not a" in failure(tmp_path)
    assert not (tmp_path / name).exists()


def test_wrong_archives(site: Site, original: Path, tmp_path: Path) -> None:
    right, h5 = site.files[ARCHIVE], (original / H5).read_bytes()
    for content, expected in (
        (tar_gz({"frh01.h5": h5[:-1]}), f"frh01.h5 has {len(h5) - 1} bytes, not {len(h5)}"),
        (tar_gz({"frh01.h5": bytes(len(h5))}), "frh01.h5 is not an HDF5 file"),
        (tar_gz({"frh02.h5": h5}), "frh01.h5 is not in it"),
        (right[: len(right) // 2], "damaged archive"),
        (right[:-8] + bytes(4) + right[-4:], "CRC check failed"),
        (bytes(50), "damaged archive"),
    ):
        site.files[ARCHIVE] = content
        assert expected in failure(tmp_path)
        assert not (tmp_path / UNFINISHED).exists()
    for path in (f"../../../{tmp_path.name}-out/frh01.h5", "/tmp/../frh01.h5"):
        site.files[ARCHIVE] = tar_gz({path: h5})  # paths in an archive do not matter
        download(tmp_path)
        assert (tmp_path / H5).read_bytes() == h5
        (tmp_path / H5).unlink()
    assert not (tmp_path.parent / f"{tmp_path.name}-out").exists()


def test_a_server_that_does_not_tell_the_length(site: Site, original: Path, tmp_path: Path) -> None:
    site.silent = {ARCHIVE}
    download(tmp_path)
    assert (tmp_path / H5).read_bytes() == (original / H5).read_bytes()


def test_no_server_and_a_silent_one(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listening:  # takes the request and never answers
        port = listening.getsockname()[1]
        install_package(tmp_path / "packages", f"http://127.0.0.1:{port}", {"frh01": 1000})
        monkeypatch.setattr(breizhcrops_download, "TIMEOUT", 0.2)
        assert "timed out" in failure(tmp_path / "root")
    assert "cannot download" in failure(tmp_path / "root")
    install_package(tmp_path / "packages", f"file://{tmp_path}", {"frh01": 1000})
    assert "not a web address" in failure(tmp_path / "root")


def test_places_that_cannot_be_written(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in failure(tmp_path / "file")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "2017").write_text("")
    assert "2017" in failure(tmp_path / "root")
    with locked(tmp_path / "held", "it"):
        assert "is locked" in failure(tmp_path / "held", ArtifactError)
    install_package(tmp_path / "packages", site.address, {"frh01": 10**17})
    assert "GB are needed" in failure(tmp_path / "small", ResourceError)


def test_what_there_is_to_download(site: Site, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown region 'fhr01'; did you mean 'frh01'\? known: frh01, frh02"):
        download(tmp_path, "fhr01")
    with pytest.raises(UsageError, match=r"no frh01 2017 L2A to download; choose one of: frh01 2017 L1C, frh01 2018"):
        download(tmp_path, level="L2A")
    shutil.rmtree(tmp_path / "packages" / "breizhcrops")
    (tmp_path / "packages" / "breizhcrops" / "datasets").mkdir(parents=True)
    (tmp_path / "packages" / "breizhcrops" / "__init__.py").write_text("")
    (tmp_path / "packages" / "breizhcrops" / "datasets" / "urls.py").write_text("H5_URLs = make()\n")
    importlib.invalidate_caches()
    assert "another version of the package" in failure(tmp_path)
    assert site.requests == []


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "breizhcrops", raising=False)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if "site-packages" not in entry])
    importlib.invalidate_caches()
    assert failure(tmp_path, UsageError).endswith("; pip install 'cropstar[breizhcrops]'")


def test_raw_csv_of_2018(site: Site, original: Path, tmp_path: Path) -> None:
    rows = pd.DataFrame(a_series(regions.L1C, 4, 1), columns=regions.L1C)
    rows["doa"] = [f"2018-01-0{day}" for day in range(1, 5)]
    text = rows.assign(label="BTH", id=7).to_csv().encode()
    whole = zipped({"../../x/7.csv": text, "frh01/8.csv": text, "../evil.py": b"1"})
    site.files["2018/L1C/frh01.zip"] = whole
    (scene,) = download(tmp_path / "root", year=2018)
    assert scene.build(scene.tile_specs()[0]).table.keys == ["7", "8"]
    folder = tmp_path / "root" / "2018" / "L1C" / "frh01"
    assert {path.name for path in folder.rglob("*")} == {"csv", "7.csv", "8.csv"}
    assert not list(tmp_path.rglob("evil.py"))
    for content, why in (
        (zipped({"a.txt": b"1"}), "no csv file is in it"),
        (whole[:-30], "damaged archive"),
        (whole[:100] + bytes(10) + whole[110:], "damaged"),
    ):
        site.files["2018/L1C/frh01.zip"] = content
        with pytest.raises(InputError, match=why):
            download(tmp_path / "other", year=2018)
        assert not list((tmp_path / "other" / "2018").rglob("*.csv"))


def test_the_tables_of_the_real_package_come_without_torch() -> None:
    if importlib.util.find_spec("breizhcrops") is None:
        pytest.skip("the package breizhcrops is not installed: pip install 'cropstar[breizhcrops]'")
    tables = read_tables()
    origin = tables.origin("belle-ile", 2017, "L1C")
    assert origin is not None
    assert origin.size == 17_038_944
    assert str(origin.h5).startswith("https://")
    assert str(origin.h5).endswith("/2017/L1C/belle-ile.h5.tar.gz")
    assert tables.origin("kermaux", 2017, "L2A") is None
    assert {"frh04 2017 L2A", "frh04 2018 L1C", "kermaux 2017 L1C"} <= set(tables.known())
    code = (
        "import sys; from cropstar.sources.breizhcrops_download import read_tables; read_tables(); "
        "assert not {'torch', 'breizhcrops'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
