"""What one more image costs: the time of an update over the time of a full run, for 24 dates of 4 bands.

    OMP_NUM_THREADS=2 python benchmarks/season.py --side 1024                   ConvSTAR 4 x 32: at most 2.0/24
    OMP_NUM_THREADS=2 python benchmarks/season.py --model star --hidden 64      STAR 4 x 64: at most 2.2/24
    python benchmarks/season.py --drift MODEL RASTER                            what float16 does to the classes

A full run over 24 dates against 23 dates with --state and an update with the last one. Both write the map and no
picture; the update also writes its state. Time is that of the clock, and beside it that of the processors, which other
programs on the machine disturb less: of all threads, and of the one that computes. An update reads and writes its
state in threads of their own; with a processor for each the clock comes near the one that computes. The classes of
both maps are compared. States are kept in float16 (`--state-precision float32` for all digits).

`--drift` takes a trained model and its raster through the season date by date, as updates would, with the state rounded
to 16 bits after every date: the share of pixels whose class is another one than with a state of float32, after each.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import rasterio
from numpy.typing import NDArray
from untrained import write_untrained

DATES, BANDS = 24, ("B02", "B03", "B04", "B08")
SETTINGS = {"convstar": {"layers": 4, "hidden": 32}, "star": {"layers": 4, "hidden": 128}}
GOALS = {"convstar": 2.0, "star": 2.2}  # dates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(SETTINGS), default="convstar")
    parser.add_argument("--hidden", type=int, help="width of a layer")
    parser.add_argument("--side", type=int, default=512, help="pixels of the raster")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--state-precision", choices=["float32", "float16"], default="float16")
    parser.add_argument("--drift", type=Path, nargs=2, metavar=("MODEL", "RASTER"))
    choices = parser.parse_args()
    if choices.drift:
        model, raster = choices.drift
        drift(model, raster, choices.side)
        return
    with tempfile.TemporaryDirectory() as temporary:
        measure(
            *(Path(temporary), choices.model, choices.hidden, choices.side, choices.rounds), choices.state_precision
        )


def measure(folder: Path, name: str, hidden: int | None, side: int, rounds: int, precision: str) -> None:

    from cropstar.prediction.job import predict
    from cropstar.prediction.request import MapInput, MapRequest, UpdateRequest
    from cropstar.prediction.season import update

    settings = SETTINGS[name] | ({} if hidden is None else {"hidden": hidden})
    write_rasters(folder, side)
    write_untrained(folder / "model", folder / "all.tif", {"name": name, **settings})
    options = MapRequest(model=folder / "model", device="cpu", picture=False, overwrite=True)
    state = folder / "season.h5"
    predict(folder / "early.tif", folder / "map.tif", options.replace(state=state, state_precision=precision))
    before = state.read_bytes()
    how = UpdateRequest(device="cpu", picture=False, overwrite=True)
    full, once = [], []
    for _ in range(rounds):
        full.append(timed(lambda: predict(folder / "all.tif", folder / "full.tif", options)))
        state.write_bytes(before)
        once.append(timed(lambda: update(state, [MapInput(folder / "last.tif")], how)))
    print(f"{name} {settings}, {side} x {side} pixels, {DATES} dates; {precision} state of {len(before) / 1e6:.0f} MB")
    for place, label in enumerate(("clock", "all threads", "computing thread")):
        long, short = min(times[place] for times in full), min(times[place] for times in once)
        ratio = short / long
        dates = f"{ratio * DATES:.2f}/{DATES} (goal {GOALS[name]}/{DATES})"
        print(f"  {label:16} full run {long:.2f} s, update {short:.2f} s: {ratio:.4f} = {dates}")
    one, other = (read(folder / f"{stem}.tif") for stem in ("map", "full"))
    print(f"  {(one != other).sum()} of {one.size} pixels have another class than in the full run")


def drift(path: Path, raster: Path, side: int) -> None:
    import torch

    from cropstar.geo.windows import Window
    from cropstar.prediction.predictor import Predictor
    from cropstar.prediction.request import MapInput
    from cropstar.sources.base import Observations

    predictor = Predictor(path, torch.device("cpu"))
    model = predictor.model
    learnt = predictor.card.provenance.get("reading", {})
    series = predictor.read_by_model(MapInput(raster).open(predictor.card.fingerprint.bands, learnt, {}), raster)
    height, width = (min(side, own) for own in series.grid.shape)
    read = series.read(Window(0, 0, height, width))
    if not model.spatial:
        read = Observations(read.values.reshape(*read.values.shape[:2], -1), read.valid.reshape(len(read.valid), -1))
    classes: dict[torch.dtype, list[torch.Tensor]] = {torch.float32: [], torch.float16: [], torch.bfloat16: []}
    with torch.inference_mode():
        x, valid, days = predictor.inputs(series, read)
        for kind, found in classes.items():
            state = None
            for t in range(x.shape[1]):
                state = model.step(x[:, t].contiguous(), valid[:, t], days[:, t], state)
                found.append(model.classify(state).argmax(dim=1))
                rounds = iter(model.may_round(state))
                state = tuple(
                    tuple(part.to(kind).float() if next(rounds) else part for part in layer) for layer in state
                )
    exact = torch.stack(classes.pop(torch.float32))
    for kind, found in classes.items():
        shares = [(one != other).float().mean().item() for one, other in zip(found, exact, strict=True)]
        print(
            f"{path.parent.name}, {exact[0].numel():,} pixels, {kind}: % of other classes after each date, as updates:"
        )
        print("  " + " ".join(f"{100 * share:.3f}" for share in shares) + f"; at most {100 * max(shares):.3f}")


def timed(run: Callable[[], object]) -> list[float]:
    """Of the clock, of all threads and of this thread."""
    clocks = (time.perf_counter, time.process_time, time.thread_time)
    started = [clock() for clock in clocks]
    run()
    return [clock() - start for clock, start in zip(clocks, started, strict=True)]


def read(path: Path) -> NDArray[np.uint8]:
    with rasterio.open(path) as dataset:
        values: NDArray[np.uint8] = dataset.read(1)
    return values


def write_rasters(folder: Path, side: int) -> None:
    """Noise: nothing is harder to decompress."""
    days = [date(2023, 3, 1) + timedelta(days=10 * number) for number in range(DATES)]
    noise = np.random.default_rng(0).integers(1, 10_000, (DATES, len(BANDS), side, side)).astype(np.uint16)
    blocks = {"tiled": True, "blockxsize": 256, "blockysize": 256, "compress": "deflate", "interleave": "band"}
    place = rasterio.transform.from_origin(600_000, 5_400_000, 10, 10)
    for name, some in {"all": slice(None), "early": slice(0, DATES - 1), "last": slice(DATES - 1, None)}.items():
        bands = [(day, band) for day in days[some] for band in BANDS]
        profile = {"driver": "GTiff", "dtype": "uint16", "count": len(bands), "height": side, "width": side}
        with rasterio.open(folder / f"{name}.tif", "w", **profile, **blocks, crs="EPSG:32632", transform=place) as new:
            new.write(noise[some].reshape(-1, side, side))
            for number, (day, band) in enumerate(bands, start=1):
                new.set_band_description(number, f"{day} {band}")


if __name__ == "__main__":
    main()
