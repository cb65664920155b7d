"""Parcel vectors: which field grows what, burnt onto a scene's grid."""

from cropstar.sources.parcels.burning import Parcels
from cropstar.sources.parcels.reading import NothingLabelled, read_parcels
from cropstar.sources.parcels.vector import LABEL_COLUMNS

__all__ = ["LABEL_COLUMNS", "NothingLabelled", "Parcels", "read_parcels"]
