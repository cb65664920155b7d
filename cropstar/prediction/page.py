"""The map as one self-contained HTML file.

The picture and the numbers behind it (class and confidence of each pixel shown) lie in the file, so do the outlines of
the parcels, all bounded in size. `map.html#row,column` opens with that pixel of the picture chosen.
"""

from __future__ import annotations

import base64
import io
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.geo.grid import Grid, hectares_per_pixel
from cropstar.prediction.parcels import AGREES, CLASS, DECLARED, HECTARES, NUMBER, PROBABILITY, SECOND, SHARE
from cropstar.prediction.styles import CONFIDENCE_RAMP
from cropstar.prediction.trust import COUNTED, Trust
from cropstar.reports.map import NODATA_GROUND, is_mask
from cropstar.reports.wording import areas, html_templates, shares, write_html
from cropstar.sources.vectors import keys_of, open_vector
from cropstar.store.classes import NODATA, ClassTable

MAXIMUM_PARCELS = 20_000
MAXIMUM_CORNERS = 300_000  # some megabytes of text
TOLERANCE = 0.4  # pixels of the picture


def write_page(
    path: Path,
    thinned: NDArray[np.uint8],
    confidence: NDArray[np.uint8],
    grid: Grid,
    classes: ClassTable,
    counts: NDArray[np.int64],
    *,
    title: str,
    parcels: Path | None = None,
    trust: Trust | None = None,
) -> None:
    """thinned and confidence (h, w) are of the same pixels; grid and counts are the whole map's."""
    environment = html_templates("cropstar.prediction")
    height, width = thinned.shape
    step = (grid.width / width, grid.height / height)  # pixels of the map to one of the picture
    fields, left_out = ([], 0) if parcels is None else outlines_of(parcels, grid, step)
    data = {
        "width": width,
        "height": height,
        "transform": list(grid.transform),
        "step": step,
        "classes": {str(entry.number): {"name": entry.name, "colour": entry.colour} for entry in classes},
        "ramp": [[value, colour] for value, colour in CONFIDENCE_RAMP],
        "values": _packed_pixels(thinned),
        "confidence": _packed_pixels(confidence),
        "parcels": fields,
    }
    rows, unseen = legend_rows(counts, grid, classes)
    html = environment.get_template("map.html.j2").render(
        title=title,
        data=data,
        width=width,
        height=height,
        picture=base64.b64encode(picture_of(thinned, classes)).decode("ascii"),
        rows=rows,
        unseen=unseen,
        nodata=NODATA_GROUND,
        with_areas=hectares_per_pixel(grid) is not None,
        counted=COUNTED,
        thinned=max(step) > 1,
        parcels=parcels is not None,
        left_out=left_out,
        trust=trust or Trust(),
        ramp=CONFIDENCE_RAMP,
    )
    write_html(path, html)


def picture_of(thinned: NDArray[np.uint8], classes: ClassTable) -> bytes:
    """A PNG with the classes as its palette; what was not seen is transparent."""
    from PIL import Image

    palette = np.zeros((256, 3), dtype=np.uint8)
    for entry in classes:
        palette[entry.number] = entry.rgb
    image = Image.frombytes("P", thinned.shape[::-1], np.ascontiguousarray(thinned).tobytes())
    image.putpalette(palette.tobytes())
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True, transparency=bytes([255] * NODATA + [0]))
    return buffer.getvalue()


def legend_rows(counts: NDArray[np.int64], grid: Grid, classes: ClassTable) -> tuple[list[dict[str, str]], str]:
    """The classes that are there, the largest first, as on the map's picture; and what was not seen, "" if nothing."""
    present = sorted((entry for entry in classes if counts[entry.number]), key=lambda entry: -counts[entry.number])
    pixels = [int(counts[entry.number]) for entry in present]
    unseen = int(counts[NODATA])
    hectares = hectares_per_pixel(grid)
    texts = [""] * len(pixels) if hectares is None else areas([number * hectares for number in [*pixels, unseen]])
    mapped = sum(number for entry, number in zip(present, pixels, strict=True) if not is_mask(entry)) or 1
    share_texts = shares([number / mapped for number in pixels])
    rows = [
        {"name": entry.name, "colour": entry.colour, "area": area, "share": "" if is_mask(entry) else share}
        for entry, area, share in zip(present, texts[: len(pixels)], share_texts, strict=True)
    ]
    return rows, "" if not unseen else texts[-1] if hectares is not None else f"{unseen:,}"


def outlines_of(parcels: Path, grid: Grid, step: tuple[float, float]) -> tuple[list[dict[str, Any]], int]:
    """Parcels that have a class as paths on the picture, and how many were too many: the smallest go."""
    import pandas
    import shapely

    frame = open_vector(parcels)
    frame = frame.assign(key=keys_of(frame))[frame[CLASS].notna()]
    shapes = frame.geometry.to_crs(grid.rasterio_crs).to_numpy()

    def on_picture(places: NDArray[np.float64]) -> NDArray[np.float64]:
        columns, rows = ~grid.affine @ (places[:, 0], places[:, 1])
        return np.stack([columns / step[0], rows / step[1]], axis=1)

    drawn = shapely.simplify(shapely.transform(shapes, on_picture), TOLERANCE)
    order = np.argsort(-shapely.area(drawn), kind="stable")
    corners = np.cumsum(shapely.get_num_coordinates(drawn)[order])
    drawn_rows = order[: min(MAXIMUM_PARCELS, int((corners <= MAXIMUM_CORNERS).sum()))]
    fields = []
    for row in drawn_rows:
        facts = frame.iloc[int(row)]
        fields.append(
            {
                "path": _svg_path(drawn[row]),
                "key": str(facts["key"]),
                "number": int(facts[NUMBER]),
                "probability": round(float(facts[PROBABILITY]), 4),
                "share": _figure(facts[SHARE]),
                "second": _text(facts[SECOND]),
                "declared": _text(facts[DECLARED]),
                "agrees": None if pandas.isna(facts[AGREES]) else bool(facts[AGREES]),
                "hectares": round(float(facts[HECTARES]), 4),
            }
        )
    return fields, len(order) - len(drawn_rows)


def _figure(value: Any) -> float | None:
    """A share; None where there is none, which JSON has no number for."""
    return round(float(value), 4) if np.isfinite(value) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _svg_path(shape: Any) -> str:
    """SVG's words for an area; its holes too."""
    import shapely

    rings = shapely.get_rings(shapely.get_parts(shape))
    pieces = []
    for ring in rings:
        corners = shapely.get_coordinates(ring)[:-1]
        pieces.append("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in corners) + "Z")
    return "".join(pieces)


def _packed_pixels(values: NDArray[np.uint8]) -> str:
    return base64.b64encode(zlib.compress(np.ascontiguousarray(values).tobytes(), 9)).decode("ascii")
