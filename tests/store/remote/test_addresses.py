"""Remote names: known as such, refused where nothing can be made of them, and never shown with a secret."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cropstar.errors import UsageError
from cropstar.store.remote.addresses import Remote, is_catalogue, is_remote, redact_all, redacted

WORD = st.text("abcdefghijklmnopqrstuvwxyz0123456789._-", min_size=1, max_size=12)
SECRET = "S3CR3T"


@given(host=WORD, path=st.lists(WORD, min_size=1, max_size=4), user=WORD, name=WORD)
def test_no_secret_is_shown(host: str, path: list[str], user: str, name: str) -> None:
    plain = f"https://{host}/{'/'.join(path)}"
    full = f"https://{user}:{SECRET}@{host}/{'/'.join(path)}?{name}={SECRET}#{SECRET}"
    assert redacted(full) == plain == str(Remote(full))
    assert SECRET not in repr(Remote(full))
    assert redact_all(f"--store={full} 'gs://b/k' {full}") == f"--store={plain} 'gs://b/k' {plain}"


def test_keys_of_buckets_keep_their_signs() -> None:
    assert redacted("s3://bucket/tile?.tif") == "s3://bucket/tile?.tif"
    assert Remote("gs://bucket/a/tile?.tif").is_pattern
    assert Remote("gs://bucket/a/b/").name == "b"


@pytest.mark.parametrize(
    "query",
    ["X-Amz-Signature=1&X-Amz-Date=2", "sig=1&se=2&sv=3", "X-Goog-Signature=1", "token=1", "Expires=1&Key-Pair-Id=2"],
)
def test_a_new_signature_is_no_other_file(query: str) -> None:
    plain = "https://host/a.tif?file=7"
    assert Remote(f"{plain}&{query}").key == Remote(plain).key
    assert Remote(plain).key != Remote("https://host/a.tif?file=8").key


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("ftp://host/a.tif", "ftp:// cannot be read"),
        ("http://host/a.tif", "use s3:// or gs:// or https://"),
        ("s3://", "without a host or bucket"),
        ("s3://bucket", "without a file or folder"),
        ("https://host/", "without a file or folder"),
        ("https://[::1/a.tif", "without a host"),
        (f"s3://user:{SECRET}@bucket/a.tif", "a user or password"),
    ],
)
def test_what_is_refused(text: str, part: str) -> None:
    with pytest.raises(UsageError) as caught:
        Remote.parse(text)
    assert part in str(caught.value)
    assert SECRET not in str(caught.value)


def test_the_web_is_not_written_to() -> None:
    with pytest.raises(UsageError, match="https:// cannot be written"):
        Remote.parse("https://host/map.tif", written=True)


def test_local_names_are_local() -> None:
    assert not any(map(is_remote, ["map.tif", "/a//b", "C:/x", "c://x", "s3:/x/y", "a b://c", ""]))
    assert all(map(is_remote, ["s3://x/y", "GS://x/y", "https://h/f", "abfs+x://h/f"]))


def test_catalogues_are_no_files() -> None:
    assert is_catalogue(("https://host/v1",), "https://host/v1")
    assert is_catalogue(("stac", "https://host/a.zip"), "https://host/a.zip")
    assert not is_catalogue(("https://host/a.TIF?sig=1",), "https://host/a.TIF?sig=1")
    assert not is_catalogue(("gs://bucket/v1",), "gs://bucket/v1")
