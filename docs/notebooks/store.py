# %% [markdown]
# # Look into a store
#
# A store opens in xarray (`pip install 'cropstar[xarray]'`): reflectance, NaN where it was cloudy, labels and parcel
# numbers on the same grid.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import cropstar
from cropstar.sources.synthetic.landscape import SceneOptions
from cropstar.sources.synthetic.scene import write_scene

tile, parcels = write_scene(Path("scene"), SceneOptions(size=160, dates=16))
store = cropstar.ingest(tile, parcels=parcels)
season = store.scenes["tile"].to_xarray()
season

# %% [markdown]
# ## One date after the other
#
# White is masked: clouds and their shadows. Nothing is filled in; models skip these dates pixel by pixel.

# %%
figure, axes = plt.subplots(2, 4, figsize=(10, 5.2))
for axis, index in zip(axes.flat, range(0, 16, 2), strict=True):
    image = season.reflectance.isel(time=index).sel(band=["B04", "B03", "B02"])
    colours = image.transpose("y", "x", "band").values * 4
    axis.imshow(np.clip(np.nan_to_num(colours, nan=1), 0, 1))
    axis.set_title(str(season.time.values[index])[:10], fontsize=9)
    axis.set_axis_off()

# %% [markdown]
# ## The course of each crop
#
# This is what a model learns from. If two curves lie on each other, the model will confuse these crops.

# %%
red = season.reflectance.sel(band="B04")
infrared = season.reflectance.sel(band="B08")
ndvi = (infrared - red) / (infrared + red)
figure, axis = plt.subplots(figsize=(9, 4))
for number, name in enumerate(store.classes):
    curve = ndvi.where(season.labels == number).mean(["y", "x"])
    curve.plot(ax=axis, label=name, marker=".")
axis.set_ylabel("NDVI")
axis.set_title("")
axis.legend(ncol=2, fontsize=8)

# %% [markdown]
# ## Samples for PyTorch
#
# The same split that `cropstar.train` uses: no parcel is in two parts.

# %%
for part in ("training", "validation", "test"):
    samples = store.as_torch(part, unit="parcel")
    shape = tuple(samples[0]["x"].shape)
    print(f"{part:>10}: {len(samples)} parcels, the first of {shape} (dates, bands)")
