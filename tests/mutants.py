"""Mutants: small mistakes in the code that keeps files whole, each of which a test must notice. `make mutants`.

Every mutant is made in a copy of the repository, and the tests that guard the place are run there. One that passes
them survives: then a test is missing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
EARLY = (
    "numpy pandas h5py rasterio geopandas pyogrio pyproj pydantic hypothesis pytest torch scipy.stats safetensors.numpy"
)


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str
    tests: str  # as pytest takes them


POWER = "tests/faults/test_power_loss.py::test_every_crash_leaves_old_or_new"
INGEST, INGEST_AGAIN = f"{POWER}[ingest-5]", f"{POWER}[ingest-again-5]"
FILES, TILE, READER, STORE = (f"cropstar/store/{name}.py" for name in ("files", "tile", "reader", "store"))
GATE, MODEL = (f"cropstar/store/{name}.py" for name in ("gate", "model_file"))
BLOCKS, OUTPUTS, SEASON = (f"cropstar/prediction/{name}.py" for name in ("blocks", "outputs", "season"))
JOB, LAYERS, PREDICTOR = (f"cropstar/prediction/{name}.py" for name in ("job", "layers", "predictor"))
IN_INGEST = "cropstar/sources/ingest.py"
OF_GATE, OF_STORE, OF_SEASON = (
    "tests/store/test_gate.py",
    "tests/store/test_store.py",
    "tests/prediction/test_season.py",
)
OF_BLOCKS, OF_OUTPUTS = "tests/prediction/test_blocks.py", "tests/prediction/test_outputs.py"
WRITE_MANIFEST = "        write_manifest(folder, Manifest(fingerprint, tuple(sorted(entries.values())), described))\n"
REMOVE_UNLISTED = "        _remove_unlisted(folder, set(entries))\n"

MUTANTS = (
    # what reaches the disk, and when
    Mutant("no fsync of the file", FILES, "            flush_to_disk(partial)\n", "            pass\n", INGEST),
    Mutant("no fsync of the folder", FILES, "            flush_to_disk(final.parent)\n", "            pass\n", INGEST),
    Mutant("no fsync of new folders", FILES, "        flush_to_disk(place.parent)\n", "        pass\n", INGEST),
    Mutant("tiles are not flushed", IN_INGEST, "        flush_tiles(tile_path(", "        list(tile_path(", INGEST),
    Mutant(
        "old tiles go before the manifest",
        IN_INGEST,
        WRITE_MANIFEST + REMOVE_UNLISTED,
        REMOVE_UNLISTED + WRITE_MANIFEST,
        INGEST_AGAIN,
    ),
    Mutant(
        "the mark of assembling may be lost",
        BLOCKS,
        "        flush_to_disk(self.folder)",
        "        str(self.folder)",
        OF_BLOCKS + " -k assembling",
    ),
    Mutant(
        "a file is written in its place",
        FILES,
        "        yield partial\n",
        "        yield final\n",
        "tests/store/test_files.py",
    ),
    Mutant(
        "a partial file stays",
        FILES,
        "        partial.unlink(missing_ok=True)\n",
        "        pass\n",
        "tests/store/test_files.py",
    ),
    Mutant(
        "two writers at once",
        FILES,
        "fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)\n        except BlockingIOError:\n            raise",
        "fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)\n        except BlockingIOError:\n            raise",
        "tests/store/test_files.py",
    ),
    # what is read is what was written
    Mutant(
        "tiles of another recipe are kept",
        TILE,
        '        if read_attribute(handle, "recipe") != recipe:',
        "        if not recipe:",
        "tests/sources/test_ingest.py tests/store/test_tile.py",
    ),
    Mutant(
        "damaged tiles are kept",
        TILE,
        "            _require_whole(handle, path)\n",
        "            pass\n",
        "tests/sources/test_ingest.py tests/store/test_tile.py",
    ),
    Mutant(
        "chunks are not compared",
        READER,
        " != known:\n                return True",
        " != known:\n                return False",
        "tests/store/test_tile.py",
    ),
    Mutant(
        "other chunks are taken for checked",
        READER,
        "            self._whole.add(place)",
        "            self._whole.update(self._places)",
        "tests/store/test_tile.py",
    ),
    Mutant("the manifest's checksum is not compared", STORE, "written != _checksum(data)", "written == data", OF_STORE),
    Mutant(
        "short tiles are accepted",
        STORE,
        "            if size != entry.bytes:",
        "            if size > entry.bytes:",
        OF_STORE,
    ),
    Mutant(
        "tiles of another store are read", STORE, "self.fingerprint.differences(reader.fingerprint)", "[]", OF_STORE
    ),
    Mutant(
        "weights are not compared",
        MODEL,
        '    if digest != header.get("digest"):',
        "    if not digest:",
        "tests/store/test_model_file.py",
    ),
    Mutant(
        "the state's checksums are not compared",
        SEASON,
        "            if len(wrong):",
        "            if wrong is None:",
        OF_SEASON + " -k changed_byte",
    ),
    Mutant(
        "blocks of other shapes are read",
        BLOCKS,
        "                if member.read(len(header)) != header:",
        "                if not member.read(len(header)):",
        OF_BLOCKS,
    ),
    Mutant(
        "blocks of another model are found",
        BLOCKS,
        '        "model": predictor.digest,\n',
        "",
        OF_BLOCKS + " tests/prediction/test_predict.py",
    ),
    Mutant("maps are not read back", OUTPUTS, "    if not whole:", "    if whole is None:", OF_OUTPUTS),
    Mutant(
        "misplaced directories are accepted", OUTPUTS, "    if directory or not whole:", "    if not whole:", OF_OUTPUTS
    ),
    Mutant(
        "a second first directory is accepted",
        OUTPUTS,
        "    if directory or not whole:",
        "    if directory:",
        OF_OUTPUTS,
    ),
    Mutant("GDAL's complaints are not heard", OUTPUTS, "    if complaints:", "    if complaints is None:", OF_OUTPUTS),
    # what comes from outside
    Mutant(
        "links in HDF5 are followed",
        GATE,
        "            if group.links.get_info(name).type != h5py.h5l.TYPE_HARD:",
        "            if name is None:",
        OF_GATE,
    ),
    Mutant("bytes in other files are read", GATE, "    if how.get_external_count():", "    if how is None:", OF_GATE),
    Mutant("names may be paths", GATE, 'sign in "/\\\\\\x7f"', 'sign in "\\\\\\x7f"', OF_GATE),
    Mutant(
        "paths may lead elsewhere",
        GATE,
        "    if not path.resolve().is_relative_to(folder.resolve()):",
        "    if not folder:",
        OF_GATE + " " + OF_SEASON,
    ),
    Mutant(
        "endless numbers are numbers", GATE, '    if abs(number) == float("inf"):', "    if number is None:", OF_GATE
    ),
    Mutant(
        "texts of numbers are long",
        TILE,
        "    if not isinstance(value, bytes):",
        "    if value is None:",
        "tests/fuzz -k tile-01",
    ),
    # maps
    Mutant(
        "maps are replaced without asking",
        JOB,
        "self.files.require_new(overwrite=self.request.overwrite or assembling)",
        "str(assembling)",
        OF_BLOCKS + " tests/cli/test_bad_input.py",
    ),
    Mutant(
        "any raster fits any model",
        JOB,
        "        predictor.require_fits(series, source.path, any_dates=request.any_dates)\n",
        "",
        "tests/prediction/test_predict.py",
    ),
    Mutant(
        "unseen pixels have a class",
        LAYERS,
        "np.where(seen, probabilities.argmax(axis=0), NODATA)",
        "probabilities.argmax(axis=0)",
        "tests/prediction/test_layers.py tests/prediction/test_predict.py",
    ),
    Mutant(
        "windows lack a pixel of margin",
        PREDICTOR,
        "        return self.model.radius(self.length(series))",
        "        return max(self.model.radius(self.length(series)) - 1, 0)",
        "tests/prediction/test_predict.py tests/prediction/test_predictor.py",
    ),
)


def copy_of_the_repository(folder: Path) -> Path:
    """Without what is not needed to test it."""
    copy = folder / "copy"
    for name in ("cropstar", "tests", "configs", "pyproject.toml"):
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)
    return copy


def run_tests(copy: Path, tests: str, output: Path) -> int:
    """pytest's exit code, of a fork: the heavy libraries are imported, cropstar is not."""
    child = os.fork()
    if child == 0:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        os.chdir(copy)
        sys.path[:0] = [str(copy)]
        for name in [name for name in sys.modules if name.partition(".")[0] in ("cropstar", "tests")]:
            del sys.modules[name]  # of the repository itself
        os.environ["PYTHONPATH"] = str(copy)
        sys.dont_write_bytecode = True
        import pytest

        code = pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:randomly", *tests.split()])
        sys.stdout.flush()
        os._exit(int(code))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def is_killed(mutant: Mutant, copy: Path, output: Path) -> str:
    """A word on what became of it."""
    path = copy / mutant.file
    good = path.read_text(encoding="utf-8")
    if good.count(mutant.old) != 1:
        return f"BROKEN: its place is there {good.count(mutant.old)} times"
    path.write_text(good.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        code = run_tests(copy, mutant.tests, output)
    finally:
        path.write_text(good, encoding="utf-8")
    return {0: "SURVIVED", 1: "killed"}.get(code, f"BROKEN: pytest ended with {code}, see {output}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the names of mutants; all by default")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in EARLY.split():
        import_module(name)
    chosen = [each for each in MUTANTS if not options.names or any(part in each.name for part in options.names)]
    started, killed = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as name:
        copy = copy_of_the_repository(Path(name))
        for mutant in chosen:
            became = is_killed(mutant, copy, Path(name) / "output.txt")
            killed += became == "killed"
            print(f"{became:9} {mutant.file}: {mutant.name}", flush=True)
    print(f"{killed} of {len(chosen)} mutants killed in {time.monotonic() - started:.0f} s")
    sys.exit(0 if killed == len(chosen) else 1)


if __name__ == "__main__":
    main()
