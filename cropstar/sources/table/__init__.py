"""Tables of series, one row an observation: CSV, Parquet and GeoParquet from any other tool."""

from cropstar.sources.table.columns import TableOptions
from cropstar.sources.table.scene import TableScene, open_table

__all__ = ["TableOptions", "TableScene", "open_table"]
