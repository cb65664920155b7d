"""The way to a Dask cluster: find its scheduler, wait for workers, and see that they fit. Each with a limit of time."""

from __future__ import annotations

import gc
import logging
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from cropstar.cluster import Cluster, Machine, gone, one_line, require_distributed
from cropstar.errors import CropstarError, MismatchError, ResourceError, UsageError
from cropstar.runtime import event, logger

CONNECT_SECONDS = 10.0
WORKER_SECONDS = 30.0  # for a first worker
CLOSE_SECONDS = 5.0
# What must be the same everywhere, or blocks of one map and tiles of one store would differ.
PACKAGES = ("cropstar", "torch", "numpy", "rasterio", "h5py")


@contextmanager
def connected(address: str, *, patience: float = WORKER_SECONDS) -> Iterator[Cluster]:
    """A cluster whose workers fit. Whoever leaves early cancels what is on the way."""
    distributed = require_distributed()
    _hush()
    client = _connect(distributed, address)
    try:
        _require_workers(client, address, patience)
        _require_same(client)
        machines = _machines(client)
        threads = sum(machine.threads for machine in machines)
        board = _dashboard(client)
        event(
            f"cluster {address}: {len(machines)} workers, {threads} threads; dashboard {board or 'not running'}",
            scheduler=address,
            workers=len(machines),
            threads=threads,
            dashboard=board,
        )
        cluster = Cluster(client, machines)
        try:
            yield cluster
        except BaseException:
            cluster.cancel()
            raise
    finally:
        with suppress(Exception):
            client.close(timeout=CLOSE_SECONDS)


def describe(dask_worker: Any) -> Machine:
    """What a worker answers when asked who it is; Dask hands it in by that name."""
    import torch

    limit = getattr(dask_worker.memory_manager, "memory_limit", None)
    found = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    devices = tuple(name for name, there in found.items() if there)
    return Machine(dask_worker.state.nthreads, int(limit) if limit else None, devices)


def _connect(distributed: Any, address: str) -> Any:
    remedy = "give the address that the scheduler prints, as in --scheduler tcp://10.0.0.1:8786"
    if not address.strip():
        raise UsageError("--scheduler got no address", remedy=remedy)
    try:
        return _within(
            CONNECT_SECONDS, lambda seconds: distributed.Client(address, timeout=seconds, set_as_default=False)
        )
    except Exception as failure:  # from a closed port to a server that speaks another language
        sys.unraisablehook = _ignore  # half a client complains, in many lines, when the program ends
        why = one_line(failure)
        if isinstance(failure, ValueError):  # of the address itself
            refusal: CropstarError = UsageError(f"--scheduler {address}", why=why, remedy=remedy)
        else:
            refusal = ResourceError(f"no scheduler answers at {address}", why=why, remedy=remedy)
    gc.collect()  # half a client that is found later, while another one starts, waits for itself for ever
    raise refusal


def _within(seconds: float, make: Callable[[float], Any]) -> Any:
    """What `make` returns or raises. Dask's own limit does not hold with a server that talks, but not Dask's language:
    then the thread is left alone."""
    outcome: queue.Queue[tuple[Any, Exception | None]] = queue.Queue()

    def run() -> None:
        try:
            outcome.put((make(seconds), None))
        except Exception as failure:
            outcome.put((None, failure))

    threading.Thread(target=run, name="connect", daemon=True).start()
    try:
        made, failure = outcome.get(timeout=seconds * 1.5)
    except queue.Empty:
        raise TimeoutError(f"no sensible answer within {seconds:.0f} seconds") from None
    if failure is not None:
        raise failure
    return made


def _require_workers(client: Any, address: str, patience: float) -> None:
    try:
        client.wait_for_workers(1, timeout=patience)
    except TimeoutError:
        why, remedy = f"none came within {patience:.0f} seconds", f"start some with 'dask worker {address}'"
        raise ResourceError(f"the cluster at {address} has no workers", why=why, remedy=remedy) from None
    except Exception as failure:
        raise gone(failure) from None


def _require_same(client: Any) -> None:
    """Refuse workers with other versions, by the names of the packages; the scheduler needs no torch."""
    try:
        versions = client.get_versions(packages=list(PACKAGES))
    except Exception as failure:
        raise gone(failure) from None
    here = _relevant(versions["client"])
    others = [(f"the worker {address}", said, tuple(here)) for address, said in versions["workers"].items()]
    for who, said, names in [("the scheduler", versions["scheduler"], ("python", "cropstar")), *others]:
        there = _relevant(said)
        for name in names:
            if there[name] != here[name]:
                why = f"{name} {there[name] or 'is missing'} there and {here[name]} here"
                raise MismatchError(f"{who} does not fit", why=why, remedy=f"install the same {name} on both")


def _relevant(said: Any) -> dict[str, str | None]:
    """Versions as far as they matter: 3.11 of Python, 2.6.0 of torch 2.6.0+cpu."""
    packages = said["packages"] if isinstance(said, dict) else {}
    python = packages.get("python")
    found: dict[str, str | None] = {"python": ".".join(python.split(".")[:2]) if python else None}
    return found | {name: (packages.get(name) or "").partition("+")[0] or None for name in PACKAGES}


def _machines(client: Any) -> list[Machine]:
    """What the workers say; one that dies over the question is not asked again."""
    try:
        answers = list(client.run(describe, on_error="return").values())
    except Exception as failure:
        raise gone(failure) from None
    machines = [answer for answer in answers if isinstance(answer, Machine)]
    if not machines:
        why = one_line(answers[0]) if answers else "the last one has just gone"
        raise ResourceError("no worker of the cluster answers", why=why, remedy="look at the log of a worker")
    return machines


def _dashboard(client: Any) -> str | None:
    try:
        link: str | None = client.dashboard_link
    except Exception:  # a scheduler without one
        return None
    return link


class _Forward(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        logger.debug("%s: %s", record.name, " ".join(record.getMessage().split()))


def _hush() -> None:
    """What Dask logs of lost workers and connections is for developers: --verbose shows it, in one line each."""
    for name in ("distributed", "tornado"):
        log = logging.getLogger(name)
        log.handlers[:] = [_Forward()]
        log.propagate = False
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("distributed."):
            logging.getLogger(name).handlers[:] = []
            logging.getLogger(name).propagate = True


def _ignore(_: object) -> None:
    """Says nothing."""
