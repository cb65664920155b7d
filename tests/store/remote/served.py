"""Fixtures: a bucket of each kind and a web server, with an environment that knows them and no other host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.remote.buckets import Bucket, amazon, google
from tests.store.remote.site import Site, serving_https

ELSEWHERE = "http://127.0.0.1:9"  # no test reaches the network, whatever goes wrong
NEEDS = {"gs": ("gcsfs", "cryptography"), "s3": ("s3fs", "moto", "boto3")}
SETTINGS = ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home without credentials, and no way out."""
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, ELSEWHERE)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return home


@pytest.fixture(params=["gs", "s3"])
def bucket(
    request: pytest.FixtureRequest, alone: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Bucket]:
    kind: str = request.param
    for package in NEEDS[kind]:
        pytest.importorskip(package, reason=f"{package} is not installed: no {kind}:// to test with")
    with google(tmp_path) if kind == "gs" else amazon() as bucket:
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        yield bucket


@pytest.fixture
def site(alone: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Site]:
    for package in ("aiohttp", "cryptography"):
        pytest.importorskip(package)
    with serving_https(tmp_path) as site:
        monkeypatch.setenv("SSL_CERT_FILE", str(site.certificate))
        yield site
