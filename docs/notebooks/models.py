# %% [markdown]
# # Compare models
#
# Three models on the same split: a random forest, STAR, and TempCNN. Settings follow from the data; training is
# kept short here.

# %%
from pathlib import Path

import matplotlib.pyplot as plt

import cropstar
from cropstar.sources.synthetic.landscape import SceneOptions
from cropstar.sources.synthetic.scene import write_scene

tile, parcels = write_scene(Path("scene"), SceneOptions(size=240, dates=12))
store = cropstar.ingest(tile, parcels=parcels)

# %% [markdown]
# `target="parcel"` classifies the mean series of each parcel: fast, and right where the map is one of parcels.

# %%
short = {"cross_fit": 0, "epochs": 40}
chosen = {"star": short, "tempcnn": short, "rf": {"cross_fit": 0}}
runs = {
    name: cropstar.train(store=store, model=name, target="parcel", settings=settings)
    for name, settings in chosen.items()
}
for name, run in runs.items():
    accuracy, f1 = (run.metrics["parcel"][key] for key in ("overall_accuracy", "macro_f1"))
    print(f"{name:>8}: accuracy {accuracy:.2f}, macro-F1 {f1:.2f}")

# %% [markdown]
# Some dozens of test parcels: look at the intervals before you call one the winner. `cropstar compare` prints the same
# with 95 % intervals, and `cropstar train --model auto` compares by cross-validation.

# %%
figure, axis = plt.subplots(figsize=(7, 3))
axis.barh(
    list(runs),
    [run.metrics["parcel"]["macro_f1"] for run in runs.values()],
    color="#4c8c4a",
)
axis.set_xlim(0, 1)
axis.set_xlabel("macro-F1 on held-out parcels")
figure.tight_layout()

# %% [markdown]
# ## What a model knows of itself

# %%
model = cropstar.load_model(runs["star"])
print(model.card.classes)
print(model.card.bands, model.card.season)
