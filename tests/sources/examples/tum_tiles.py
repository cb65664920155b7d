"""Small tiles and batches as the publishers wrote them, made without any of the reader's code."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

CLASSES = "0|unknown\n1|sugar beet\n2|summer oat\n3|meadow\n22|winter wheat\n26|maize\n"


def slow_crc32c(data: bytes) -> int:
    """Byte by byte, with a table made bit by bit as the polynomial is defined."""
    register = 0xFFFFFFFF
    for byte in data:
        register = TABLE[(register ^ byte) & 0xFF] ^ register >> 8
    return register ^ 0xFFFFFFFF


def _bit_by_bit(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


TABLE = [_bit_by_bit(byte) for byte in range(256)]


def framed(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def varint(value: int) -> bytes:
    value, out = value & (2**64 - 1), b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def an_example(features: dict[str, bytes | tuple[int, ...]], packed: bool = True) -> bytes:
    entries = b""
    for name, value in features.items():
        if isinstance(value, bytes):
            feature = field(1, field(1, value))
        elif packed:
            feature = field(3, field(1, b"".join(map(varint, value))))
        else:
            feature = field(3, b"".join(b"\x08" + varint(number) for number in value))
        entries += field(1, field(1, name.encode()) + field(2, feature))
    return field(1, entries)


def some_arrays(side: int = 12, dates: int = 4, seed: int = 0) -> dict[str, NDArray[np.int64]]:
    """A tile whose left half is class 3 and right half 26, with a stripe of 0 between; the last date is padding."""
    random = np.random.default_rng(seed)
    labels = np.zeros((dates, side, side), dtype=np.int64)
    labels[:, :, : side // 2 - 1], labels[:, :, side // 2 + 1 :] = 3, 26
    arrays = {
        "x10": random.integers(1, 9000, (dates, side, side, 4)),
        "x20": random.integers(1, 9000, (dates, side // 2, side // 2, 6)),
        "x60": random.integers(1, 9000, (dates, side // 6, side // 6, 3)),
        "labels": labels,
        "doy": np.array([90, 30, 200, *[-1] * (dates - 3)][:dates]),
        "year": np.full(dates, 2017),
    }
    for name in ("x10", "x20", "x60", "labels"):
        arrays[name][3:] = 0 if name == "labels" else -1
    return arrays


def features_of(arrays: dict[str, NDArray[np.int64]]) -> dict[str, bytes | tuple[int, ...]]:
    features: dict[str, bytes | tuple[int, ...]] = {}
    for name in ("x10", "x20", "x60", "labels"):
        features[f"{name}/data"] = arrays[name].astype("<i8").tobytes()
        features[f"{name}/shape"] = arrays[name].shape
    for name in ("doy", "year"):
        features[f"dates/{name}"] = arrays[name].astype("<i8").tobytes()
    features["dates/shape"] = arrays["doy"].shape
    return features


def write_tile(path: Path, arrays: dict[str, NDArray[np.int64]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = framed(an_example(features_of(arrays)))
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def write_collection(
    root: Path, years: tuple[int, ...] = (2016,), tiles: tuple[int, ...] = (5, 7, 16, 101), ending: str = ".tfrecord.gz"
) -> dict[tuple[int, int], dict[str, NDArray[np.int64]]]:
    """A folder such as 240 with all its companions; answers the arrays by year and tile."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "classes.txt").write_text(CLASSES)
    (root / "geotransforms.csv").write_text(
        "".join(f"{tile},{650000 + 240 * tile}.0,10,0,{5350000.0},0,-10,32632\n" for tile in tiles)
    )
    sections = [f"[{year}]\ndatadir = data{year % 100}\npix10 = 24\nnobs = 4\ntiletable=tiles240\n" for year in years]
    (root / "dataset.ini").write_text("\n".join(sections))
    folds = root / "tileids"
    folds.mkdir(exist_ok=True)
    (folds / "train_fold0.tileids").write_text("5\n7\n9999\n")
    (folds / "test_fold0.tileids").write_text("16\n")
    (folds / "eval.tileids").write_text("101\n")
    written = {}
    for year in years:
        for tile in tiles:
            arrays = some_arrays(seed=year + tile)
            write_tile(root / f"data{year % 100}" / f"{tile}{ending}", arrays)
            written[year, tile] = arrays
    return written


def write_rasters(folder: Path, arrays: dict[str, Any], days: list[str], *, nested: bool) -> None:
    """A tile as GeoTIFFs: `days` are the dates in the files' names."""
    import rasterio

    folder.mkdir(parents=True, exist_ok=True)
    for resolution in (10, 20, 60):
        for place, day in enumerate(days):
            name = f"{resolution}m/{day}.tif" if nested else f"{day}_{resolution}m.tif"
            _write_raster(rasterio, folder / name, arrays[f"x{resolution}"][place], resolution)
    _write_raster(rasterio, folder / ("labels.tif" if nested else "y.tif"), arrays["labels"][0][:, :, None], 10)


def _write_raster(rasterio: Any, path: Path, image: NDArray[Any], resolution: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    height, width, count = image.shape
    transform = rasterio.transform.from_origin(650_000, 5_350_000, resolution, resolution)
    options = {"driver": "GTiff", "height": height, "width": width, "count": count, "dtype": "uint16"}
    with rasterio.open(path, "w", crs="EPSG:32632", transform=transform, **options) as dataset:
        dataset.write(np.clip(image, 0, None).astype(np.uint16).transpose(2, 0, 1))


def _masked(data: bytes) -> bytes:
    checksum = slow_crc32c(data)
    return struct.pack("<I", ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF)
