"""The data of TUM: Sentinel-2 image series of Bavaria (MTLCC, 2018) and series of points (fieldRNN, 2017)."""

from cropstar.sources.tum.folders import TumOptions, looks_like_tum, open_tum

__all__ = ["TumOptions", "looks_like_tum", "open_tum"]
