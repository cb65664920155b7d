"""The API that tests of STAC ask, and the real products in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources.examples.stac_api import Api, serving
from tests.sources.examples.stac_catalogue import item_of

BAND = re.compile(r"_(B\d\d|B8A|SCL)_\d\dm\.jp2$")
NAME = re.compile(r"_(\d{4})(\d{2})(\d{2})T.*_N(\d{2})(\d{2})_")


@pytest.fixture(scope="session", autouse=True)
def _direct_connections() -> Iterator[None]:
    """This machine is reached without the proxy that the environment may name."""
    pytest.importorskip("pystac_client", reason="the extra 'stac' is not installed")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("NO_PROXY", "no_proxy"):
            patch.setenv(name, "127.0.0.1,localhost")
        yield


@pytest.fixture
def api() -> Iterator[Api]:
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def real_products(real_data: Path) -> list[Path]:
    return sorted((real_data / "sentinel2-t31tej" / "safe").glob("*.SAFE"), key=lambda path: path.name[11:19])


@pytest.fixture(scope="module")
def real_api(real_products: list[Path]) -> Iterator[Api]:
    """The ten real products as items."""
    with serving() as running:
        running.page = 4  # three pages
        for product in real_products:
            files = {found[1]: path for path in sorted(product.rglob("*.jp2")) if (found := BAND.search(path.name))}
            said = NAME.search(product.name)
            assert said is not None
            moment = f"{said[1]}-{said[2]}-{said[3]}T10:40:00Z"
            properties = {"s2:processing_baseline": f"{said[4]}.{said[5]}", "eo:cloud_cover": 10.0}
            running.items.append(item_of(running, product.stem, moment, files, properties))
        yield running
