"""Batches of series: values, dates, classes, splits; pickles that would run code are refused."""

from __future__ import annotations

import os
import pickle
import resource
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cropstar.errors import InputError, UsageError
from cropstar.geo.calendar import from_days
from cropstar.sources.base import Scene
from cropstar.sources.ingest import ingest
from cropstar.sources.tum import TumOptions, looks_like_tum, open_tum
from cropstar.sources.tum.points import read_batch
from cropstar.store.classes import UNLABELLED
from cropstar.store.restricted_pickle import read_plain_pickle
from cropstar.store.store import Store
from cropstar.store.tile import SeriesTile
from tests.processes import run_python
from tests.sources.examples.tum_batches import Python2Pickler, a_batch, write_batch


def one(path: Path, **options: Any) -> Scene:
    (scene,) = open_tum(path, TumOptions(**options))
    return scene


def test_the_writer_of_these_tests_writes_what_pickle_reads() -> None:
    batch = a_batch()
    for mine, theirs in zip(batch, pickle.loads(Python2Pickler().dump(batch), encoding="latin1"), strict=True):
        assert np.array_equal(mine, theirs)
        assert mine.dtype == theirs.dtype


def test_a_store_gives_back_the_samples(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    batches = {}
    for seed, part in enumerate(("train", "test", "eval")):
        for number in (0, 1, 10, 2):
            batches[f"{part}/b{number}"] = a_batch(seed=10 * seed + number)
            write_batch(folder / part / f"b{number}.pkl", batches[f"{part}/b{number}"])
    assert looks_like_tum(tmp_path)
    scene = one(tmp_path)
    assert scene.name == "data-fieldrnn-2016"
    ingest([scene], tmp_path / "store")
    store = Store.open(tmp_path / "store")
    assert store.fingerprint.bands[:2] == ("band1_1", "band1_2")
    assert len(store.fingerprint.bands) == 54
    assert store.fingerprint.classes.names[:6] == ["cloud", "water", "snow", "cloud_shadow", "other", "corn"]
    assert (store.fingerprint.scale, store.fingerprint.resolution) == (1.0, 0.0)
    seen = []
    for _, reader in store.readers():
        assert reader.date_labels is not None
        table = reader.table
        for index, key in enumerate(table.keys):
            name, _, place = key.rpartition("-")
            x, y, counts = (array[int(place)] for array in batches[name])
            values, valid, days = reader.sample(index)
            assert np.array_equal(values, x[:counts, 1:].astype(np.float32))
            assert valid.all()
            dates = from_days(days)
            assert dates[0].isoformat() == "2015-12-31"
            assert dates[1].isoformat() == "2016-01-20"
            rows = slice(int(reader.starts[index]), int(reader.starts[index + 1]))
            assert reader.date_labels[rows].tolist() == y[:counts].argmax(axis=1).tolist()
            assert table.labels[index] == 5 + int(place)
            assert (table.groups or [])[index] == name.partition("/")[0]
            seen.append(key)
    assert len(seen) == len(set(seen)) == 72
    assert seen[6] == "train/b1-0"
    about = store.manifest.scenes["data-fieldrnn-2016"]
    assert about["splits"] == {"published": {"train": ["train"], "validation": ["test"], "test": ["eval"]}}
    assert (about["samples"], about["dates"][0]) == (72, "2015-12-31")
    store.close()
    assert ingest([one(tmp_path)], tmp_path / "store").written == 0


@pytest.mark.parametrize("options", [{"share": False}, {"last": True}, {"share": False, "last": True}, {"whole": True}])
def test_other_ways_to_write_days_and_values(tmp_path: Path, options: dict[str, bool]) -> None:
    batch = a_batch(**options)
    write_batch(tmp_path / "own" / "b0.pkl", batch)
    scene = one(tmp_path / "own", year=2017)
    assert scene.describe()["dates"][:2] == ["2016-12-31", "2017-01-20"]
    tile = scene.build(scene.tile_specs()[0])
    x = batch[0][0, :3, :-1] if options.get("last") else batch[0][0, :3, 1:]
    assert np.array_equal(tile.values[:3], x.astype(tile.values.dtype))
    whole = options.get("whole", False)
    assert tile.values.dtype == (np.uint16 if whole else np.float32)
    assert scene.fingerprint.scale == (1e-4 if whole else 1.0)
    assert tile.table.keys[:2] == ["b0-0", "b0-1"]
    assert scene.describe()["splits"] == {}


def test_dates_are_put_in_order_and_empty_samples_left_out(tmp_path: Path) -> None:
    x, y, counts = a_batch()
    x[0, :3], y[0, :3] = x[0, [2, 0, 1]], y[0, [2, 0, 1]]
    y[1, :4] = np.eye(23)[[0, 4, 3, 1]]  # nothing but cover
    y[2, :5] = np.eye(23)[[0, 0, 9, 7, 9]]
    y[3, 1] = 0
    counts[4] = 0
    write_batch(tmp_path / "b0.pkl", (x, y, counts))
    scene = one(tmp_path)
    tile = scene.build(scene.tile_specs()[0])
    assert isinstance(tile, SeriesTile)
    assert tile.date_labels is not None
    assert [day.isoformat() for day in from_days(tile.days[:3])] == ["2015-12-31", "2016-01-20", "2016-02-19"]
    assert tile.date_labels[:3].tolist() == [0, 5, 5]
    assert tile.table.labels.tolist() == [5, UNLABELLED, 9, 8, 10]
    assert tile.date_labels[12:15].tolist() == [0, UNLABELLED, 8]
    assert tile.table.keys == ["b0-0", "b0-1", "b0-2", "b0-3", "b0-5"]
    assert scene.describe()["left_out"] == {"empty": 1}


def test_names_of_classes(tmp_path: Path) -> None:
    write_batch(tmp_path / "a" / "b0.pkl", a_batch(classes=7))
    names = one(tmp_path / "a").fingerprint.classes.names
    assert names == ["cloud", "water", "snow", "cloud_shadow", "other", "class 06", "class 07"]
    (tmp_path / "a" / "classes.txt").write_text("0|cloud\n1|b\nc\nd\ne\nf\ng\n")
    scene = one(tmp_path / "a")
    assert scene.fingerprint.classes.names == ["cloud", "b", "c", "d", "e", "f", "g"]
    (tmp_path / "a" / "classes.txt").write_text("a\nb\n")
    with pytest.raises(InputError, match="unusable classes"):
        one(tmp_path / "a")


def test_batches_of_several_tiles(tmp_path: Path) -> None:
    for number in range(17):
        write_batch(tmp_path / "train" / f"b{number}.pkl", a_batch(samples=2 + number % 2, seed=number))
    write_batch(tmp_path / "test" / "b0.pkl", a_batch())
    scene = pickle.loads(pickle.dumps(one(tmp_path)))
    tiles = [scene.build(piece) for piece in scene.tile_specs()]
    assert [len(tile.table.keys) for tile in tiles] == [20, 20, 8]
    assert np.concatenate([tile.table.numbers for tile in tiles]).tolist() == list(range(1, 49))
    assert scene.describe()["splits"]["published"] == {"train": ["train"], "validation": [], "test": ["test"]}
    assert one(tmp_path, data="test").describe()["samples"] == 6
    write_batch(tmp_path / "other" / "b0.pkl", a_batch())
    with pytest.raises(UsageError, match=r"several collections"):
        open_tum(tmp_path)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_what_python_3_writes_is_read_too(tmp_path: Path, protocol: int) -> None:
    batch = a_batch()
    (tmp_path / "b0.pkl").write_bytes(pickle.dumps(batch, protocol))
    for mine, theirs in zip(batch, read_plain_pickle(tmp_path / "b0.pkl"), strict=True):
        assert np.array_equal(mine, theirs)
    x, y, counts = batch
    turned = [np.asfortranarray(x), y.astype(">f4"), counts.astype(np.uint8)]
    (tmp_path / "b0.pkl").write_bytes(pickle.dumps(turned, protocol))
    for mine, theirs in zip(turned, read_plain_pickle(tmp_path / "b0.pkl"), strict=True):
        assert np.array_equal(mine, theirs)


def test_batches_that_do_not_fit(tmp_path: Path) -> None:
    x, y, counts = a_batch()
    odd = x.copy()
    odd[..., 0], odd[..., -1] = 700.5, 900.5
    nan = x.copy()
    nan[0, 0, 5] = np.nan
    for batch, expected in (
        ((x, y, counts + 100), "not a batch"),
        ((x, y, counts - 9), "no observation"),
        ((x[:, :, :50], y, counts), "arrays of the shapes"),
        ((x[1:], y, counts), "not a batch"),
        ((x[0], y, counts), "not a batch"),
        ((odd, y, counts), "neither the first nor the last column is a day"),
        ((nan, y, counts), "a value is not a finite number"),
        ((x, y, counts * 0), "no observation"),
        ((x[:0], y[:0], counts[:0]), "no observation"),
    ):
        (tmp_path / "b0.pkl").write_bytes(pickle.dumps(batch, 2))
        with pytest.raises(InputError) as caught:
            open_tum(tmp_path)
        assert expected in str(caught.value)
        assert "\n" not in str(caught.value)
    write_batch(tmp_path / "b0.pkl", a_batch())
    write_batch(tmp_path / "b1.pkl", a_batch(classes=9))
    with pytest.raises(InputError, match="does not fit the others"):
        open_tum(tmp_path)


# --- Hostile pickles: refused in one line, and nothing of them happens


class Calls:
    def __init__(self, *what: Any) -> None:
        self._what = what

    def __reduce__(self) -> Any:
        return self._what


def shape_claim(shape: tuple[int, ...], content: bytes = b"") -> bytes:
    """An array that says to be of a shape."""
    sides = b"(" + b"".join(b"\x8a\x08" + struct.pack("<q", side) for side in shape) + b"t"
    kind = b"cnumpy\ndtype\nU\x02f8K\x00K\x01\x87R"
    start = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + sides + b"U\x01b\x87R"
    return start + b"(K\x01" + sides + kind + b"\x89U" + bytes([len(content)]) + content + b"tb\x85."


HOSTILE = {
    "system": (pickle.dumps(Calls(os.system, ("touch ran",)), 2), "posix.system"),
    "eval": (pickle.dumps(Calls(eval, ("open('ran', 'w')",)), 2), "__builtin__.eval"),
    "popen": (pickle.dumps((np.zeros(2), Calls(subprocess.Popen, (["touch", "ran"],))), 4), "subprocess.Popen"),
    "nested": (pickle.dumps([[np.zeros(2), [Calls(os.system, ("touch ran",))]]], 3), "posix.system"),
    "objects": (pickle.dumps((np.array([Calls(os.system, ("touch ran",))], dtype=object),), 2), "of the type 'O8'"),
    "text": (b"cos\nsystem\n(S'touch ran'\ntR.", "os.system"),
    "instance": (b"(S'touch ran'\nios\nsystem\n.", "it names os.system"),
    "new object": (b"\x80\x02cnumpy\nndarray\n)\x81.", "X is not a type object"),
    "extension": (b"\x80\x02\x82\x01.", "unregistered extension code"),
    "persistent": (b"\x80\x02U\x01aQ.", "unsupported persistent id"),
    "other numpy": (b"\x80\x02cnumpy\nload\nU\x01a\x85R.", "numpy.load"),
    "dotted name": (b"\x80\x04\x8c\x05numpy\x8c\x0cndarray.dump\x93.", "numpy.ndarray.dump"),
    "no name": (b"\x80\x04" + b"N" + b"\x85" * 9000 + b"N\x93.", "STACK_GLOBAL requires str"),
    "calls text": (b"\x80\x02U\x01aU\x01a\x85R.", "is not callable"),
    "calls a type": (b"\x80\x02cnumpy\nndarray\nK\x01\x85R.", "is not callable"),
    "fills a name": (b"\x80\x02cnumpy\nndarray\n}b.", "not a batch"),
    "fills a text": (b"\x80\x02U\x01aK\x01b.", "not a pickle"),
    "structured": (b"\x80\x02cnumpy\ndtype\nU\x03V16K\x00K\x01\x87R.", "of the type 'V16'"),
    "huge shape": (shape_claim((10**12,)), "does not match array size"),
    "huge product": (shape_claim((2**32, 2**32)), "not a pickle"),
    "negative side": (shape_claim((-1,), bytes(8)), "impossible dimension"),
    "never filled": (b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n)R\x85.", "not a batch"),
    "no arrays": (pickle.dumps((1, 2, 3), 2), "not a batch"),
    "long bytes": (b"\x80\x04\x8e" + struct.pack("<Q", 2**60) + b"abc.", ""),
    "longer bytes": (b"\x80\x04\x8e" + struct.pack("<Q", 2**64 - 1) + b"abc.", ""),
    "long text": (b"\x80\x02T" + struct.pack("<i", 2**31 - 1) + b"abc.", ""),
    "long frame": (b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b"N.", "not a batch"),
    "far memory": (b"\x80\x02Nr\xff\xff\xff\xff.", "not a batch"),
    "from nowhere": (b"\x80\x02h\x07.", ""),
    "empty stack": (b"\x80\x02R.", ""),
    "no mark": (b"\x80\x02K\x01t.", ""),
    "many steps": (b"\x80\x02" + b"N" * 20_000 + b".", "not a batch"),
    "itself": (b"\x80\x02]q\x01h\x01a.", "not a batch"),
    "nothing": (b"", ""),
    "not a pickle": (b"PK\x03\x04 something else", ""),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pickles_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    content, expected = HOSTILE[name]
    path = tmp_path / "b0.pkl"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_batch(path, 2016)
    assert "\n" not in str(caught.value)
    assert "b0.pkl" in str(caught.value)
    assert expected in str(caught.value)
    assert os.listdir(tmp_path) == ["b0.pkl"]


def test_the_first_of_these_would_have_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pickle.loads(HOSTILE["system"][0])
    assert (tmp_path / "ran").exists()


def test_hostile_pickles_take_no_memory(tmp_path: Path) -> None:
    for name, (content, _) in HOSTILE.items():
        (tmp_path / f"{name}.pkl").write_bytes(content)
    script = (
        "import sys\nfrom pathlib import Path\nfrom cropstar.errors import InputError\n"
        "from cropstar.sources.tum.points import read_batch\n"
        "for path in sorted(Path(sys.argv[1]).iterdir()):\n"
        "    try:\n        read_batch(path, 2016)\n    except InputError:\n        continue\n"
        "    raise SystemExit(path)\n"
        # Not ru_maxrss: it begins with what the parent had when it started the child.
        "status = Path('/proc/self/status').read_text()\nprint(status.split('VmHWM:')[1].split()[0])"
    )
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))  # noqa: E731
    done = run_python(script, tmp_path, timeout=60, check=True, before=limit)
    assert int(done.stdout) < 400_000  # kilobytes


WHOLE = Python2Pickler().dump(a_batch(samples=2))


@given(st.integers(0, len(WHOLE) - 1))
def test_truncated_pickles(tmp_path_factory: pytest.TempPathFactory, end: int) -> None:
    path = tmp_path_factory.getbasetemp() / "cut.pkl"
    path.write_bytes(WHOLE[:end])
    with pytest.raises(InputError):
        read_batch(path, 2016)


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_changed_bytes_are_arrays_or_refused(tmp_path_factory: pytest.TempPathFactory, place: int, byte: int) -> None:
    path = tmp_path_factory.getbasetemp() / "changed.pkl"
    path.write_bytes(WHOLE[:place] + bytes([byte]) + WHOLE[place + 1 :])
    try:
        batch = read_batch(path, 2016)
    except InputError:
        return
    assert batch.values.dtype == np.float64
