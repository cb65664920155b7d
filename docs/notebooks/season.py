# %% [markdown]
# # Updates in season
#
# A map in August, then one more image at a time. The state of every pixel is kept: an update reads the new image alone.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import rasterio

import cropstar
from cropstar.sources.synthetic.landscape import SceneOptions
from cropstar.sources.synthetic.scene import write_scene

tile, parcels = write_scene(Path("scene"), SceneOptions(size=160, dates=12))
store = cropstar.ingest(tile, parcels=parcels)
short = {"epochs": 4, "cross_fit": 0}
run = cropstar.train(store=store, model="star", recipe="quick", settings=short)

# %% [markdown]
# The scene has all dates in one file. We cut it as if it came in through the year: the first six, then one by one.


# %%
def cut(source, target, dates):
    """A stack of some dates of another one."""
    with rasterio.open(source) as stack:
        # a name such as "2023-05-14 B08"
        names = dict(zip(stack.indexes, stack.descriptions, strict=True))
        chosen = [index for index, name in names.items() if name.split()[0] in dates]
        profile = {**stack.profile, "count": len(chosen)}
        with rasterio.open(target, "w", **profile) as new:
            for place, index in enumerate(chosen, start=1):
                new.write(stack.read(index), place)
                new.set_band_description(place, names[index])
    return target


with rasterio.open(tile) as stack:
    dates = sorted({name.split()[0] for name in stack.descriptions})
print(dates)

# %% [markdown]
# ## The map so far

# %%
cropstar.predict(
    cut(tile, "so-far.tif", dates[:6]),
    model=run,
    output="map.tif",
    state="season.h5",
    confidence=True,
)
maps = {dates[5]: rasterio.open("map-confidence.tif").read(1)}

# %% [markdown]
# ## New images
#
# `update` replaces map and state when both are complete. The result is the map of a run over all dates, to the pixel.

# %%
for day in dates[6:]:
    cropstar.update("season.h5", cut(tile, f"{day}.tif", [day]))
    maps[day] = rasterio.open("map-confidence.tif").read(1)

(whole,) = cropstar.predict(tile, model=run, output="whole.tif")
same = (rasterio.open("map.tif").read(1) == rasterio.open("whole.tif").read(1)).mean()
print(f"{same:.1%} of the pixels are those of a run over all dates")

# %%
figure, axes = plt.subplots(1, len(maps), figsize=(11, 2.8))
for axis, (day, confidence) in zip(axes, maps.items(), strict=True):
    shown = axis.imshow(confidence, vmin=0, vmax=100, cmap="viridis")
    axis.set_title(day, fontsize=9)
    axis.set_axis_off()
figure.colorbar(shown, ax=axes, label="confidence, percent")

# %% [markdown]
# For a nightly job see [in season, with cron](../how-to/season.md).
