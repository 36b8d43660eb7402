"""The example, a Horovod program but for its import, under hccl-launch and under mpirun."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from launching import launch
from mpi_wheels import ENVIRONMENT, OPTIONS, mpirun
from quiet_clock import HANG_S

EXAMPLE = Path(__file__).parents[2] / "examples" / "frameworks" / "horovod.py"


def losses(printed: str) -> list[float]:
    """Return the loss of each epoch."""
    found = re.findall(r"epoch (\d) on 2 ranks: loss (\S+)$", printed, re.M)
    assert [epoch for epoch, _ in found] == list("01234"), printed
    return [float(loss) for _, loss in found]


WITHOUT_TORCH = """
import sys
import numpy as np
import hccl_py.horovod as hvd
for _ in range(2):
    hvd.init()
    assert hvd.allreduce(np.array([hvd.rank()]), op=hvd.Sum).tolist() == [1]
    hvd.shutdown()
assert "torch" not in sys.modules
"""


@pytest.mark.nightly("training")
def test_ranks_of_a_program_without_torch_meet_without_it(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(WITHOUT_TORCH)
    ran = launch("--nproc", 2, program)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.nightly("launchers")
@pytest.mark.parametrize("wheel", OPTIONS)
def test_example_learns_under_mpirun(wheel: str) -> None:
    command = [mpirun(wheel), *OPTIONS[wheel], "-n", "2", sys.executable, str(EXAMPLE)]
    ran = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=HANG_S)
    assert ran.returncode == 0, ran.stderr
    losses(ran.stdout)


ELASTIC = """
import os, signal
import torch
import hccl_py.horovod.torch as hvd
hvd.init()
@hvd.elastic.run
def count(state):
    while state.step < 6:
        if hvd.size() == 3 and hvd.rank() == 1 and state.step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        state.total += int(hvd.allreduce(torch.tensor(1), op=hvd.Sum))
        state.step += 1
        state.commit()
state = hvd.elastic.ObjectState(step=0, total=0)
count(state)
print("total", state.total, flush=True)
"""


@pytest.mark.nightly("launchers")
def test_open_mpi_lets_the_others_go_on_without_a_killed_rank(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(ELASTIC)
    options = [*OPTIONS["openmpi"], "--enable-recovery", "-n", "3"]
    command = [mpirun("openmpi"), *options, sys.executable, str(program)]
    ran = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=HANG_S)
    assert re.findall(r"total (\d+)", ran.stdout) == [str(3 * 3 + 3 * 2)] * 2, ran.stderr
