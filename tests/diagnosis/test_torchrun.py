"""Ranks under an agent that sees their ends when it looks, like torchrun."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rank_processes import is_alive
from thread_ranks import wait_until

from hccl_py.schedulers.ports import free_port

LOOK_S = 0.5
"""How long a rank must not end."""
PROGRAM = """
import json, os, signal, sys
from pathlib import Path
import numpy as np
from hccl_py import Communicator
from hccl_py.diagnosis import torchrun

torchrun._LONGEST_S = float(sys.argv[2])
record = Path(os.environ["TORCHELASTIC_ERROR_FILE"])
with_record = sys.argv[3] == "recorded"
ends = {
    "raise": lambda: 1 / 0,
    "exit": lambda: sys.exit(3),
    "_exit": lambda: os._exit(4),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "close": lambda: (comm.close(), sys.stdin.read()),
}
comm = Communicator()
comm.barrier()
print("some of its last lines", end="")  # not flushed
try:
    if comm.rank == 1:
        ends[sys.argv[1]]()
    comm.barrier()
except Exception as error:
    if with_record:
        text = {"message": str(error), "extraInfo": {"timestamp": "1"}}
        record.write_text(json.dumps({"message": text}))
    raise
"""
TRAINING = """
import os, signal, sys
import torch, torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

def main():
    dist.init_process_group("hccl")
    for step in range(10):
        if step == 5 and dist.get_rank() == dist.get_world_size() - 1:
            if sys.argv[1] == "raise":
                raise ValueError
            if sys.argv[1] == "exit":
                sys.exit(3)
            if sys.argv[1] == "_exit":
                os._exit(4)
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(4))

(record(main) if sys.argv[2:] else main)()
"""
FOREVER_S = 100.0

Ranks = list["subprocess.Popen[str]"]


@contextlib.contextmanager
def ranks(
    folder: Path, end: str, longest_s: float = FOREVER_S, with_record: str = ""
) -> Iterator[Ranks]:
    """Start two ranks; `end`: how rank 1 ends, while rank 0 calls."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    started: Ranks = []
    for rank in range(2):
        own = {"RANK": str(rank), "TORCHELASTIC_ERROR_FILE": str(folder / f"{rank}.json")}
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM, end, str(longest_s), with_record],
                env={**os.environ, **shared, **own},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def await_error(rank: subprocess.Popen[str]) -> None:
    """Read until the rank has printed the exception that ends it."""
    assert rank.stderr is not None
    while line := rank.stderr.readline():
        if line.startswith("hccl_py."):
            return
    raise AssertionError("no exception of hccl_py")


def await_end(rank: subprocess.Popen[str]) -> None:
    """Wait for the end of a rank, without looking at it as torchrun does."""
    wait_until(lambda: not is_alive(rank.pid), "the rank ends")


def has_waited(rank: subprocess.Popen[str]) -> bool:
    limit_s = time.monotonic() + LOOK_S
    while time.monotonic() < limit_s:
        if not is_alive(rank.pid):
            return False
    return True


@pytest.mark.parametrize(
    ("end", "with_record"),
    [("raise", ""), ("exit", ""), ("_exit", "recorded"), ("kill", "recorded")],
)
def test_rank_that_failed_first_is_seen_first(end: str, with_record: str, tmp_path: Path) -> None:
    with ranks(tmp_path, end, with_record=with_record) as (waiting, failed):
        await_error(waiting)
        await_end(failed)
        assert has_waited(waiting)
        seen_s = int(time.time())
        assert failed.wait() != 0
        output, _ = waiting.communicate()
        assert (waiting.returncode, output) == (1, "some of its last lines")
    record = json.loads((tmp_path / "0.json").read_text())["message"]
    assert int(record["extraInfo"]["timestamp"]) >= seen_s
    assert "rank 1 (" in record["message"]
    if end == "raise":
        record = json.loads((tmp_path / "1.json").read_text())["message"]
        assert int(record["extraInfo"]["timestamp"]) <= seen_s
        assert "division by zero" in record["message"]


def test_rank_that_never_ends_is_awaited_for_a_limited_time(tmp_path: Path) -> None:
    with ranks(tmp_path, "close", longest_s=0.1) as (waiting, closed):
        assert waiting.wait() == 1
        assert closed.poll() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_wait(number: signal.Signals, tmp_path: Path) -> None:
    with ranks(tmp_path, "close") as (waiting, closed):
        await_error(waiting)
        assert has_waited(waiting)
        waiting.send_signal(number)
        output, _ = waiting.communicate()
        assert (waiting.returncode, output) == (1, "some of its last lines")
        assert closed.poll() is None


@pytest.mark.nightly("faults")
@pytest.mark.parametrize("with_record", [(), ("recorded",)], ids=["plain", "recorded"])
@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("end", ["raise", "exit", "_exit", "kill"])
def test_torchrun_names_the_rank_that_failed_first(
    end: str, world_size: int, with_record: tuple[str, ...], tmp_path: Path
) -> None:
    program = tmp_path / "training.py"
    program.write_text(TRAINING)
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world_size))
    command = (*torchrun, "--standalone", str(program), end, *with_record)
    done = subprocess.run(command, capture_output=True, text=True)
    _, _, root_cause = done.stderr.partition("Root Cause (first observed failure):")
    assert f"(local_rank: {world_size - 1})" in root_cause
