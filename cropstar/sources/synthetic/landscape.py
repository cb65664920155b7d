"""The ground plan: roads cut the land into blocks, blocks are divided into parcels; woods and houses lie between."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date

import geopandas as gpd
import numpy as np
import shapely
from rasterio.crs import CRS
from rasterio.features import rasterize
from rasterio.transform import from_origin
from shapely.affinity import rotate
from shapely.geometry import LineString, Point, Polygon, box
from shapely.geometry.base import BaseGeometry
from shapely.ops import split

from cropstar.errors import UsageError
from cropstar.geo.grid import Grid

GENERATOR = "cropstar synthetic"
GENERATOR_VERSION = "1"  # raise it with every change that changes a pixel or a parcel: old files are then made anew

SMALLEST, LARGEST = 32, 4096  # below, no room for parcels; above, one date no longer fits in modest memory
FEWEST, MOST = 3, 48  # beyond that a season is too short for five-day revisits


@dataclass(frozen=True)
class SceneOptions:
    """Equal options give equal scenes, byte for byte."""

    seed: int = 1
    size: int = 400  # pixels per side
    dates: int = 24  # acquisitions in the season
    start: date = date(2023, 3, 1)

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise UsageError("invalid seed for the synthetic scene", why=f"{self.seed} is negative")
        if not SMALLEST <= self.size <= LARGEST:
            why = f"{self.size} pixels is not within {SMALLEST} to {LARGEST}"
            raise UsageError("invalid size for the synthetic scene", why=why)
        if not FEWEST <= self.dates <= MOST:
            why = f"{self.dates} dates is not within {FEWEST} to {MOST}"
            raise UsageError("invalid number of dates for the synthetic scene", why=why)

    def random(self, *stream: int) -> np.random.Generator:
        """An independent stream of numbers a purpose, so that one part can change without stirring the others."""
        return np.random.default_rng([self.seed, *stream])

    def tags(self) -> dict[str, str]:
        """The tags of both files, by which a rerun knows whether it would write the same again."""
        return {
            "GENERATOR": GENERATOR,
            "GENERATOR_VERSION": GENERATOR_VERSION,
            "SEED": str(self.seed),
            "SIZE": str(self.size),
            "DATES": str(self.dates),
            "START": self.start.isoformat(),
        }


# --- The land

EPSG = 32632
RESOLUTION = 10.0
ORIGIN = (612_000.0, 5_412_000.0)  # upper left corner
HECTARE = 10_000.0
SMALLEST_PARCEL, LARGEST_PARCEL = 0.5 * HECTARE, 15.0 * HECTARE
USUAL_PARCEL = 7.4 * HECTARE  # a piece of land up to about this size is not cut again
TRACK_BLOCK = 45.0 * HECTARE  # a cut through more land than this is a farm track, below it a mere furrow
TRACK_WIDTH, FURROW_WIDTH, ROAD_WIDTH = 11.0, 3.0, 13.0


@dataclass(frozen=True)
class Landscape:
    """Polygons in metres. Whatever is in no parcel carries no label."""

    grid: Grid
    parcels: gpd.GeoDataFrame  # parcel_id, crop, geometry
    roads: BaseGeometry
    woods: BaseGeometry
    village: BaseGeometry
    water: BaseGeometry


def _scene_grid(size: int) -> Grid:
    """A square of 10 m pixels in UTM zone 32 north."""
    transform = from_origin(*ORIGIN, RESOLUTION, RESOLUTION)
    return Grid(CRS.from_epsg(EPSG).to_wkt(), tuple(transform)[:6], size, size)


def make_landscape(options: SceneOptions) -> Landscape:
    random = options.random(1)
    grid = _scene_grid(options.size)
    extent = box(*grid.bounds)
    side = options.size * RESOLUTION

    heart = _random_place(random, extent, 0.3, 0.7)
    village = _blob(random, heart, min(290.0, 0.07 * side)) if side > 1200 else Polygon()
    water = _blob(random, _random_place(random, extent, 0.15, 0.85), min(90.0, 0.05 * side))
    wood_count = max(1, round((side / 1600.0) ** 2))
    woods = shapely.union_all(
        [
            _blob(random, _random_place(random, extent, 0.0, 1.0), min(330.0, 0.11 * side) * random.uniform(0.45, 1.0))
            for _ in range(wood_count)
        ]
        + [_winding(random, extent, water.centroid, 0.12).buffer(random.uniform(9.0, 14.0))]  # trees along the stream
    )
    road_lines = [_winding(random, extent, heart, 0.03)]
    road_lines += [
        _winding(random, extent, _random_place(random, extent, 0.1, 0.9), 0.03) for _ in range(round(side / 1000.0) - 1)
    ]
    roads = shapely.union_all([line.buffer(ROAD_WIDTH / 2) for line in road_lines])

    taken = shapely.union_all([roads, woods.buffer(6.0), village.buffer(12.0), water.buffer(10.0)])
    shapes = []
    for block in _polygons(extent.buffer(-RESOLUTION / 2).difference(taken)):
        shapes += _divide(random, block, options)
    crops = assign_crops(options.random(2), len(shapes))
    parcels = gpd.GeoDataFrame(
        {"parcel_id": np.arange(1, len(shapes) + 1, dtype=np.int32), "crop": crops}, geometry=shapes, crs=f"EPSG:{EPSG}"
    )
    woods = woods.difference(shapely.union_all([village, water]))
    return Landscape(grid, parcels, roads, woods.intersection(extent), village.intersection(extent), water)


def burn(grid: Grid, geometry: BaseGeometry) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """The pixels whose centre is inside a geometry."""
    if geometry.is_empty:
        return np.zeros(grid.shape, dtype=np.bool_)
    mask = rasterize([geometry], out_shape=grid.shape, transform=grid.affine, dtype="uint8")
    return np.asarray(mask, dtype=np.bool_)


def _divide(random: np.random.Generator, block: Polygon, options: SceneOptions) -> list[Polygon]:
    """Cut a block in two again and again until each piece is a parcel.

    Cuts through much land are tracks; what lies between tracks has its own lie, grain and size of parcels.
    """
    pending, parcels = [block], []
    while pending:
        piece = pending.pop()
        angle = _long_side_angle(piece) + random.normal(0.0, 4.0)
        if piece.area > TRACK_BLOCK:
            track = _cutting_line(random, piece, angle, 1.0).buffer(TRACK_WIDTH / 2)
            pending += _polygons(piece.difference(track))
        else:
            # A small scene gets smaller parcels: with a handful of large ones there would be nothing to split by.
            habit = random.lognormal(math.log(USUAL_PARCEL), 0.35) * min(1.0, options.size / 150.0)
            grain = random.uniform(1.3, 3.2) ** random.choice([-1.0, 1.0])  # longer than wide, one way or the other
            parcels += _parcels(random, piece, angle, grain, habit)
    return parcels


def _parcels(random: np.random.Generator, block: Polygon, angle: float, grain: float, habit: float) -> list[Polygon]:
    pending, parcels = [block], []
    while pending:
        piece = pending.pop()
        wanted = min(habit * random.lognormal(0.0, 0.35), LARGEST_PARCEL)
        if piece.area <= max(wanted, 2.0 * SMALLEST_PARCEL):
            parcels += _fields(piece)
        else:
            pending += _polygons(split(piece, _cutting_line(random, piece, angle, grain)))
    return parcels


def _cutting_line(random: np.random.Generator, piece: Polygon, angle: float, grain: float) -> LineString:
    """A line near the middle, never quite straight on; the larger the grain, the rather across the angle."""
    left, bottom, right, top = rotate(piece, -angle, origin=(0.0, 0.0)).bounds
    width, height = right - left, top - bottom
    share, slant = random.uniform(0.36, 0.64), math.tan(math.radians(random.normal(0.0, 3.0)))
    reach = max(width, height)
    if grain * width / height > random.uniform(0.75, 1.3):
        x = left + share * width
        line = LineString([(x - slant * reach, bottom - reach), (x + slant * reach, top + reach)])
    else:
        y = bottom + share * height
        line = LineString([(left - reach, y - slant * reach), (right + reach, y + slant * reach)])
    return rotate(line, angle, origin=(0.0, 0.0))


def _fields(piece: Polygon) -> list[Polygon]:
    """The fields of a piece of land: without furrows, and not too small or thin for a machine."""
    farmed = piece.buffer(-FURROW_WIDTH / 2 - 9.0, join_style="mitre").buffer(9.0, join_style="mitre")
    farmed = farmed.intersection(piece.buffer(-FURROW_WIDTH / 2))
    return [
        shapely.set_precision(part.simplify(1.0), 0.01)
        for part in _polygons(farmed)
        if SMALLEST_PARCEL * 1.02 < part.area < LARGEST_PARCEL and not part.buffer(-16.0).is_empty
    ]


def _polygons(geometry: BaseGeometry) -> list[Polygon]:
    return [part for part in shapely.get_parts(geometry) for part in shapely.get_parts(part) if part.area > 0.0]


def _long_side_angle(polygon: Polygon) -> float:
    corners = shapely.get_coordinates(shapely.minimum_rotated_rectangle(polygon))
    sides = np.diff(corners, axis=0)
    longest = sides[np.argmax(np.hypot(sides[:, 0], sides[:, 1]))]
    return math.degrees(math.atan2(longest[1], longest[0]))


def _random_place(random: np.random.Generator, extent: Polygon, low: float, high: float) -> Point:
    left, bottom, right, top = extent.bounds
    x, y = random.uniform(low, high, 2)
    return Point(left + x * (right - left), bottom + y * (top - bottom))


def _blob(random: np.random.Generator, centre: Point, radius: float) -> Polygon:
    """A roundish outline with a few bays and noses."""
    angles = np.linspace(0.0, 2.0 * np.pi, 72, endpoint=False)
    outline = np.ones_like(angles)
    for order in range(2, 9):
        outline += random.normal(0.0, 0.42 / order) * np.cos(order * angles + random.uniform(0.0, 2.0 * np.pi))
    reach = radius * np.clip(outline, 0.4, 1.7)
    return Polygon(np.column_stack([centre.x + reach * np.cos(angles), centre.y + reach * np.sin(angles)])).buffer(0)


def _winding(random: np.random.Generator, extent: Polygon, through: Point, swing: float) -> LineString:
    """A line from edge to edge through a place, swinging out by a share of the scene's side."""
    side = extent.bounds[2] - extent.bounds[0]
    along = np.linspace(-1.5, 1.5, 90)
    offset = np.zeros_like(along)
    for order in (1.3, 2.9, 6.1):
        wave = random.normal(0.0, swing / order) * np.sin(order * np.pi * along + random.uniform(0.0, 2.0 * np.pi))
        offset += wave - np.interp(0.0, along, wave)  # no swing at the place itself
    direction = random.uniform(0.0, np.pi)
    x = through.x + side * (along * np.cos(direction) - offset * np.sin(direction))
    y = through.y + side * (along * np.sin(direction) + offset * np.cos(direction))
    return LineString(np.column_stack([x, y]))


