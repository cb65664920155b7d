# %% [markdown]
# # Check labels
#
# We put mistakes into a parcel file, and let `cropstar.check` find them. Every field is judged by a model that never
# saw it; fields whose label is doubted are ranked.

# %%
from pathlib import Path

import geopandas
import matplotlib.pyplot as plt
import numpy as np

import cropstar
from cropstar.sources.synthetic.landscape import SceneOptions
from cropstar.sources.synthetic.scene import write_scene

tile, parcels = write_scene(Path("scene"), SceneOptions(size=240, dates=12))
fields = geopandas.read_file(parcels)
generator = np.random.default_rng(0)
wrong = generator.choice(len(fields), size=len(fields) // 10, replace=False)
truth = fields["crop"].copy()
for field in wrong:
    others = [crop for crop in truth.unique() if crop != truth[field]]
    fields.loc[field, "crop"] = generator.choice(others)
fields.to_file("declared.gpkg")
print(f"{len(fields)} fields, {len(wrong)} of them with a wrong crop")

# %% [markdown]
# ## Check
#
# A random forest is quick; `model="star"`, the default, takes longer and is usually better.

# %%
store = cropstar.ingest(tile, parcels="declared.gpkg")
found = cropstar.check(store, model="rf", folds=3)
for row in found.suspects[:5]:
    print(f"field {row['key']}: declared {row['declared']}, like {row['mapped']}")

# %% [markdown]
# ## How well did it do?
#
# Only because we made the mistakes do we know. On real data look at each suspect before you change it.

# %%
made = set(fields.iloc[wrong, 0].astype(str))  # the numbers of the parcels
ranked = [str(row["key"]) in made for row in found.suspects]
hits = np.cumsum(ranked)
figure, axis = plt.subplots(figsize=(7, 3.2))
axis.step(range(1, len(hits) + 1), hits, where="post", color="#4c8c4a")
axis.axhline(len(made), linestyle=":", color="grey")
axis.set_xlabel("suspects looked at, the likeliest first")
axis.set_ylabel("mistakes found")
figure.tight_layout()
print(f"{hits[-1]} of {len(made)} mistakes among {len(hits)} suspects")

# %% [markdown]
# The GeoPackage and the page for colleagues: `found.files`. Training without suspects: `cropstar.train(clean=True)`.
