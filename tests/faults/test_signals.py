"""SIGINT and SIGTERM at any moment, also twice: one line and 130 or 143, from the first moment to the last."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.killing import run_to_the_end, start, usual_signals
from tests.prediction.making import untrained

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
NUMBERS = sorted(CODES)


@pytest.fixture(scope="module")
def model(small_scene: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained(tmp_path_factory.mktemp("model") / "model.safetensors", small_scene / "tile.tif")


def predict(small_scene: Path, model: Path, output: str = "map.tif") -> list[str]:
    return ["predict", str(small_scene / "tile.tif"), "--model", str(model), "-o", output, "--window", "16"]


def wait_for(happened: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not happened():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.002)


def catches(process: subprocess.Popen[str], number: int) -> bool:
    """Whether the process handles the signal, or ignores it on its way out."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    masks = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigCgt", "SigIgn"))]
    return any(mask & 1 << (number - 1) for mask in masks)


def loads_torch(process: subprocess.Popen[str]) -> bool:
    return "libtorch" in Path(f"/proc/{process.pid}/maps").read_text()


def the_end(process: subprocess.Popen[str], *numbers: int) -> str:
    """The last line of a process that a signal ended, if it ended as is documented.

    Of several that come before Python runs its next line, any may be the first.
    """
    _, said = process.communicate(timeout=120)
    assert process.returncode in [CODES[signal.Signals(number)] for number in numbers], said
    assert "Traceback" not in said
    line = said.strip().splitlines()[-1]
    assert line.startswith("error: stopped by a signal: ")
    return line


@pytest.mark.parametrize("number", NUMBERS)
def test_at_the_start_nothing_was_begun(number: int, small_scene: Path, model: Path, tmp_path: Path) -> None:
    process = start(predict(small_scene, model), tmp_path)
    wait_for(lambda: catches(process, signal.SIGTERM), process)
    process.send_signal(number)
    process.send_signal(signal.SIGTERM)
    assert "nothing was begun" in the_end(process, number, signal.SIGTERM)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", NUMBERS)
def test_while_torch_is_imported(number: int, small_scene: Path, model: Path, tmp_path: Path) -> None:
    """Half of torch cannot be left: an exception there once ended in SIGABRT."""
    process = start(predict(small_scene, model), tmp_path)
    wait_for(lambda: loads_torch(process), process)
    for each in (number, signal.SIGTERM, signal.SIGINT):
        process.send_signal(each)
        time.sleep(0.01)
    the_end(process, *NUMBERS)
    assert list(tmp_path.iterdir()) == []


def test_further_signals_do_not_disturb_saving(small_store: Path, tmp_path: Path) -> None:
    settings = ["--layers", "2", "--hidden", "8", "--batch", "2", "--epochs", "500", "--checkpoint-seconds", "1000"]
    split = ["--set", "split.validation=0.3", "--set", "split.test=0.3", "--set", "patch=12"]
    process = start(["train", "--store", str(small_store), *settings, *split], tmp_path)
    wait_for(lambda: bool(list(tmp_path.glob("data/runs/*/metrics.jsonl"))), process)
    process.send_signal(signal.SIGTERM)
    while process.poll() is None:
        process.send_signal(random.choice(NUMBERS))
        time.sleep(0.005)
    assert "the state after batch" in the_end(process, *NUMBERS)
    assert list(tmp_path.glob("data/runs/*/checkpoints/*.safetensors"))
    assert not list(tmp_path.rglob("*.partial"))


def test_further_signals_do_not_disturb_a_prediction(small_scene: Path, model: Path, tmp_path: Path) -> None:
    process = start(predict(small_scene, model), tmp_path)
    wait_for(lambda: bool(list(tmp_path.glob(".*.blocks/*.npz"))), process)
    process.send_signal(signal.SIGINT)
    while process.poll() is None:
        process.send_signal(random.choice(NUMBERS))
        time.sleep(0.005)
    assert "finished parts are kept" in the_end(process, *NUMBERS)
    assert not list(tmp_path.rglob("*.partial"))


IN_A_DESTRUCTOR = """
import os, signal, time
from cropstar.signals import StopSignal, begin_work, watch_signals
watch_signals()
from cropstar.cli.main import guard_messages
guard_messages()
begin_work()

class Resource:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000): pass  # where Python calls the handler

try:
    Resource()
    time.sleep(30)
except StopSignal as heard:
    print(heard.number)
"""


def test_a_signal_in_a_destructor_is_heard() -> None:
    """Nothing can be raised there: it is raised again behind it."""
    done = subprocess.run(
        [sys.executable, "-c", IN_A_DESTRUCTOR], stdout=subprocess.PIPE, text=True, preexec_fn=usual_signals, timeout=25
    )
    assert done.stdout.split() == [str(signal.SIGTERM.value)]


WHILE_A_THREAD_READS = """
import os, signal, threading, time
from cropstar.signals import begin_work, watch_signals
watch_signals()
import h5py
from cropstar.cli import main

held, reading = h5py.h5p.create(h5py.h5p.FILE_ACCESS), threading.Event()

def read():
    with h5py._objects.phil:  # as while it decodes a chunk
        reading.set()
        time.sleep(3600)

def work(**_):
    begin_work()
    threading.Thread(target=read, daemon=True).start()
    reading.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(30)

main.cropstar.main = work
main.main()
"""


