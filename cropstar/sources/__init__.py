"""Sources: readers of images, parcels and published data sets, one file or package a source; ingest into a store."""
