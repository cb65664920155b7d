"""Where work is done: processes of this machine or a Dask cluster, and threads that read ahead and write behind."""
