"""The interface of both engines: the same tasks have the same answers, whoever does them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from cropstar.errors import InputError
from cropstar.execution.dask import connected
from cropstar.execution.local import LocalPool
from cropstar.execution.pool import WorkerPool
from tests.execution.clusters import a_scheduler


@dataclass
class Numbers:
    """What tasks share."""

    factor: int

    def close(self) -> None: ...


@dataclass(frozen=True)
class Multiply:
    number: int

    def run(self, shared: Numbers) -> int:
        if self.number == 3:
            raise InputError("three", path="numbers.txt", why="it is odd", remedy="give another")
        return self.number * shared.factor


class WhereAmI:
    def run(self, _: Numbers) -> int:
        return os.getpid()


@pytest.fixture(params=["this process", "processes", "dask"])
def pool(request: pytest.FixtureRequest, eager_workers: None) -> Iterator[WorkerPool]:
    if request.param == "dask":
        pytest.importorskip("distributed")
        with a_scheduler(workers=1) as scheduler, connected(scheduler.scheduler_address) as dask, dask:
            yield dask
    else:
        with LocalPool(2 if request.param == "processes" else 1) as processes:
            yield processes


def test_answers_errors_and_more_tasks_on_the_way(pool: WorkerPool) -> None:
    pool.share(Numbers(10))
    found: dict[int, object] = {}
    for task, answer in pool.answers(Multiply(number) for number in range(5)):
        assert isinstance(task, Multiply)
        found[task.number] = answer
        if task.number == 4:
            pool.submit(Multiply(7))
    error = found.pop(3)
    assert isinstance(error, InputError)
    assert str(error) == "three in numbers.txt: it is odd; give another"
    assert found == {0: 0, 1: 10, 2: 20, 4: 40, 7: 70}
    assert pool.threads >= 1


def test_the_first_error_is_raised_by_run(pool: WorkerPool) -> None:
    pool.share(Numbers(10))
    assert [answer for _, answer in pool.run([Multiply(1)])] == [10]
    with pytest.raises(InputError, match="three"):
        list(pool.run([Multiply(3)]))
    assert list(pool.run([])) == []


@pytest.mark.usefixtures("eager_workers")
def test_little_work_needs_no_workers() -> None:
    with LocalPool(2) as pool:
        assert [answer for _, answer in pool.run([WhereAmI()], volume=1000)] == [os.getpid()]
        assert [answer for _, answer in pool.run([WhereAmI()], volume=10**9)] != [os.getpid()]
        assert not pool.killed
