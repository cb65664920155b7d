"""BreizhCrops: parcel series of Brittany as its package stores them, h5 or one csv a parcel."""

from cropstar.sources.breizhcrops.files import looks_like_breizhcrops
from cropstar.sources.breizhcrops.options import FOLDS, REGIONS, BreizhCropsOptions, Fold
from cropstar.sources.breizhcrops.scene import BreizhCropsScene, open_breizhcrops

__all__ = [
    "FOLDS",
    "REGIONS",
    "BreizhCropsOptions",
    "BreizhCropsScene",
    "Fold",
    "looks_like_breizhcrops",
    "open_breizhcrops",
]
