"""Where a stand-alone communicator finds the others: the environment that launchers set."""

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from quiet_clock import HANG_S
from ranks import run_ranks
from thread_ranks import wait_until
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from hccl_py import BootstrapError, Communicator, InvalidArgumentError
from hccl_py.membership.environment import (
    store_from_environment,
)
from hccl_py.schedulers.ports import free_port

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
NUMBERS = ("RANK", "WORLD_SIZE", "MASTER_PORT")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        *((name, "", f"{name} is not set.*hccl-launch, torchrun") for name in VARIABLES),
        *((name, "many", f"{name}: expected a number, got 'many'") for name in NUMBERS),
        ("MASTER_PORT", "-1", "MASTER_PORT: expected a port up to 65535, got -1"),
        ("MASTER_PORT", "65536", "MASTER_PORT: expected a port up to 65535, got 65536"),
    ],
)
def test_variable_that_is_missing_or_wrong_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, told: str
) -> None:
    for one, right in zip(VARIABLES, ("1", "2", "127.0.0.1", "29500"), strict=True):
        monkeypatch.setenv(one, value if one == name else right)
    with pytest.raises(InvalidArgumentError, match=told):
        Communicator(timeout_s=0.1)


def test_no_store_at_the_address_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    with pytest.raises(BootstrapError, match=rf"rank 1: no store at 127\.0\.0\.1:{port}"):
        store_from_environment(1, "default", 0.5)


def test_store_of_an_agent_is_joined_not_hosted(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(agent.port))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    store = store_from_environment(0, "mine", 5.0)
    store.set("key", b"value")
    agent.set_timeout(timedelta(seconds=5))
    # A restarted job starts afresh, whatever the last attempt left in the store.
    assert agent.get("hccl/2/mine/key") == b"value"


def one_name_awaits_another(rank: int, world_size: int, with_torch: bool) -> list[int]:
    if not with_torch:
        sys.modules["torch"] = None  # type: ignore[assignment]  # as if it was never imported

    def size(name: str) -> int:
        with Communicator(name=name, timeout_s=HANG_S) as comm:
            return comm.world_size

    if rank > 0:
        return [size("second"), size("first")]
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(size, "first")
        at = "127.0.0.1", int(os.environ["MASTER_PORT"])
        wait_until(lambda: socket.socket().connect_ex(at) == 0, "the store is served")
        return [size("second"), first.result()]


@pytest.mark.parametrize("with_torch", [True, False])
def test_names_connect_in_any_order(with_torch: bool) -> None:
    env = {"MASTER_PORT": str(free_port()), "TORCHELASTIC_USE_AGENT_STORE": ""}
    assert run_ranks(one_name_awaits_another, 3, with_torch, env=env) == [[3, 3]] * 3


def outputs_of_three(program: str) -> list[str]:
    port = str(free_port())
    ranks = []
    for rank, host in enumerate(("localhost", "127.0.0.1", "127.0.0.1")):
        place = {"RANK": str(rank), "WORLD_SIZE": "3", "MASTER_ADDR": host, "MASTER_PORT": port}
        command, env = [sys.executable, "-c", program], {**os.environ, **place}
        ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    try:
        return [each.communicate(timeout=HANG_S)[0] for each in ranks]
    finally:
        for each in ranks:
            each.kill()


WITH_FEW_DESCRIPTORS = """
import os, resource, sys
sys.modules["torch"] = None
from hccl_py import BootstrapError, Communicator
if os.environ["RANK"] == "1":
    num_open = len(os.listdir("/proc/self/fd")) - 1
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (num_open + 1, hard))
try:
    Communicator(timeout_s=600)
except BootstrapError as error:
    print(error)
"""


def test_rank_whose_soft_limit_of_descriptors_lets_no_program_run_is_named_by_all() -> None:
    for told in (found := outputs_of_three(WITH_FEW_DESCRIPTORS)):
        assert "rank 1" in told and "no descriptor is left" in told, found
