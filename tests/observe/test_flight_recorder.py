"""What the flight recorder of real ranks says, when it is written, and torch's analyser over it."""

import gc
import json
import os
import pickle
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks
from thread_ranks import ThreadRanks, wait_until
from torch.distributed.flight_recorder import fr_trace

from hccl_py import Communicator
from hccl_py.transport.errors import CommunicatorError


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def analysed(folder: Path) -> list[Any]:
    """Return the collectives that torch's own analyser finds in a folder of dumps."""
    output = folder.parent / "analysed"
    try:
        fr_trace.main([str(folder), "-o", str(output)])
    finally:
        gc.enable()  # the analyser turns it off
    _, database = pickle.loads(output.read_bytes())
    return list(database.collectives)


@pytest.fixture
def ranks() -> Iterator[ThreadRanks]:
    with ThreadRanks("aab") as three:
        yield three


def test_a_dump_tells_every_call(ranks: ThreadRanks, tmp_path: Path) -> None:
    def calls(comm: Communicator) -> Path:
        comm.all_reduce(np.ones(1001, np.float32))
        comm.all_reduce(np.ones(0, np.float64))
        comm.barrier()
        comm.all_gather(np.zeros(9, np.int16), np.zeros(3, np.int16))
        if comm.rank == 0:
            comm.send(np.zeros(3, np.uint8), 2, tag=5)
        if comm.rank == 2:
            comm.recv(np.zeros(3, np.uint8), None, tag=5)
        return comm.dump_flight_recorder(tmp_path)

    paths = ranks.run(calls)
    assert paths == [tmp_path / f"flight_recorder_rank_{rank}.json" for rank in range(3)]
    entries = read(paths[0])["entries"]
    assert [entry["call"] for entry in entries] == [
        "all_reduce(sum, float32[1001]) number 1",
        "all_reduce(sum, float64[0]) number 2",
        "barrier() number 3",
        "all_gather(int16[9 in all]) number 4",
        "send(3 bytes to rank 2, tag 5)",
    ]
    assert [entry["state"] for entry in entries] == ["completed"] * 5
    assert [entry["bytes_in"] for entry in entries if not entry["is_p2p"]][::3] == [4004, 6]
    assert [entry["collective_seq_id"] for entry in entries] == [1, 2, 3, 4, 0]
    for entry in entries:
        times = [entry[f"time_{what}_ns"] for what in ("created", "discovered_started")]
        assert times == sorted(times)
        assert times[1] <= entry["time_discovered_completed_ns"] <= time.time_ns()
    received = read(paths[2])["entries"][-1]
    assert (received["profiling_name"], received["peer"]) == ("hccl:recv 2<-0", 0)


def test_only_the_last_4096_calls_are_kept(tmp_path: Path) -> None:
    with Communicator(rank=0, world_size=1) as comm:
        for _ in range(5000):
            comm.barrier()
        entries = read(comm.dump_flight_recorder(tmp_path))["entries"]
    assert [entry["collective_seq_id"] for entry in entries] == list(range(905, 5001))


def handle_sigusr2(rank: int, world_size: int) -> list[str]:
    told: list[str] = []
    signal.signal(signal.SIGUSR2, lambda *_: told.append("mine"))
    with Communicator(rank=0, world_size=1):
        os.kill(os.getpid(), signal.SIGUSR2)
    return told


def test_a_handler_of_the_users_own_is_left_alone() -> None:
    assert run_ranks(handle_sigusr2, 1) == [["mine"]]


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "on demand"
    with Communicator(rank=0, world_size=1) as comm:
        comm.dump_flight_recorder(folder)
    assert sorted(os.listdir(folder)) == ["flight_recorder_rank_0.json", "torch_rank_0"]
    for path in [folder, *folder.iterdir()]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


@pytest.mark.parametrize("variable", [None, ""])
def test_a_default_folder_that_others_can_write_to_is_refused(
    variable: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if variable is None:
        monkeypatch.delenv("HCCL_TRACE_DIR", raising=False)
    else:
        monkeypatch.setenv("HCCL_TRACE_DIR", variable)
    folder = tmp_path / f"hccl_trace_{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    with (
        Communicator(rank=0, world_size=1) as comm,
        pytest.raises(PermissionError, match="another user"),
    ):
        comm.dump_flight_recorder()
    assert list(folder.iterdir()) == []


