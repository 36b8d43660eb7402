"""torchft from its wheel, with its own lighthouse and manager, on hccl's process group."""

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import COMMAND, job
from torch._C._distributed_c10d import AllreduceOptions, TCPStore
from torch.distributed import DistBackendError

JOB = Path(__file__).parent / "programs" / "torchft_job.py"
EXAMPLE = Path(__file__).parents[2] / "examples" / "frameworks" / "train_torchft.py"
NUM_REPLICAS = 3
BACK = 8  # as in the job
LIMIT_S = 300.0

pytestmark = [pytest.mark.nightly("frameworks"), pytest.mark.timeout(2 * LIMIT_S)]


@pytest.fixture
def lighthouse(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = Path(sys.prefix) / "bin" / "torchft_lighthouse"
    limits = "--join_timeout_ms", "20000", "--heartbeat_timeout_ms", "2000"
    monkeypatch.setenv("TORCHFT_LIGHTHOUSE", f"http://localhost:{port}")
    process = subprocess.Popen(
        [command, "--bind", f"[::]:{port}", "--min_replicas", "2", *limits],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


Replica = subprocess.Popen[str]


@contextmanager
def replicas(kind: str, folder: Path, *fate: str) -> Iterator[tuple[list[Replica], Any]]:
    """Start all replicas, the second with its fate; the function returned starts one again."""
    with ExitStack() as stack:

        def start(number: int, *words: str) -> Replica:
            return stack.enter_context(job(sys.executable, JOB, number, kind, folder, *words))

        yield [start(0), start(1, *fate), start(2)], start


def ready(replica: Replica) -> None:
    assert replica.stdout is not None
    assert replica.stdout.readline() == "ready\n", replica.communicate()


def ended(replica: Replica) -> str:
    out, err = replica.communicate(timeout=LIMIT_S)
    assert replica.returncode == 0, out + err
    return out


def run_with_a_death(folder: Path) -> list[str]:
    """Return what the replicas print, the second of which dies and comes back."""
    with replicas("hccl", folder, "die") as (running, start):
        for replica in running:
            ready(replica)
        (folder / "0").touch()
        assert running[1].wait(LIMIT_S) == -9
        running[1] = start(1)
        ready(running[1])
        (folder / str(BACK)).touch()
        with ThreadPoolExecutor() as pool:
            return list(pool.map(ended, running))


@pytest.mark.usefixtures("lighthouse")
@pytest.mark.shows("torchft", "adapter", "`integrations.torchft`: a replica dies and comes back")
def test_killed_replica_comes_back_and_all_end_with_equal_parameters(tmp_path: Path) -> None:
    outputs = run_with_a_death(tmp_path)
    assert len(set(re.findall("md5 .*", "".join(outputs)))) == 1, outputs
    for survivor in (outputs[0], outputs[2]):
        [(elapsed_s, error)] = re.findall("lost after (.*) s: (.*)", survivor)
        assert float(elapsed_s) < 5.0, survivor
        assert "rank 1 (host" in error, error
        assert "died: killed by signal 9" in error, error
        sizes = [int(size) for size in re.findall("step .* of (.)", survivor)]
        assert sizes[-1] == NUM_REPLICAS, survivor
        assert 2 in sizes, survivor


def run_undisturbed(kind: str, folder: Path) -> list[float]:
    """Return the sum of the parameters on each replica."""
    folder.mkdir()
    with replicas(kind, folder) as (running, _):
        for replica in running:
            ready(replica)
        (folder / "0").touch()
        (folder / str(BACK)).touch()
        with ThreadPoolExecutor() as pool:
            outputs = list(pool.map(ended, running))
    return [float(value) for value in re.findall("model (.*)", "".join(outputs))]


@pytest.mark.usefixtures("lighthouse")
@pytest.mark.shows("torchft", "data parallel")
def test_replicas_train_as_with_torchfts_gloo(tmp_path: Path) -> None:
    ours = run_undisturbed("hccl", tmp_path / "hccl")
    assert ours == [ours[0]] * NUM_REPLICAS
    assert ours == pytest.approx(run_undisturbed("gloo", tmp_path / "gloo"), rel=1e-5)


def start_all_reduce(group: Any, asynchronous: bool) -> Any:
    options = AllreduceOptions()
    options.asyncOp = asynchronous
    return group.allreduce([torch.ones(4)], options)


def test_group_reports_a_failed_call_until_it_is_configured_again() -> None:
    from hccl_py.integrations.torchft import ProcessGroupHccl

    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    groups = [ProcessGroupHccl(timedelta(seconds=30)) for _ in range(2)]

    def configure(rank: int, quorum: int) -> None:
        address = f"localhost:{store.port}/quorum/{quorum}"
        groups[rank].configure(address, f"replica{rank}", rank, 2, quorum, 0, 1, [0, 1])

    with ThreadPoolExecutor(2) as pool:
        for quorum in (1, 2):
            list(pool.map(configure, range(2), [quorum] * 2))
            assert groups[0].size() == 2
            assert groups[0].errored() is None
            works = [start_all_reduce(group, asynchronous=True) for group in groups]
            assert [work.wait() for work in works] == [True, True]
            waiting = start_all_reduce(groups[0], asynchronous=True)
            groups[1].abort()
            with pytest.raises(DistBackendError, match="abort"):
                waiting.wait()
            assert "abort" in str(groups[0].errored())
            with pytest.raises(DistBackendError, match="abort"):
                start_all_reduce(groups[0], asynchronous=False)
    groups[0].shutdown()
    with pytest.raises(AssertionError, match="not initialized"):
        start_all_reduce(groups[0], asynchronous=True)


@pytest.mark.usefixtures("lighthouse")
def test_example_ends_with_equal_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HCCL_SECRET", "the same for both jobs")
    with ExitStack() as stack:
        running = []
        for number in range(2):
            monkeypatch.setenv("REPLICA", str(number))
            running.append(stack.enter_context(job(*COMMAND, "--nproc", 1, EXAMPLE)))
        with ThreadPoolExecutor() as pool:
            first, second = pool.map(ended, running)
    assert first == second
    assert first.startswith("step 10, model ")
