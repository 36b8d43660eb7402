"""Each example of examples/frameworks ends on two nodes as one process on the whole batch does."""

import re
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet
from launching import job, launch
from matrix import shown

FOLDER = Path(__file__).parents[2] / "examples" / "frameworks"
LIMIT_S = 500.0  # DeepSpeed compiles a part of itself at its first start
NODES = ("--nnodes", "2", "--nproc-per-node", "2")

pytestmark = [pytest.mark.nightly("frameworks"), pytest.mark.timeout(2 * LIMIT_S)]


def example(words: str, framework: str, **cells: str) -> ParameterSet:
    """Return a parameter: the example with its arguments; the guard would raise here."""
    return shown(words, framework, **cells, guard="quiet")


EXAMPLES = [
    example(
        "train_lightning.py hccl", "Lightning", data_parallel="Trainer", adapter='`strategy="hccl"`'
    ),
    example(
        "train_lightning.py hccl_fsdp2", "Lightning", sharded="FSDP2", adapter='`"hccl_fsdp2"`'
    ),
    example("train_fabric.py hccl", "Lightning", data_parallel="Fabric"),
    example("train_fabric.py hccl_fsdp2", "Lightning", sharded="FSDP2"),
    example("train_accelerate.py", "Accelerate", data_parallel="yes", adapter='`backend="hccl"`'),
    example(
        "train_transformers.py", "transformers", data_parallel="yes", adapter='`ddp_backend="hccl"`'
    ),
    example("train_ignite.py", "ignite", data_parallel="yes", adapter='`backend="hccl"`'),
    example("train_deepspeed.py 3", "DeepSpeed", sharded="ZeRO 3"),
]


@pytest.fixture(autouse=True)
def guard_raises(environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HCCL_GUARD", "error")


@pytest.mark.parametrize("words", EXAMPLES)
def test_example_trains_what_one_process_does_on_the_whole_batch(words: str) -> None:
    program, *arguments = words.split()
    alone = weights(launch("--nproc", 1, FOLDER / program, *arguments, limit_s=LIMIT_S))
    several = weights(launch(*NODES, FOLDER / program, *arguments, limit_s=LIMIT_S))
    assert sorted(several) == [0, 1, 2, 3]
    assert len(set(several.values())) == 1
    assert several[0] == pytest.approx(alone[0], rel=1e-5)


@pytest.mark.shows("Lightning", "data parallel", "Trainer")
def test_lightning_starts_the_ranks_of_each_node_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand on every node: NODE_RANK, MASTER_ADDR and MASTER_PORT, and no launcher."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        monkeypatch.setenv("MASTER_PORT", str(free.getsockname()[1]))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    printed = ""
    with ExitStack() as stack:
        nodes = []
        for node in range(2):
            monkeypatch.setenv("NODE_RANK", str(node))
            nodes.append(stack.enter_context(job(sys.executable, FOLDER / "train_lightning.py")))
        for process in nodes:
            out, err = process.communicate(timeout=LIMIT_S)
            assert process.returncode == 0, err
            printed += out
    found = re.findall(r"rank (\d): weights (\S+)", printed)
    assert sorted(rank for rank, _ in found) == ["0", "1", "2", "3"], printed
    assert len({value for _, value in found}) == 1


def test_examples_are_short() -> None:
    assert all(len(path.read_text().splitlines()) <= 40 for path in FOLDER.glob("*.py"))


def weights(ran: subprocess.CompletedProcess[str]) -> dict[int, float]:
    """Return what each rank printed, after a job that ended well."""
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = re.findall(r"rank (\d+): weights (\S+)", ran.stdout)
    return {int(rank): float(value) for rank, value in found}