def fail_together(comm: Communicator) -> str:
    with pytest.raises(CommunicatorError) as raised:
        if comm.rank == 0:
            comm.abort("enough")
        comm.barrier()
    return str(raised.value)


def test_a_failure_is_written_once_where_the_environment_says(
    ranks: ThreadRanks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HCCL_TRACE_DIR", str(tmp_path))
    ranks.run(fail_together)
    for rank in range(3):
        path = tmp_path / f"flight_recorder_rank_{rank}.json"
        assert "enough" in read(path)["reason"]
        path.unlink()
    ranks.run(fail_together)
    assert list(tmp_path.glob("*.json")) == []


@pytest.mark.parametrize("place", ["/dev/full/below", "/proc/nowhere"])
def test_a_dump_that_cannot_be_written_hides_no_error(
    place: str, ranks: ThreadRanks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HCCL_TRACE_DIR", place)
    assert all("enough" in text for text in ranks.run(fail_together))


def hang_and_write(rank: int, _: int, folder: str) -> list[str]:
    """Ask for the recorder of a process whose main thread waits in C++ for a message."""
    tempfile.tempdir = folder
    written: dict[str, Any] = {}
    own = Path(folder, f"hccl_trace_{os.getuid()}")
    paths = [own / f"flight_recorder_rank_{one}.json" for one in range(2)]
    have_read = [Path(folder, f"rank {one} has read") for one in range(2)]

    def ask() -> None:
        try:
            wait_until(lambda: len(comm._state.core.records()) == 2, "the recv is under way")
            os.kill(os.getpid(), signal.SIGUSR2)
            wait_until(lambda: all(path.exists() for path in paths), "both have their files")
            written.update(read(paths[rank]))
            have_read[rank].touch()
            # The failure is written to the same file.
            wait_until(lambda: all(path.exists() for path in have_read), "both have read it")
        finally:
            comm.abort("seen enough")

    with Communicator() as comm:
        comm.barrier()
        thread = threading.Thread(target=ask)
        thread.start()
        with pytest.raises(CommunicatorError):
            comm.recv(np.zeros(1), 1 - rank)
        thread.join()
    return [written["reason"], *(entry["state"] for entry in written["entries"])]


def test_a_rank_that_hangs_in_cpp_writes_on_sigusr2(tmp_path: Path) -> None:
    told = run_ranks(hang_and_write, 2, str(tmp_path))
    assert told == [["SIGUSR2", "completed", "submitted"]] * 2


def straggle(rank: int, _: int, folder: str) -> None:
    os.environ["HCCL_TRACE_DIR"] = folder
    import torch
    import torch.distributed as dist

    for _ in range(3):
        dist.all_reduce(torch.ones(10))
    dist.all_gather_single(torch.zeros(8, dtype=torch.int16), torch.ones(2, dtype=torch.int16))
    if rank == 0:
        dist.send(torch.ones(1), 1)
    if rank == 1:
        dist.recv(torch.ones(1), 0)
    half = dist.new_group([0, 2] if rank in (0, 2) else [1, 3], use_local_synchronization=True)
    dist.barrier(group=half)
    group = dist.distributed_c10d._get_default_group()
    if rank == 3:
        engine = group.communicator._state.core
        wait_until(engine.failed, "the others have given up")
    options = dist.AllreduceOptions()
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:  # its time is up when the two others have called
        store.wait(["rank 1 has called", "rank 2 has called"])
        options.timeout = timedelta(seconds=1)
    with pytest.raises(dist.DistBackendError):
        work = group.allreduce([torch.ones(3)], options)
        store.set(f"rank {rank} has called", "")
        work.wait()


def test_torchs_analyser_names_the_straggler(tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    run_ranks(straggle, 4, str(folder), backend="hccl")
    collectives = analysed(folder)
    (bad,) = [one for one in collectives if one.missing_ranks or not one.pass_check]
    assert bad.missing_ranks == {3}
    assert bad.collective_name == "hccl:all_reduce"
    good = [one for one in collectives if one is not bad]
    assert [one.collective_name for one in good if one.group_id == bad.group_id] == [
        *["hccl:all_reduce"] * 3,
        "hccl:all_gather",
    ]
    halves = [one for one in good if one.group_id != bad.group_id]
    assert sorted(map(sorted, (one.expected_ranks for one in halves))) == [[0, 2], [1, 3]]
