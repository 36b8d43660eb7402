"""Torch's debug server asks each rank; the ranks of hccl groups answer with their own calls."""

import json
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch._C._distributed_c10d import _WorkerServer

PORT = 25987
PAGES = "torchcomms_fr_trace", "fr_trace_nccl", "stacks", "profile?duration=1"


def ask(server: Any, name: str) -> Any:
    url = f"http://127.0.0.1:{server.port}/handler/{name}"
    request = urllib.request.Request(url, method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


def answer(rank: int, world_size: int, folder: str) -> list[Any]:
    server: Any = _WorkerServer("::", 0)
    group: Any = dist.group.WORLD
    dist.all_reduce(torch.ones(3))
    calls, healthy = ask(server, "torchcomms_fr_trace_json"), ask(server, "torchcomms_health_check")
    dist.barrier()  # before a rank aborts
    group.abort()
    with pytest.raises(dist.DistBackendError):
        dist.barrier()
    failed, dumped = ask(server, "torchcomms_health_check"), ask(server, "torchcomms_fr_dump_file")
    server.shutdown()
    return [calls, healthy, failed, dumped]


def test_ranks_answer_with_their_calls_and_health(tmp_path: Path) -> None:
    environment = {"HCCL_TRACE_DIR": str(tmp_path)}
    answers = run_ranks(answer, 2, str(tmp_path), backend="hccl", env=environment)
    for rank, (calls, healthy, failed, dumped) in enumerate(answers):
        assert (calls["rank"], calls["pg_config"]["0"]["ranks"]) == (rank, "[0, 1]")
        assert [entry["profiling_name"] for entry in calls["entries"]] == ["hccl:all_reduce"]
        assert healthy == {"healthy": True, "failed_groups": []}
        assert failed == {"healthy": False, "failed_groups": ["0"]}
        assert dumped == {"files": [str(tmp_path / f"flight_recorder_rank_{rank}.json")]}


def read_pages(rank: int, world_size: int) -> dict[str, str]:
    """Read pages of the server on rank 0 while both ranks call."""
    from torch.distributed.debug import start_debug_server, stop_debug_server

    pages: dict[str, str] = {}
    done = threading.Event()
    start_debug_server(port=PORT)

    def read() -> None:
        try:
            for page in PAGES:
                pages[page] = read_page(page)
        finally:
            done.set()

    thread = threading.Thread(target=read)
    if rank == 0:
        thread.start()
    flag = torch.zeros(1)
    while not flag:
        flag.fill_(rank == 0 and done.wait(0.02))  # which paces both ranks
        dist.all_reduce(flag)
    if rank == 0:
        thread.join()
        stop_debug_server()
    return pages


def read_page(page: str) -> str:
    """Return its text once the server listens."""
    deadline = time.monotonic() + 40
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/{page}", timeout=40) as answer:
                return str(answer.read().decode())
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionRefusedError):
                raise
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.nightly("frameworks")
@pytest.mark.timeout(240)
def test_servers_pages_show_the_calls_of_all_ranks() -> None:
    pytest.importorskip("tabulate", reason="the server's pages need the extra debug-server")
    pages, _ = run_ranks(read_pages, 2, backend="hccl", timeout_s=180)
    for page in PAGES:
        assert ("read_pages" if page == "stacks" else "hccl:all_reduce") in pages[page], page
