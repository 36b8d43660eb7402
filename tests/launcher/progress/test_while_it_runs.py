"""Real jobs that run: the status line on a terminal, and ranks that hang on purpose."""

import os
import pty
import re
import select
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from launching import COMMAND, LIMIT_S, job
from thread_ranks import wait_until

RELEASED = """
import os, time
def released():
    return os.path.exists(__file__ + ".end")
def block():
    open(__file__ + ".pipe").read()  # a loop would want a core, and a busy machine is no idle rank
"""
ONE_HANGS = """
import numpy as np
from hccl_py import Communicator
with Communicator() as comm:
    data = np.ones(1000, np.float32)
    comm.all_reduce(data)
    if comm.rank == 1:
        block()
    comm.all_reduce(data)
"""
ONE_IS_SILENT = """
rank = os.environ["RANK"]
if rank == "2":
    block()
while not released():
    if rank == "1":
        time.sleep(0.1)
        print("still here")
"""
REDUCES = """
import numpy as np
from hccl_py import Communicator
with Communicator() as comm:
    end, data = np.zeros(1), np.zeros(100_000, np.float32)
    while not end:
        end[0] = released()
        comm.all_reduce(end)
        comm.all_reduce(data)
"""
TRAINS = """
import torch, torch.distributed as dist
dist.init_process_group("hccl")
weight = torch.nn.Parameter(torch.zeros(100_000))
optimizer = torch.optim.SGD([weight], lr=0.1)
end = torch.zeros(1)
while not end:
    end.fill_(released())
    dist.all_reduce(end, dist.ReduceOp.MAX)
    weight.grad = torch.ones(100_000)
    dist.all_reduce(weight.grad)
    optimizer.step()
dist.destroy_process_group()
"""
STATUS = re.compile(
    rb"\r\x1b\[K(?:steps (\d+), [\d.]+/s \| )?[\d.]+ GB/s in \d+ collectives/s \| (\d\d:\d\d:\d\d)"
)


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    """Write a script that may end when the file beside it exists, and return its path."""

    def write(body: str) -> Path:
        path = tmp_path / "script.py"
        path.write_text(RELEASED + body)
        os.mkfifo(f"{path}.pipe")
        return path

    return write


def release(script: Path, num_blocked: int = 0) -> None:
    """End the loops, and the waits of ranks that are known to block."""
    Path(f"{script}.end").touch()
    for _ in range(num_blocked):
        open(f"{script}.pipe", "w").close()


def lines_until(process: subprocess.Popen[str], pattern: str) -> list[str]:
    """Read the launcher's stderr up to a line that matches."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if re.search(pattern, line):
            return lines
    raise AssertionError(f"the job ended without {pattern!r}: {''.join(lines)}")


@pytest.mark.nightly("launchers")
def test_rank_on_another_node_that_hangs_is_named_with_those_that_wait_for_it(
    script: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    monkeypatch.setenv("HCCL_STALL_WARNING_S", "2")
    path = script(ONE_HANGS)
    common = (*COMMAND, "--nnodes", 2, "--master-port", port)
    with (
        job(*common, "--node-rank", 0, path) as coordinator,
        job(*common, "--node-rank", 1, path) as other,
    ):
        # A slow machine may name the ranks before they have connected; that is no stall of a call.
        seen = lines_until(
            coordinator, r"rank 0 waits for rank 1 in all_reduce\(sum, float32\[1000\]\)"
        )
        assert re.search(r"  rank 1 \(host .*, pid \d+\) is in no collective", seen[-2])
        stack = lines_until(coordinator, "stack of rank 1: |pip install py-spy")
        release(path, num_blocked=1)
        for node in (coordinator, other):
            node.communicate(timeout=LIMIT_S)
            assert node.returncode == 0
    assert "\x1b" not in "".join(seen + stack), "no status line where there is no terminal"


def test_only_the_rank_that_neither_computes_nor_prints_is_named(
    script: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HCCL_STALL_WARNING_S", "1")
    path = script(ONE_IS_SILENT)
    with job(*COMMAND, "--nproc", 3, path) as process:
        seen = lines_until(process, r"^  rank \d .* is in no collective")
        release(path, num_blocked=1)
        rest = process.communicate(timeout=LIMIT_S)[1]
    assert re.findall(r"  rank (\d) ", "".join(seen) + rest) == ["2"]


MORE = pytest.mark.nightly("launchers")


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(REDUCES, id="without torch"),
        pytest.param(TRAINS, id="steps", marks=MORE),
    ],
)
def test_terminal_shows_a_line_that_grows_below_the_others_and_is_clear_at_the_end(
    script: Callable[[str], Path], body: str
) -> None:
    path = script(body)
    reader, terminal = pty.openpty()
    seen = bytearray()

    def read_more() -> None:
        with suppress(OSError):  # the launcher has gone, and was the last to hold the terminal
            if select.select([reader], [], [], 0.1)[0]:
                seen.extend(os.read(reader, 1 << 16))

    def shown() -> list[int]:
        """Return the steps of each line, or the seconds where there are none."""
        assert all(bool(steps) == (body is TRAINS) for steps, _ in STATUS.findall(seen))
        lines = STATUS.findall(seen)
        return [int((steps or elapsed).replace(b":", b"")) for steps, elapsed in lines]

    def has_shown_growth() -> bool:
        read_more()
        return len(set(shown())) > 1

    with job(*COMMAND, "--nproc", 2, path, terminal=terminal) as process:
        os.close(terminal)
        wait_until(has_shown_growth, "two different lines", LIMIT_S)
        release(path)

        def has_ended() -> bool:
            read_more()
            return process.poll() is not None

        wait_until(has_ended, "the job ends", LIMIT_S)
    read_more()
    os.close(reader)
    assert shown() == sorted(shown())
    assert process.returncode == 0
    assert seen.endswith(b"\r\x1b[K"), seen[-200:]
