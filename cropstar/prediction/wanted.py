"""What is asked for beside the map, and the files that it goes to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path

from cropstar.errors import UsageError
from cropstar.prediction.layers import CONFIDENCE, LAYERS, PROBABILITIES, VALID_DATES
from cropstar.prediction.names import names_file
from cropstar.prediction.smoothing import Smoothing
from cropstar.prediction.style import style_file
from cropstar.prediction.zones import require_parcels

EARLIEST = "earliest"


@dataclass(frozen=True)
class Wanted:
    """What is asked for beside the map."""

    layers: tuple[str, ...] = ()
    smoothing: Smoothing | None = None
    parcels: Path | None = None
    page: bool = False
    picture: bool = True
    stable: float | None = None  # a map a date, and since when each class is sure to this degree

    @property
    def made(self) -> tuple[str, ...]:
        """The layers that the files are made from, kept or not."""
        also = {PROBABILITIES} if self.parcels else set()
        also |= {CONFIDENCE} if self.page else set()
        return tuple(name for name in LAYERS if name in {*self.layers, *also})

    @property
    def needed(self) -> tuple[str, ...]:
        """The layers that blocks must have. What is smoothed is smoothed as probabilities, the rest follows."""
        if self.smoothing is None:
            return self.made
        first = {PROBABILITIES} if self.smoothing.method == "bayesian" else set()
        following = set(self.made) - {VALID_DATES}
        return tuple(
            name
            for name in (PROBABILITIES, VALID_DATES)
            if name in {*first, *self.made} or (name == PROBABILITIES and following)
        )


@dataclass(frozen=True)
class Files:
    """Where everything goes, by the name of the map."""

    map: Path
    wanted: Wanted
    dates: tuple[date, ...] = ()  # once they are known: those that get a map of their own
    state: Path | None = None  # of the season

    @property
    def picture(self) -> Path:
        return self.map.with_suffix(".png")

    @property
    def page(self) -> Path:
        return self.map.with_suffix(".html")

    @property
    def parcels(self) -> Path:
        given = self.wanted.parcels
        ending = ".parquet" if given is not None and given.suffix.lower() in (".parquet", ".geoparquet") else ".gpkg"
        return self.map.with_name(f"{self.map.stem}-parcels{ending}")

    def layer(self, name: str) -> Path:
        return self.map.with_name(f"{self.map.stem}-{name}{self.map.suffix}")

    @property
    def earliest(self) -> Path:
        return self.layer(EARLIEST)

    def everything(self) -> list[Path]:
        """The map first."""
        paths = [self.map, names_file(self.map), style_file(self.map)]
        paths += [self.picture] if self.wanted.picture else []
        paths += [self.layer(name) for name in self.wanted.layers]
        paths += [self.parcels] if self.wanted.parcels else []
        paths += [self.state] if self.state else []
        if self.wanted.stable is not None:
            paths += [self.earliest, *(self.layer(day.isoformat()) for day in self.dates)]
        return [*paths, self.page] if self.wanted.page else paths

    def require_ready(self, *, overwrite: bool) -> None:
        """All that can be known to be wrong before anything is computed."""
        if self.map.suffix.lower() not in (".tif", ".tiff"):
            raise UsageError(f"the output {self.map} is no GeoTIFF", remedy="give it a name that ends in .tif")
        existing = [path for path in self.everything() if path.exists()]
        if existing and not overwrite:
            remedy = "choose another with -o, or give --overwrite"
            raise UsageError("the output exists", path=existing[0], remedy=remedy)
        if self.wanted.parcels is not None:
            require_parcels(self.wanted.parcels, self.parcels)
