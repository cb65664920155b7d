"""Sources: readers of images, parcels and published data sets, one file or package each; ingest into a store."""