# --- Crops

BANDS = ("B02", "B03", "B04", "B05", "B07", "B08", "B11", "B12")

# A crop with fewer parcels than this cannot be trained, validated and tested on different fields.
FEWEST_PARCELS = 4


@dataclass(frozen=True)
class Crop:
    """Days are days of the year for an average field; `leaf` multiplies the green leaf's reflectance by band."""

    name: str
    share: float  # of all parcels
    greenup: float  # half of the canopy is there
    greenup_width: float
    ripening: float  # half of the canopy is dry
    ripening_width: float
    harvest: float
    leaf: tuple[float, ...]
    winter_cover: float = 0.0  # share of the canopy that is there at the end of winter
    peak: float = 0.95  # ground covered by the full canopy
    brown: float = 0.0  # dry canopy: 0 straw, 1 brown stalks
    residue: float = 0.7  # ground under stubble after the harvest
    flower: tuple[float, float, float] | None = None  # day, width, strength
    harvest_spread: float = 6.0
    mown: bool = False


# Most common first: a scene with few parcels keeps the head of this list. The timing of neighbours overlaps on
# purpose (wheat and barley; maize, soybeans and sunflower; beet and potatoes): one date or a lazy model must not do.
#        name, share, greenup and width, ripening and width, harvest, then leaf: B02 B03 B04 B05 B07 B08 B11 B12
CROPS: tuple[Crop, ...] = (
    Crop("winter wheat", 0.170, 105, 11, 192, 7, 210, (1.00, 1.00, 1.00, 1.00, 1.00, 1.00, 1.00, 1.00),
         winter_cover=0.33),
    Crop("grassland", 0.150, 90, 14, 420, 20, 420, (1.10, 1.12, 1.15, 1.12, 0.92, 0.90, 1.08, 1.12),
         winter_cover=0.62, peak=0.90, mown=True),
    Crop("maize", 0.140, 166, 9, 262, 10, 274, (0.98, 1.00, 1.04, 1.00, 0.91, 0.90, 0.95, 0.97),
         peak=0.93, brown=0.8, residue=0.5),
    Crop("rapeseed", 0.110, 90, 10, 180, 9, 202, (1.08, 1.08, 1.02, 1.10, 1.07, 1.06, 0.93, 0.92),
         winter_cover=0.50, brown=0.3, residue=0.6, flower=(122, 13, 0.8)),
    Crop("winter barley", 0.100, 92, 11, 167, 7, 187, (1.04, 1.06, 1.05, 1.06, 0.97, 0.96, 1.04, 1.06),
         winter_cover=0.40),
    Crop("sugar beet", 0.080, 155, 9, 330, 20, 286, (0.98, 1.05, 0.97, 1.02, 1.12, 1.13, 0.90, 0.86),
         peak=0.96, brown=1.0, residue=0.1, harvest_spread=12),
    Crop("potatoes", 0.070, 149, 8, 228, 10, 251, (1.04, 1.07, 1.06, 1.06, 1.05, 1.06, 0.92, 0.90),
         peak=0.92, brown=1.0, residue=0.1, harvest_spread=9),
    Crop("soybeans", 0.065, 179, 9, 257, 7, 275, (1.02, 1.09, 1.00, 1.10, 1.10, 1.12, 1.06, 1.06),
         peak=0.93, brown=0.7, residue=0.4),
    Crop("sunflower", 0.060, 167, 9, 235, 8, 257, (1.06, 1.04, 1.08, 1.02, 1.00, 0.98, 1.03, 1.07),
         peak=0.89, brown=1.0, residue=0.4, flower=(201, 11, 0.40)),
    Crop("spring barley", 0.055, 121, 9, 186, 7, 205, (1.04, 1.06, 1.05, 1.06, 0.97, 0.96, 1.04, 1.06)),
)  # fmt: skip


def crops_for(parcels: int) -> tuple[Crop, ...]:
    """The crops of a scene with this many parcels: each should occur a few times."""
    return CROPS[: max(min(parcels, 2), min(len(CROPS), parcels // FEWEST_PARCELS))]


def assign_crops(random: np.random.Generator, parcels: int) -> list[str]:
    """One crop per parcel, as close to the wanted shares as whole numbers allow, in random places."""
    chosen = crops_for(parcels)
    if not chosen:
        return []
    least = min(FEWEST_PARCELS, parcels // len(chosen))
    shares = np.array([crop.share for crop in chosen])
    exact = least + (parcels - least * len(chosen)) * shares / shares.sum()
    counts = np.floor(exact).astype(int)
    for index in np.argsort(counts - exact, kind="stable")[: parcels - counts.sum()]:
        counts[index] += 1
    names = np.repeat([crop.name for crop in chosen], counts)
    return [str(name) for name in random.permutation(names)]
