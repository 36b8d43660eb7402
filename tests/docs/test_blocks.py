"""Every block of Python in a page runs: here, with what it needs before it, or in a named test."""

import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from launching import launch, run
from tiers import by_night

ROOT = Path(__file__).resolve().parents[2]


def blocks_of(page: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text()
    return re.findall(r"^```python\n(.*?)^```", text, re.S | re.M)


class Surroundings(NamedTuple):
    """What a fragment needs: options of hccl-launch ("": none starts it), lines before it, and what
    is printed then.
    """

    options: str
    before: str
    printed: str = ""
    after: str = "print('done')"


NUMPY = """
import os, signal
import numpy as np
import hccl_py
from hccl_py import Communicator, CommunicatorError
comm = Communicator() if int(os.environ['WORLD_SIZE']) > 1 else None
"""
TORCH = """
import os, signal
import torch
import torch.distributed as dist
import hccl_py
from torch.nn.parallel import DistributedDataParallel
from torch.distributed.fsdp import fully_shard
dist.init_process_group('hccl')
gradients, tensor, model = torch.ones(9), torch.ones(9), torch.nn.Linear(3, 1)
"""
KILLED = "if int(os.environ['RANK']) == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
NEWCOMER = """
import threading
weights = np.ones(9)
def join(*member):
    Communicator(*member).broadcast(np.empty(9), 0)
def send(uid, rank, world_size):
    threading.Thread(target=join, args=(uid, rank, world_size)).start()
"""
CHANGING = """
import sys
from datetime import timedelta
import torch
import torch.distributed as dist
if not hasattr(dist, '_reconfigure'):
    print('done')
    sys.exit()
store, rank, world_size, tensor = dist.HashStore(), 0, 1, torch.ones(1)
next_members = lambda handle: (1, [handle])
"""

HERE = {
    ("api/communicator.md", 0): Surroundings(
        "--nproc-per-node 1",
        NUMPY + "rank, world_size, array, total = 0, 1, np.ones(9), np.ones(9)\n",
        "done",
    ),
    ("api/communicator.md", 1): Surroundings(
        "--nproc-per-node 2",
        NUMPY + "gradients, flags, fill = np.ones(9), np.ones(3), lambda *arrays: None\n",
        "done",
    ),
    ("api/communicator.md", 2): Surroundings("--nproc-per-node 2", NUMPY, "window [1. 1. 1.]"),
    ("api/exact.md", 0): Surroundings(
        "--nproc-per-node 2", NUMPY + "gradients = np.ones(9, np.float32)\n", "done"
    ),
    ("api/exact.md", 1): Surroundings(
        "--nproc-per-node 2",
        TORCH
        + "micro_batches = torch.ones(2, 4, 3)\n"
        + "optimizer = torch.optim.SGD(model.parameters())\n",
        "done",
    ),
    ("api/registered.md", 0): Surroundings(
        "--nproc-per-node 2",
        TORCH + "ddp_model = DistributedDataParallel(torch.nn.Linear(3, 1))\n"
        "fsdp_model = fully_shard(torch.nn.Linear(4, 4))\n",
        "done",
    ),
    ("api/torch.md", 0): Surroundings("--nproc-per-node 2", TORCH, "done"),
    ("api/torch.md", 1): Surroundings(
        "--nproc-per-node 2",
        TORCH + "torch.compiler.set_stance('force_eager')\n",
        "tensor([[4.]])",
        "print(block(torch.ones(1, 2), torch.ones(2, 1)))",
    ),
    ("failures/recovery.md", 0): Surroundings(
        "--nproc-per-node 2 --min-ranks 1",
        NUMPY + "gradients, step, weights = np.ones(9), np.ones(1), np.ones(9)\n" + KILLED,
        "done",
    ),
    ("failures/recovery.md", 1): Surroundings("--nproc-per-node 2", NUMPY + NEWCOMER, "done"),
    ("failures/recovery.md", 2): Surroundings(
        "--nproc-per-node 1",
        NUMPY + "uid, rank, world_size, weights = hccl_py.get_unique_id(), 0, 1, np.ones(9)\n",
        "done",
    ),
    ("failures/recovery.md", 3): Surroundings(
        "--nproc-per-node 2 --min-ranks 1",
        TORCH + "model = DistributedDataParallel(model)\n"
        "loss = model(torch.ones(2, 3)).sum()\n" + KILLED,
        "done",
    ),
    ("failures/recovery.md", 4): Surroundings("--nproc-per-node 1", CHANGING, "done"),
    ("jobs/notebook.md", 0): Surroundings("", "", "rank 3 is done"),
    ("index.md", 0): Surroundings(
        "--nproc-per-node 2", "import torch.distributed as dist\n", "done"
    ),
    ("errors.md", 0): Surroundings("--nproc-per-node 2", TORCH + KILLED, " died "),
    ("failures/tracing.md", 0): Surroundings(
        "--nproc-per-node 4", "", "{'all_reduce': {'calls': 20"
    ),
    ("failures/tracing.md", 1): Surroundings("--nproc-per-node 4", "", "", ""),
    ("speed/prediction.md", 0): Surroundings("--nproc-per-node 1", "", " 256 4\n"),
}
"""Blocks that run in this file, by page and place."""

ELSEWHERE = {
    "api/torch.md": "tests/torch_backend/training/test_checkpoint.py",
    "frameworks/habana.md": "tests/integrations/test_habana.py",
    "internals/algorithms.md": "tests/lab/test_tutorial.py",
    "tutorial.md": "tests/docs/test_tutorial.py",
    "fake-cluster.md": "tests/docs/test_tutorial.py",
}
"""Blocks that another test reads from the page and runs."""

OF_FRAMEWORKS = {
    "api/accelerators.md": "tests/torch_backend/test_staging.py",
    "api/mixed-groups.md": "tests/torch_backend/groups/test_backend.py",
    "frameworks/README.md": "tests/integrations",
    "frameworks/horovod.md": "tests/horovod",
}
"""Lines of programs for a framework or a device, which tests of it contain."""


def test_every_block_is_run_by_a_test() -> None:
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    every = {(page, place) for page in pages for place in range(len(blocks_of(page)))}
    left = {page for page, place in every - set(HERE)}
    assert set(HERE) <= every
    assert left == set(ELSEWHERE) | set(OF_FRAMEWORKS)
    assert all(Path(page).stem in (ROOT / test).read_text() for page, test in ELSEWHERE.items())
    assert all((ROOT / folder).exists() for folder in OF_FRAMEWORKS.values())


FIRST, *OTHERS = [(page, place) for page, place in HERE]


@pytest.mark.parametrize(("page", "place"), [FIRST, *by_night("training", *OTHERS)])
def test_block_of_a_page_runs(
    page: str, place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    around = HERE[page, place]
    program = tmp_path / "program.py"
    program.write_text(f"{around.before}{blocks_of(page)[place]}\n{around.after}\n")
    monkeypatch.chdir(tmp_path)
    options = around.options.split()
    done = launch(*options, program) if options else run(sys.executable, program)
    assert around.printed in done.stdout, done.stderr
    wrong = r"\n(?:NameError|TypeError|AttributeError|ImportError|InvalidArgumentError|SyntaxError)"
    assert not re.search(wrong, done.stderr), done.stderr
