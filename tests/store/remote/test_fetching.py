"""Remote inputs: every file once, anew when it has changed, under its name only when it is whole."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path

import pytest

from cropstar.errors import CropstarError, InputError, ResourceError, UsageError
from cropstar.store.remote import transfers
from cropstar.store.remote.addresses import Remote
from cropstar.store.remote.transfers import fetch, scratch_folder, with_copies
from tests.store.remote.buckets import Bucket
from tests.store.remote.site import Site


def copies(folder: Path) -> dict[str, int]:
    """The objects that were fetched; whatever is fetched anew is another file."""
    return {path.name: path.stat().st_ino for path in (folder / "objects").iterdir()}


def failure(url: str, scratch: Path, *parts: str, kind: type[CropstarError] = InputError) -> str:
    with pytest.raises(kind) as caught:
        fetch(Remote.parse(url), scratch)
    line = str(caught.value)
    assert "\n" not in line
    assert "; " in line  # what to do
    assert all(part in line for part in parts), line
    left = [path for path in scratch.rglob("*") if path.is_file()] if scratch.exists() else []
    assert left == []
    return line


# --- buckets


def test_a_file_is_fetched_once_and_anew_when_it_has_changed(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("deep/tile.tif", b"first")
    remote = Remote.parse(bucket.url("deep/tile.tif"))
    [path] = fetch(remote, tmp_path / "scratch")
    assert (path.name, path.read_bytes()) == ("tile.tif", b"first")
    before = copies(tmp_path / "scratch")
    assert fetch(remote, tmp_path / "scratch") == [path]
    assert copies(tmp_path / "scratch") == before
    bucket.put("deep/tile.tif", b"other")  # of the same length
    [changed] = fetch(remote, tmp_path / "scratch")
    assert changed.read_bytes() == b"other"
    assert path.read_bytes() == b"first"  # whoever still reads it is not disturbed


def test_of_a_folder_only_the_changed_file_is_fetched_again(bucket: Bucket, tmp_path: Path) -> None:
    content = {"store/manifest.json": b"{}", "store/tiles/a.h5": b"a", "store/tiles/b.h5": b"bb", "storeroom/c": b"c"}
    for key, value in content.items():
        bucket.put(key, value)
    remote, scratch = Remote.parse(bucket.url("store/")), tmp_path / "scratch"
    [folder] = fetch(remote, scratch)
    assert folder.name == "store"
    found = {f"store/{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert found == {key: value for key, value in content.items() if key.startswith("store/")}
    before = copies(scratch)
    bucket.put("store/tiles/b.h5", b"BB")
    [again] = fetch(remote, scratch)
    assert (again / "tiles" / "b.h5").read_bytes() == b"BB"
    assert before.items() <= copies(scratch).items()
    assert len(copies(scratch)) == len(before) + 1


def test_patterns_and_shapefiles(bucket: Bucket, tmp_path: Path) -> None:
    for name in ("a.tif", "b.tif", "c.txt", "p.shp", "p.dbf", "p.prj", "pp.dbf"):
        bucket.put(f"in/{name}", name.encode())
    found = fetch(Remote.parse(bucket.url("in/*.tif")), tmp_path)
    assert [path.read_bytes() for path in found] == [b"a.tif", b"b.tif"]
    [shape] = fetch(Remote.parse(bucket.url("in/p.shp")), tmp_path)
    assert {path.name for path in shape.parent.iterdir()} == {"p.shp", "p.dbf", "p.prj"}
    given = {"raster": (Remote(bucket.url("in/*.tif")), "here.tif"), "model": None}
    assert with_copies(given, tmp_path) == {"raster": (*found, "here.tif"), "model": None}
    with pytest.raises(UsageError, match="a pattern where one model is expected"):
        with_copies({"model": Remote(bucket.url("in/*.tif"))}, tmp_path)


def test_copies_on_two_machines_are_alike(bucket: Bucket, tmp_path: Path) -> None:
    """Blocks of a map are found again by size and time of the input."""
    bucket.put("tile.tif", b"content")
    times = [fetch(Remote(bucket.url("tile.tif")), tmp_path / name)[0].stat().st_mtime for name in ("a", "b")]
    assert times[0] == times[1]


def test_what_a_bucket_refuses(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failure(bucket.url("nothing.tif"), tmp_path / "s", "no such file or folder", bucket.url("nothing.tif"))
    failure(bucket.url("nothing/*.tif"), tmp_path / "s", "no such file or folder")
    failure(f"{bucket.scheme}://elsewhere/tile.tif", tmp_path / "s", "no such")
    for name in bucket.environment:
        if name.startswith(("AWS_ACCESS", "AWS_SECRET", "GOOGLE_APP")):
            monkeypatch.delenv(name)
    line = failure(bucket.url("nothing.tif"), tmp_path / "s", "no credentials")
    assert "AWS_PROFILE" in line or "GOOGLE_APPLICATION_CREDENTIALS" in line


@pytest.mark.parametrize("bucket", ["gs"], indirect=True)
def test_access_denied_without_a_word_of_the_server(bucket: Bucket, tmp_path: Path) -> None:
    line = failure("gs://forbidden/tile.tif", tmp_path / "s", "access denied")
    assert not any(secret in line for secret in bucket.secrets)


@pytest.mark.parametrize("bucket", ["gs"], indirect=True)
def test_keys_that_lead_elsewhere(bucket: Bucket, tmp_path: Path) -> None:
    bucket.put("in/../../../evil", b"x")
    bucket.put("in/good", b"x")
    failure(bucket.url("in"), tmp_path / "deep" / "s", "a name that leads out of its folder")


# --- the web


def test_a_signature_may_change(site: Site, tmp_path: Path) -> None:
    site.files["tile.tif"], site.versions["tile.tif"] = b"first", '"1"'
    for signature in ("one", "two"):
        [path] = fetch(Remote.parse(f"{site.address}/tile.tif?sig={signature}"), tmp_path)
        assert path.read_bytes() == b"first"
    assert site.fetched == ["/tile.tif?sig=one"]
    site.files["tile.tif"], site.versions["tile.tif"] = b"other", '"2"'
    assert fetch(Remote.parse(f"{site.address}/tile.tif"), tmp_path)[0].read_bytes() == b"other"


def test_a_server_without_versions_is_asked_every_time(site: Site, tmp_path: Path) -> None:
    for content in (b"first", b"other"):
        site.files["tile.tif"] = content
        assert fetch(Remote.parse(f"{site.address}/tile.tif"), tmp_path)[0].read_bytes() == content
    assert len(site.fetched) == 2


def test_a_download_that_breaks_off(site: Site, tmp_path: Path) -> None:
    site.files["tile.tif"], site.versions["tile.tif"], site.broken["tile.tif"] = bytes(10**6), '"1"', 1000
    failure(f"{site.address}/tile.tif", tmp_path / "s", "an incomplete download", "run the same command again")
    site.broken.clear()
    assert len(fetch(Remote.parse(f"{site.address}/tile.tif"), tmp_path / "s")[0].read_bytes()) == 10**6


@pytest.mark.parametrize(("status", "part"), [(401, "access denied"), (403, "access denied"), (404, "no such file")])
def test_what_the_web_refuses(site: Site, tmp_path: Path, status: int, part: str) -> None:
    site.statuses["tile.tif"] = status
    line = failure(f"{site.address.replace('//', '//user:S3CR3T@')}/tile.tif?sig=S3CR3T", tmp_path / "s", part)
    assert "S3CR3T" not in line
    assert f"{site.address}/tile.tif" in line


def test_servers_that_cannot_be_had(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failure("https://127.0.0.1:9/tile.tif", tmp_path / "s", "no connection")
    monkeypatch.setattr(transfers, "READ_SECONDS", 0.2)
    site.silent.add("tile.tif")
    failure(f"{site.address}/tile.tif", tmp_path / "s", "no answer in time")
    monkeypatch.delenv("SSL_CERT_FILE")
    failure(f"{site.address}/other.tif", tmp_path / "s", "not trusted", "certificate")


def test_a_stream_without_end(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(transfers.ROOM + 2**24))
    site.endless.add("tile.tif")
    failure(f"{site.address}/tile.tif", tmp_path / "s", "a file that is too large")
    site.files["large.tif"] = bytes(2**24 + 1)
    failure(f"{site.address}/large.tif", tmp_path / "s", "the disk is too small", "--scratch", kind=ResourceError)


# --- Amazon


@pytest.mark.parametrize(
    ("name", "settings", "part"),
    [
        ("NoCredentialsError", {}, "no credentials"),
        ("ProfileNotFound", {"profile": "S3CR3T"}, "no credentials"),
        ("EndpointConnectionError", {"endpoint_url": "https://S3CR3T"}, "no connection"),
        ("ConnectTimeoutError", {"endpoint_url": "https://S3CR3T"}, "no answer in time"),
        ("ReadTimeoutError", {"endpoint_url": "https://S3CR3T"}, "no answer in time"),
    ],
)
def test_what_the_client_of_amazon_raises(name: str, settings: dict[str, str], part: str) -> None:
    raised = getattr(pytest.importorskip("botocore.exceptions"), name)(**settings)
    with pytest.raises(InputError) as caught, transfers.one_line_errors(Remote("s3://bucket/tile.tif")):
        raise raised
    assert part in str(caught.value)
    assert "S3CR3T" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "code", "part"),
    [
        (403, "AccessDenied", "access denied"),
        (404, "NoSuchKey", "no such file"),
        (404, "NoSuchBucket", "no such bucket"),
    ],
)
def test_what_amazon_answers(status: int, code: str, part: str) -> None:
    messages = {"NoSuchBucket": "The specified bucket does not exist"}
    reply = {"Error": {"Code": code, "Message": messages.get(code, "")}, "ResponseMetadata": {"HTTPStatusCode": status}}
    raised = pytest.importorskip("botocore.exceptions").ClientError(reply, "HeadObject")
    with pytest.raises(InputError) as caught, transfers.one_line_errors(Remote("s3://bucket/tile.tif")):
        raise raised
    assert part in str(caught.value)


# --- the scratch


def test_a_scratch_that_others_can_write_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    folder = scratch_folder(None)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert scratch_folder(None) == folder
    folder.chmod(0o777)
    with pytest.raises(InputError, match="not a safe place"):
        scratch_folder(None)
