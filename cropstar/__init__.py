"""cropstar: crop maps from Sentinel-2 time series with the STAR recurrent cell."""

__version__ = "0.1.0"