def test_a_thread_that_still_reads_does_not_keep_the_command_from_ending() -> None:
    """The destructor of an HDF5 object waits for the lock that the thread holds."""
    done = subprocess.run(
        [sys.executable, "-c", WHILE_A_THREAD_READS],
        capture_output=True,
        text=True,
        preexec_fn=usual_signals,
        timeout=25,
    )
    assert done.returncode == CODES[signal.SIGTERM]
    assert done.stderr.startswith("error: stopped by a signal")


IN_A_QUEUE = """
import os, queue, signal, threading, time
from cropstar.signals import StopSignal, begin_work, watch_signals
watch_signals()
begin_work()

class Queue(queue.Queue):
    def _put(self, item):  # with the lock of the queue, before the other thread is woken
        super()._put(item)
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000): pass  # where Python calls the handler

full, taken = Queue(1), threading.Event()
threading.Thread(target=lambda: (full.get(), taken.set()), daemon=True).start()
time.sleep(0.1)
try:
    full.put(1)
    print("put")
    queue.Queue().get()  # it waits where nothing comes
except StopSignal as heard:
    print(heard.number, taken.wait(5))
"""


def test_a_signal_leaves_queues_whole() -> None:
    """Raised between a lock and what it guards it would leave the other thread waiting, and the command with it."""
    done = subprocess.run(
        [sys.executable, "-c", IN_A_QUEUE], stdout=subprocess.PIPE, text=True, preexec_fn=usual_signals, timeout=25
    )
    assert done.stdout.split() == ["put", str(signal.SIGTERM.value), "True"]


WHILE_IT_IS_HELD = """
import os, signal, time
from cropstar.signals import StopSignal, begin_work, hold_signals, watch_signals
watch_signals()
begin_work()
try:
    with hold_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)
        print("whole")
    time.sleep(30)
except StopSignal as heard:
    print(heard.number)
"""


def test_a_signal_waits_for_the_end_of_a_block_that_holds_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WHILE_IT_IS_HELD],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=usual_signals,
        timeout=25,
    )
    assert done.stdout.split() == ["whole", str(signal.SIGTERM.value)]


IN_A_MESSAGE = """
import os, signal, sys, time
import tqdm
from cropstar.signals import begin_work, watch_signals
watch_signals()
from cropstar.cli import main
from cropstar.runtime import event, set_up_logging

class Slow:
    def __init__(self, stream):
        self.stream = stream
    def write(self, text):
        self.stream.write(text)
        if text.startswith("half"):
            os.kill(os.getpid(), signal.SIGTERM)
            for _ in range(1000): pass  # where Python calls the handler
    def flush(self):
        self.stream.flush()

def work(**_):
    begin_work()
    sys.stderr = main.Messages(Slow(sys.stderr))
    set_up_logging()
    event("half of a message")
    time.sleep(30)

main.cropstar.main = work
main.main()
"""


def test_a_signal_does_not_tear_a_message() -> None:
    """Its end came after the line of error, on the same line."""
    done = subprocess.run(
        [sys.executable, "-c", IN_A_MESSAGE], capture_output=True, text=True, preexec_fn=usual_signals, timeout=25
    )
    assert done.returncode == CODES[signal.SIGTERM]
    message, error = done.stderr.splitlines()
    assert message == "half of a message"
    assert error.startswith("error: stopped by a signal: ")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("signals", [200])
def test_signals_at_random_moments(
    signals: int, small_scene: Path, small_store: Path, model: Path, tmp_path: Path
) -> None:
    """Half of them in the first 0.3 seconds, half of them doubled.

    Python itself takes some hundredths of a second before it runs any line of ours: until then a signal ends it as it
    would end any program.
    """
    ingest = ["ingest", str(small_scene / "tile.tif"), "--tile-size", "16", "-o", "store"]
    train = ["train", "--store", str(small_store), "--layers", "1", "--hidden", "4", "--epochs", "2"]
    commands = [predict(small_scene, model), ingest, [*train, "--set", "split.validation=0.3"]]
    seconds = []
    for number, command in enumerate(commands):
        (tmp_path / str(number)).mkdir()
        seconds.append(run_to_the_end(command, tmp_path / str(number))[1])
    moments, ends = random.Random(signals), {"documented": 0, "before Python was ready": 0, "done": 0}
    for turn in range(signals):
        which = moments.randrange(len(commands))
        place = tmp_path / "place"
        place.mkdir()
        first, second = moments.choice(NUMBERS), moments.choice([None, *NUMBERS])
        process = start(commands[which], place)
        time.sleep(moments.uniform(0, 0.3) if turn % 2 else moments.uniform(0.3, 1.05 * seconds[which]))
        ready = process.poll() is not None or catches(process, signal.SIGTERM)
        process.send_signal(first)
        if second is not None:
            time.sleep(moments.choice([0, 0.001, 0.01, 0.1]))
            process.send_signal(second)
        if not ready:
            process.communicate(timeout=120)
            assert process.returncode in (-first, -(second or first), 1, *CODES.values())
            ends["before Python was ready"] += 1
        elif process.wait(timeout=120) == 0:  # it came through, or was on its way out
            process.communicate()
            ends["done"] += 1
        else:
            the_end(process, first, second or first)
            ends["documented"] += 1
        assert not list(place.rglob("*.partial"))
        shutil.rmtree(place)
    print(ends)
    assert ends["documented"] > signals / 3
