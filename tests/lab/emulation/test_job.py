"""Jobs on emulated nodes, as a user starts them."""

import json
import re
from pathlib import Path

import pytest
from launching import launch

from hccl_py.launcher.exit_codes import AGENT_KILLED

REDUCE = """
import json, sys, time
import numpy as np
from hccl_py import Communicator

with Communicator(timeout_s=60.0) as comm:
    data = np.arange(65536, dtype=np.float32) + comm.rank
    comm.barrier()
    begun_s = time.perf_counter()
    comm.all_reduce(data)
    took_s = time.perf_counter() - begun_s
    n = comm.world_size
    assert np.array_equal(data, np.arange(65536) * n + n * (n - 1) / 2)
    found = [name for name in sys.modules if name.startswith("hccl_py.lab")]
    if comm.rank == 0:
        print(json.dumps([took_s, comm.nodes, found]))
"""
TRAIN = """
import time
import numpy as np
import torch
import torch.distributed as dist

dist.init_process_group("hccl")
weights = torch.nn.Parameter(torch.zeros(1000))
optimizer = torch.optim.SGD([weights], lr=1.0)
for step in range(1, 7):
    weights.grad = torch.full((1000,), float(dist.get_rank() + 1))
    dist.all_reduce(weights.grad)
    n = dist.get_world_size()
    assert weights.grad.eq(n * (n + 1) / 2).all()
    optimizer.step()
    if dist.get_rank() == 0:
        print(f"step {step} ended at {time.perf_counter()} s", flush=True)
dist.destroy_process_group()
"""

SHRINK = """
import json, os
import numpy as np
import torch
from hccl_py import Communicator
from hccl_py.torch_backend.training.step_count import count_steps
from hccl_py.transport.errors import HcclError

comm = Communicator(timeout_s=60.0)
count_steps()
weights = torch.nn.Parameter(torch.zeros(4))
weights.grad = torch.ones(4)
optimizer = torch.optim.SGD([weights], lr=1.0)
for step in range(1, 61):
    data = np.ones(100_000, np.float32)
    try:
        comm.all_reduce(data)
    except HcclError:
        lost, comm = comm, comm.shrink()
        lost.close()
        comm.all_reduce(data := np.ones(100_000, np.float32))
    assert np.all(data == comm.world_size), data
    optimizer.step()
print(comm.world_size, flush=True)
comm.close()
"""

SIGNAL_NETWORK = """
import os, signal, time
from pathlib import Path
from hccl_py import Communicator

with Communicator(timeout_s=60.0) as comm:
    comm.barrier()
    print("all have come", flush=True)
    if comm.rank == 0:
        for path in Path(f"/proc/{os.getppid()}/task").glob("*/children"):
            for child in path.read_text().split():
                if b"hccl_py.lab.emulation" in Path(f"/proc/{child}/cmdline").read_bytes():
                    assert b"HCCL_SECRET" not in Path(f"/proc/{child}/environ").read_bytes()
                    os.kill(int(child), signal.{signal})
    time.sleep(600)
"""


def cluster(folder: Path, head: str, bandwidth: str = "100 Mbit/s") -> Path:
    path = folder / "cluster.toml"
    path.write_text(f'{head}\n[network]\nbandwidth = "{bandwidth}"\nlatency = "1 ms"\n')
    return path


def script(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text)
    return path


def step_ends_s(text: str) -> dict[int, float]:
    """Return when rank 0 ended its steps.

    A cut at step 2 begins when the first rank has ended that step, so after rank 0 ended step 1.
    Rank 0 ends step 3 with what rank 1 sends after the cut began, so after the cut is over.
    """
    return {int(step): float(s) for step, s in re.findall(r"step (\d) ended at ([\d.]+) s", text)}


def test_call_takes_the_time_of_the_wires_and_its_result_is_right(tmp_path: Path) -> None:
    file = cluster(tmp_path, "nodes = 2\nranks_per_node = 2", "20 Mbit/s")
    done = launch("--emulate", file, script(tmp_path, REDUCE))
    assert done.returncode == 0, done.stderr
    took_s, nodes, _ = json.loads(done.stdout)
    assert nodes == [[0, 1], [2, 3]]
    # 256 KiB leave each node at least, of which the burst of 16 KB takes no time; headers do.
    assert took_s > (256 * 1024 - 16e3) * 8 / 20e6 + 1e-3
    report = [line.removeprefix("hccl-launch: ") for line in done.stderr.splitlines()]
    assert "emulated network: 2 nodes of 2, 20 Mbit/s, 1000 us" in report
    assert re.search(r"the network took \d+ ms of the job$", done.stderr, re.M)
    forecasts = [line.split()[:2] for line in report if re.match(r" +\d+ +\d+ +[\d.e+]+ ms", line)]
    assert forecasts == [["2", "4"], ["4", "8"], ["8", "16"]]


