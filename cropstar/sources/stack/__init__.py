"""GeoTIFF stacks: one file with dates x bands, or a folder of dated files; one series per tile."""

from cropstar.sources.stack.names import StackOptions
from cropstar.sources.stack.series import DatedSeries, StackSeries, looks_like_stack, open_stack

__all__ = ["DatedSeries", "StackOptions", "StackSeries", "looks_like_stack", "open_stack"]
