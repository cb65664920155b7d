"""Remote outputs: what others belong to is uploaded last, a stopped upload goes on, nothing is replaced unasked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cropstar.errors import InputError, PartialResult, UsageError
from cropstar.store.remote.addresses import Remote
from cropstar.store.remote.transfers import Delivery, make_and_deliver
from tests.store.remote.buckets import Bucket

MAP = ("map-confidence.tif", "map.png", "map.qml", "map.tif", "map.tif.aux.xml")


class Maker:
    """Writes the files of an output, and counts how often."""

    def __init__(self, *names: str, failure: Exception | None = None) -> None:
        self.names, self.failure, self.calls = names, failure, 0

    def __call__(self, delivery: Delivery, arguments: dict[str, Any]) -> None:
        self.calls += 1
        assert arguments["overwrite"]  # of what lies in the scratch
        output: Path = arguments["output"]
        assert output == delivery.local
        for name in (*self.names, ".map.tif.blocks/0.h5"):
            path = output.parent / name if delivery.is_file else output / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{name} {arguments['seed']}")
        if self.failure is not None:
            raise self.failure


def deliver(maker: Maker, url: str, scratch: Path, *, seed: int = 0, overwrite: bool = False, head: str = "") -> None:
    arguments = {"output": Remote(url), "overwrite": overwrite, "seed": seed}
    make_and_deliver(maker, arguments, "output", head, scratch)


def test_a_map_and_what_stands_beside_it(bucket: Bucket, tmp_path: Path) -> None:
    deliver(Maker(*MAP), bucket.url("out/map.tif"), tmp_path)
    assert bucket.contents() == {f"out/{name}": f"{name} 0".encode() for name in MAP}
    assert not [path for path in tmp_path.rglob("*.tif") if path.is_file()]  # nothing stays behind
    with pytest.raises(UsageError, match="the output exists"):
        deliver(Maker(*MAP), bucket.url("out/map.tif"), tmp_path, seed=1)
    assert bucket.contents()["out/map.tif"] == b"map.tif 0"
    deliver(Maker(*MAP), bucket.url("out/map.tif"), tmp_path, seed=1, overwrite=True)
    assert bucket.contents()["out/map.tif"] == b"map.tif 1"


def test_a_file_beside_it_is_not_replaced_either(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("out/map.png", b"of somebody else")
    with pytest.raises(UsageError, match=r"the output exists in .*out/map\.png"):
        deliver(Maker(*MAP), bucket.url("out/map.tif"), tmp_path)
    assert bucket.contents() == {"out/map.png": b"of somebody else"}


@pytest.mark.parametrize("bucket", ["gs"], indirect=True)
@pytest.mark.parametrize(
    ("url", "names", "last", "head"),
    [
        ("out/map.tif", MAP, "out/map.tif", ""),
        ("out", ("manifest.json", "tiles/a.h5", "tiles/b.h5"), "out/manifest.json", "manifest.json"),
    ],
)
def test_a_stopped_upload_goes_on(
    bucket: Bucket, tmp_path: Path, url: str, names: tuple[str, ...], last: str, head: str
) -> None:
    maker = Maker(*names)
    bucket.failing.add(last)
    with pytest.raises(InputError, match="access denied"):
        deliver(maker, bucket.url(url), tmp_path, head=head)
    assert set(bucket.contents()) == {f"out/{name}" for name in names} - {last}  # all but the one that tells of them
    other = Maker(*names)
    with pytest.raises(UsageError, match="the output exists"):  # what is there is not of that job
        deliver(other, bucket.url(url), tmp_path, seed=1, head=head)
    bucket.failing.clear()
    deliver(maker, bucket.url(url), tmp_path, head=head)
    assert maker.calls == 1
    assert bucket.uploads[-1] == last
    assert bucket.contents() == {f"out/{name}": f"{name} 0".encode() for name in names}


def test_what_was_made_of_several_is_uploaded(bucket: Bucket, tmp_path: Path) -> None:
    with pytest.raises(PartialResult):
        deliver(Maker("a-crops.tif", failure=PartialResult("not all maps")), bucket.url("maps"), tmp_path)
    assert set(bucket.contents()) == {"maps/a-crops.tif"}


def test_a_job_that_failed_uploads_nothing(bucket: Bucket, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="bad"):
        deliver(Maker(*MAP, failure=InputError("bad")), bucket.url("out/map.tif"), tmp_path)
    assert bucket.contents() == {}
