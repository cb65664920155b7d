"""The paper's crop tables: the ordinary training on stores that were ingested before."""

from __future__ import annotations

from cropstar.benchmarks.tasks.base import ACCURACY, TASKS, StoreTask

for task in (
    StoreTask(
        name="tum-series",
        about="TUM's series of points, 2016",
        config="tum-series-star",
        metric=ACCURACY,
        paper=(("star", "87.7 %"),),
        folder="stores/tum-series",
        needs="get fieldRNN's data and run 'cropstar ingest tum FOLDER -o data/stores/tum-series'",
        unit="pixel",
    ),
    StoreTask(
        name="tum-pixel",
        about="TUM's image series, by pixel, 2016",
        config="tum-pixel-convstar",
        metric=ACCURACY,
        paper=(("convstar", "91.9 %"),),
        folder="stores/tum-pixel",
        needs="get MTLCC's data and run 'cropstar ingest tum FOLDER --year 2016 -o data/stores/tum-pixel'",
        unit="pixel",
    ),
    StoreTask(
        name="breizhcrops",
        about="crops of Brittany, by parcel; the paper's figure is for the data of 2019",
        config="breizhcrops-star",
        metric=ACCURACY,
        paper=(("star", "69.6 % (2019's data of 4 bands: not comparable)"),),
        folder="stores/breizhcrops",
        needs="run 'cropstar ingest breizhcrops FOLDER --download -o data/stores/breizhcrops'",
        unit="parcel",
    ),
):
    TASKS.register(task.name)(task)
