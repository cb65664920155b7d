"""The data of TUM: Sentinel-2 image series of Bavaria (MTLCC, 2018) and series of points (fieldRNN, 2017)."""

from cropstar.sources.tum.files import looks_like_tum
from cropstar.sources.tum.opening import open_tum
from cropstar.sources.tum.options import TumOptions

__all__ = ["TumOptions", "looks_like_tum", "open_tum"]
