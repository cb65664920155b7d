"""GeoTIFF stacks: one file with dates x bands, or a folder of dated files; one series a tile."""

from cropstar.sources.stack.dated import DatedSeries
from cropstar.sources.stack.one_file import StackSeries
from cropstar.sources.stack.opening import looks_like_stack, open_stack
from cropstar.sources.stack.options import StackOptions

__all__ = ["DatedSeries", "StackOptions", "StackSeries", "looks_like_stack", "open_stack"]
