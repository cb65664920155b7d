"""`cropstar doctor`: versions, extras, processors, memory, GPUs and formats; what is needed and missing is marked."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from cropstar import __version__
from cropstar.runtime import memory_limit, processors

State = Literal["good", "note", "missing"]

# A package, and the command or option that it is for.
EXTRAS = {
    "optuna": ("tune", "cropstar tune"),
    "onnxruntime": ("onnx", "cropstar export"),
    "exactextract": ("parcels", "predict --parcels"),
    "pyarrow": ("parquet", "Parquet files"),
    "pystac_client": ("stac", "ingest stac"),
    "tensorboard": ("tensorboard", "train --tensorboard"),
    "distributed": ("cluster", "--scheduler"),
    "s3fs": ("remote", "--allow-remote"),
}
PACKAGES = ("torch", "numpy", "rasterio", "h5py", "geopandas", "scikit-learn")
DRIVERS = {"GTiff": True, "COG": True, "JP2OpenJPEG": False}  # of rasters, and whether nothing works without it
VECTORS = {"GPKG": True, "ESRI Shapefile": False}
GIGABYTE = 2**30


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's list."""

    what: str
    found: str
    state: State = "good"


def examine(folder: Path) -> list[Finding]:
    """All findings; `folder` is where results are to be written."""
    findings = [*_versions(), *_machine(), *_devices(), *_kernels(), *_formats()]
    return [*findings, _writable("writes to", folder), _writable("scratch space", Path(tempfile.gettempdir()))]


def format_findings(findings: list[Finding]) -> str:
    marks = {"good": "  ", "note": "- ", "missing": "! "}
    width = max(len(finding.what) for finding in findings)
    return "\n".join(f"{marks[finding.state]}{finding.what:<{width}}  {finding.found}" for finding in findings)


def to_json(findings: list[Finding]) -> dict[str, Any]:
    return {
        "healthy": all(finding.state != "missing" for finding in findings),
        "findings": [asdict(finding) for finding in findings],
    }


def _versions() -> Iterator[Finding]:
    yield Finding("cropstar", f"{__version__}, Python {platform.python_version()}, {platform.platform()}")
    for name in PACKAGES:
        try:
            yield Finding(name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name, "not installed", "missing")
    for module, (extra, use) in EXTRAS.items():
        if importlib.util.find_spec(module) is None:
            yield Finding(f"extra {extra}", f"not installed; {use} needs: pip install 'cropstar[{extra}]'", "note")
        else:
            yield Finding(f"extra {extra}", "installed")


def _machine() -> Iterator[Finding]:
    yield Finding("processors", f"{processors()} of {os.cpu_count()} available")
    limit = memory_limit()
    yield Finding("memory", "unknown" if limit is None else f"{limit / GIGABYTE:.1f} GB available")


def _devices() -> Iterator[Finding]:
    import torch

    yield Finding("threads", f"{torch.get_num_threads()} used by torch")
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        size = f"{properties.total_memory / GIGABYTE:.1f} GB"
        yield Finding(f"GPU {number}", f"{properties.name}, {size}, CUDA {torch.version.cuda}")
    if torch.backends.mps.is_available():
        yield Finding("GPU", "Apple GPU (MPS)")
    if not torch.cuda.is_available() and not torch.backends.mps.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        yield Finding("GPU", f"none found; torch is {built}", "note")


def _kernels() -> Iterator[Finding]:
    from cropstar.native.library import available, library, why_not

    if available():
        yield Finding("kernels", f"compiled, {library().instruction_set}")
    else:
        yield Finding("kernels", f"not compiled, PyTorch is used, which is slower: {why_not()}", "note")


def _formats() -> Iterator[Finding]:
    import pyogrio
    import rasterio

    with rasterio.Env() as environment:
        known = environment.drivers()
    yield Finding("GDAL", f"{rasterio.__gdal_version__}, {len(known)} raster formats")
    vectors = pyogrio.list_drivers()
    for name, needed in {**DRIVERS, **VECTORS}.items():
        if name not in known and name not in vectors:
            yield Finding(f"format {name}", "GDAL was built without it", "missing" if needed else "note")
    import h5py
    import hdf5plugin  # noqa: F401  # brings the filters

    if not h5py.h5z.filter_avail(32001):  # Blosc, which tiles are compressed with
        yield Finding("HDF5 filters", "Blosc cannot be loaded: stores cannot be read", "missing")


def _writable(what: str, folder: Path) -> Finding:
    """Whether a file can be made there, and how much there is room for."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    try:
        with tempfile.NamedTemporaryFile(dir=place) as handle:
            handle.write(b"cropstar")
            handle.flush()
        free = shutil.disk_usage(place).free
    except OSError as failure:
        return Finding(what, f"{folder}: {failure.strerror or failure}", "missing")
    return Finding(what, f"{folder}, {free / GIGABYTE:.1f} GB free")