@pytest.mark.nightly("launchers")
def test_job_that_does_not_ask_imports_nothing_of_it(tmp_path: Path) -> None:
    done = launch("--nnodes", 2, script(tmp_path, REDUCE))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[2] == []


@pytest.mark.nightly("faults")
def test_faults_of_the_file_strike_at_their_steps(tmp_path: Path) -> None:
    faults = (
        '["at step 2: cut 0-1 for 700 ms", "at step 5: kill rank 1", "at step 5000: kill rank 0"]'
    )
    file = cluster(tmp_path, f"nodes = 2\nfaults = {faults}")
    done = launch("--emulate", file, script(tmp_path, TRAIN))
    ended_s = step_ends_s(done.stdout)
    assert ended_s[3] - ended_s[1] > 0.699, done.stdout + done.stderr
    assert 6 not in ended_s
    assert done.returncode == 128 + 9
    told = [line for line in done.stderr.splitlines() if "emulated network: step" in line]
    assert told == [
        "hccl-launch: emulated network: step 2: the link 0-1 is cut for 0.7 s",
        "hccl-launch: emulated network: step 5: rank 1 is killed",
    ]
    assert "rank 1 of 2 was killed by SIGKILL" in done.stderr
    assert "as the file of --emulate says: at step 5: kill rank 1" in done.stderr
    assert "out of memory" not in done.stderr
    assert "hccl-launch:   not reached: at step 5000: kill rank 0\n" in done.stderr


@pytest.mark.nightly("faults")
def test_link_that_is_cut_for_long_breaks_its_paths_and_the_job_goes_on(tmp_path: Path) -> None:
    file = cluster(tmp_path, 'nodes = 2\nfaults = ["at step 2: cut 0-1 for 5 s"]')
    done = launch("--emulate", file, script(tmp_path, TRAIN))
    assert done.returncode == 0, done.stderr
    ended_s = step_ends_s(done.stdout)
    assert ended_s[3] - ended_s[1] > 4.999
    for rank, peer in ((0, 1), (1, 0)):
        path = rf"rank {rank}: path 0 \(.*\) to rank {peer} on .* \(pid \d+\)"
        assert re.search(f"{path} broke; it will be used again when it can", done.stderr)
        assert re.search(f"{path} works again", done.stderr)


@pytest.mark.nightly("faults")
@pytest.mark.parametrize(
    ("signal", "what"),
    [
        ("SIGKILL", "died (exit code -9)"),
        ("SIGSTOP", "did not answer for 8 s (was it stopped?)"),
    ],
)
def test_network_that_dies_or_stands_still_ends_the_job_without_a_restart(
    signal: str, what: str, tmp_path: Path
) -> None:
    file, text = cluster(tmp_path, "nodes = 2"), SIGNAL_NETWORK.replace("{signal}", signal)
    done = launch("--max-restarts", 3, "--emulate", file, script(tmp_path, text))
    assert done.returncode == AGENT_KILLED
    assert done.stdout.count("all have come") <= 2  # one attempt
    why = f"the process that emulates the network {what}"
    told = [line for line in done.stderr.splitlines() if line.startswith("hccl-launch: ")]
    assert told == [
        f"hccl-launch: {why}: the job ends",
        f"hccl-launch: error: {why}; all ranks were ended",
    ]


@pytest.mark.nightly("faults")
def test_job_that_goes_on_without_a_rank_is_measured_before_and_after(tmp_path: Path) -> None:
    file = cluster(tmp_path, 'nodes = 3\nfaults = ["at step 20: kill rank 0"]')
    done = launch("--min-ranks", 2, "--emulate", file, script(tmp_path, SHRINK))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2", "2"]
    found = re.search(r"(\d+) steps were measured", done.stderr)
    assert found is not None, done.stderr
    left_out = re.search(r"(\d+) more were not: not all ranks reported", done.stderr)
    assert left_out is not None
    assert int(found[1]) + int(left_out[1]) == 59
    assert int(found[1]) >= 39  # those after the death at least
    # One step has a call twice; steps in doubt have none.
    found = re.search(r"the ([\d.]+) collectives of a step took [1-9]", done.stderr)
    assert found is not None, done.stderr
    assert 0.9 <= float(found[1]) < 1.1
