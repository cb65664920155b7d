# %% [markdown]
# # First map in Python
#
# The three commands as functions, on a small scene that is made here, so that everybody can run it. With your own data,
# begin at *Ingest* with your files.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import rasterio

import cropstar
from cropstar.sources.synthetic.landscape import SceneOptions
from cropstar.sources.synthetic.scene import write_scene

tile, parcels = write_scene(Path("scene"), SceneOptions(size=160, dates=12))
tile, parcels

# %% [markdown]
# ## Ingest
#
# Images and labelled parcels become a store. `ingest` takes what the command takes: products, stacks, folders, tables.

# %%
store = cropstar.ingest(tile, parcels=parcels)
print(store.classes)
print(store.bands)

# %% [markdown]
# ## Train
#
# Whole parcels are held out. `recipe="quick"` is for a first look; leave it out for a model to use. Any key of the
# [configuration](../reference/configuration.md) can be given in `settings`.

# %%
short = {"epochs": 4, "cross_fit": 0}
run = cropstar.train(store=store, model="star", recipe="quick", settings=short)
print(run.headline)
print(f"accuracy {run.metrics['pixel']['overall_accuracy']:.2f} by pixel")

# %% [markdown]
# ## Predict
#
# The map is a GeoTIFF with names and colours; `product.files` lists what belongs to it.

# %%
(product,) = cropstar.predict(tile, model=run, output="map.tif", confidence=True)
with rasterio.open("map.tif") as dataset:
    classes, colours = dataset.read(1), dataset.colormap(1)
with rasterio.open("map-confidence.tif") as dataset:
    confidence = dataset.read(1)

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.2))
palette = np.array([colours.get(value, (0, 0, 0, 0)) for value in range(256)], "uint8")
left.imshow(palette[classes])
left.set_title("classes")
shown = right.imshow(confidence, vmin=0, vmax=100, cmap="viridis")
right.set_title("confidence, percent")
figure.colorbar(shown, ax=right)
for axes in (left, right):
    axes.set_axis_off()

# %% [markdown]
# Next: [look into the store](store.md), or [compare models](models.md).
