"""Worker pools: one interface (`WorkerPool`), two engines.

`pool`     the interface, and what both engines make of failures
`local`    processes of this machine
`dask`     the workers of a Dask cluster
`threads`  reading ahead and writing behind within a process, and what its threads keep open
"""
