"""Bad input: one line each."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from cropstar.errors import InputError
from cropstar.sources.breizhcrops import looks_like_breizhcrops, open_breizhcrops
from tests.sources.examples import regions
from tests.sources.examples.regions import a_series, write_region

HERE = Path("2017") / "L1C"


def message(root: Path) -> str:
    with pytest.raises(InputError) as caught:
        open_breizhcrops(root)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_missing_files(tmp_path: Path) -> None:
    assert not looks_like_breizhcrops(tmp_path)
    assert "no such folder" in message(tmp_path / "nowhere")
    assert "no class mapping" in message(tmp_path)
    write_region(tmp_path)
    (tmp_path / HERE / "frh01.h5").rename(tmp_path / "away.h5")
    assert "no series of the region 'frh01'" in message(tmp_path)
    assert "frh01.h5 is missing" in message(tmp_path)
    (tmp_path / "away.h5").rename(tmp_path / HERE / "frh01.h5")
    (tmp_path / HERE / "frh01.csv").unlink()
    assert "no index of the region" in message(tmp_path)
    (tmp_path / HERE / "frh01.h5").unlink()
    assert "no BreizhCrops region" in message(tmp_path)


def test_without_class_mapping(tmp_path: Path) -> None:
    write_region(tmp_path)
    mapping = tmp_path / "classmapping.csv"
    for text, expected in (
        ("", "not a table"),
        ("a,b\n1,2\n", "not a class mapping"),
        (",id,classname,code\n1,x,barley,ORH\n", "no numeric id"),
        (",id,classname,code\n1,0,barley,ORH\n2,1,wheat,ORH\n", "the code 'ORH' stands twice"),
        (",id,classname,code\n1,0,wheat,ORH\n2,1,wheat,BTH\n", "the class name 'wheat' stands twice"),
        (",id,classname,code\n1,0,wheat,QQQ\n", "no parcel of a mapped class"),
    ):
        mapping.write_text(text)
        assert expected in message(tmp_path)
    mapping.unlink()
    assert looks_like_breizhcrops(tmp_path)
    assert "classmapping.csv is missing" in message(tmp_path)


def test_an_h5_file_without_a_parcel_of_the_index(tmp_path: Path) -> None:
    write_region(tmp_path)
    with h5py.File(tmp_path / HERE / "frh01.h5", "a") as handle:
        del handle["csv/frh01/203.csv"]
    assert "a parcel is missing in " in message(tmp_path)
    assert "the index names 'csv/frh01/203.csv'" in message(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_truncated_h5_file(tmp_path: Path, share: float) -> None:
    write_region(tmp_path)
    path = tmp_path / HERE / "frh01.h5"
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    assert "damaged h5 file" in message(tmp_path)


def test_wrong_columns(tmp_path: Path) -> None:
    write_region(tmp_path, series={1: a_series(regions.L2A, 3, 1)})
    assert "wrong number of columns in " in message(tmp_path)
    assert "has the shape (3, 14), L1C has 17 columns" in message(tmp_path)
    write_region(tmp_path, series={1: a_series([*regions.L1C[:-1], "B", "doa"], 3, 1)[:, :17]})
    assert "not a date" in message(tmp_path)
    write_region(tmp_path, series={1: np.full((2, 17), np.nan)})
    assert "no observation" in message(tmp_path)
    with h5py.File(tmp_path / HERE / "frh01.h5", "w") as handle:
        handle.create_dataset("csv/frh01/1.csv", (10**12, 17), dtype="f8", chunks=(1000, 17))
    assert "too long a series" in message(tmp_path)


def test_a_broken_index(tmp_path: Path) -> None:
    write_region(tmp_path)
    path = tmp_path / HERE / "frh01.csv"
    text = path.read_text()
    path.write_text(text + text.splitlines()[1] + "\n")
    assert "the parcel '1007' stands 2 times" in message(tmp_path)
    path.write_text("a,b\n1,2\n")
    assert "not an index of parcels" in message(tmp_path)
    path.write_bytes(b"\xff\xfe\x00")
    assert "frh01.csv" in message(tmp_path)
