"""What is wrong with one rank is the error of all, through every door, long before a timeout.

The doors: `torch` and `file` are init_process_group with env:// and file://, `env` is
Communicator() in a program without torch, `id` a Communicator of a unique id.
"""

import contextlib
import errno
import os
import re
import resource
import signal
import sys
import threading
import time
from collections.abc import Collection, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from forbidden_calls import forbid, is_possible
from quiet_clock import HANG_S
from ranks import run_ranks
from tiers import by_night

from hccl_py import BootstrapError, Communicator, get_unique_id
from hccl_py.schedulers.ports import free_port
from hccl_py.transport import arena
from hccl_py.transport.bootstrap import mesh
from hccl_py.transport.errors import HcclError

DOORS = ("torch", "file", "env", "id")
MORE = pytest.mark.nightly("faults")


def through_each_door(daily: str) -> pytest.MarkDecorator:
    """Try every door: this one in the default tier, the others by night."""
    doors = [pytest.param(door, marks=() if door == daily else MORE) for door in DOORS]
    return pytest.mark.parametrize("door", doors)


OWN_TIMEOUT_S = 600.0  # longer than a test may take: ranks that wait in vain fail it


def meet(
    door: str,
    environments: list[Mapping[str, str]],
    folder: Path,
    *,
    before: str = "",
    victims: Collection[int] = (),
) -> list[str]:
    """Run a rank with each environment; return its sum, or its error in words.

    `before` names a function of this file, called in each rank before it meets the others.
    """
    where: Any = {"file": str(folder / "store"), "id": bytes(get_unique_id())}.get(door)
    extra = {}
    if door == "env":
        extra = {"MASTER_PORT": str(free_port()), "TORCHELASTIC_USE_AGENT_STORE": ""}
    found: list[str] = run_ranks(
        _meet,
        len(environments),
        *(door, where, before),
        env=lambda rank: {**extra, **environments[rank]},
        timeout_s=HANG_S,
        victims=victims,
    )
    return found


def _meet(_rank: int, _size: int, door: str, where: Any, before: str) -> str:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        if before:
            globals()[before](_rank)
        if door in ("torch", "file"):
            at = {"init_method": f"file://{where}", "rank": rank, "world_size": size}
            limit = timedelta(seconds=OWN_TIMEOUT_S)
            dist.init_process_group("hccl", timeout=limit, **(at if door == "file" else {}))
            data = torch.ones(3)
            dist.all_reduce(data)
            dist.destroy_process_group()
            return f"sum {data[0]:g}"
        if door == "env":
            sys.modules["torch"] = None  # type: ignore[assignment]  # as if it was never imported
        given = (where, rank, size) if door == "id" else ()
        array = np.ones(3)
        with Communicator(*given, timeout_s=OWN_TIMEOUT_S) as comm:
            comm.all_reduce(array)
        return f"sum {array[0]:g}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.fixture(autouse=True)
def on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HCCL_SOCKET_IFNAME", "lo")


DAILY = ("file", "", "", "", "env", "", "id", "", "", "")
WRONG: list[tuple[dict[str, str], str]] = [
    ({"HCCL_ALGORITHM": "ring"}, "HCCL_ALGORITHM is not set on ranks 0, 1, 'ring' on rank 2"),
    ({"HCCL_TLS": "maybe"}, "HCCL_TLS: expected 0 or 1, got 'maybe'"),
    ({"HCCL_ALGORITHM": "rign"}, "HCCL_ALGORITHM: there is no 'rign'"),
    ({"HCCL_ARENA_BYTES": "many"}, "HCCL_ARENA_BYTES: expected a number of bytes"),
    ({"HCCL_CORES": "next"}, "HCCL_CORES: expected near or far or crowded, got 'next'"),
    ({"HCCL_WAIT": "often"}, "HCCL_WAIT: expected spin or balanced or idle, got 'often'"),
    ({"RANK": "7"}, "rank 7"),
    ({"RANK": "1"}, "two processes claim rank 1"),
    ({"RANK": "0"}, "two processes claim rank 0"),
    ({"WORLD_SIZE": "4"}, "4"),
]


@pytest.mark.parametrize(
    "door, wrong, named",
    [
        pytest.param(door, *case, marks=() if door == daily else MORE)
        for door in DOORS
        for case, daily in zip(WRONG, DAILY, strict=True)
    ],
)
def test_rank_with_a_wrong_setting_is_named_by_all(
    door: str, wrong: dict[str, str], named: str, tmp_path: Path
) -> None:
    for told in meet(door, [{}, {}, wrong], tmp_path):
        assert named in told, told


@through_each_door("file")
def test_rank_0_with_a_wrong_setting_is_named_by_all(door: str, tmp_path: Path) -> None:
    for told in meet(door, [{"HCCL_COMPRESSION": "zip"}, {}, {}], tmp_path):
        assert "HCCL_COMPRESSION: expected one of" in told, told


def lack_descriptors(rank: int) -> None:
    if rank == 1:
        num_open = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (num_open + 4, num_open + 4))


def use_up_descriptors(rank: int) -> None:
    if rank == int(os.environ.get("WHO", "1")):
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
        held = [os.open(os.devnull, os.O_RDONLY)]
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        for one in held[: int(os.environ.get("LEFT", "4"))]:
            os.close(one)


@pytest.mark.parametrize(
    "door, who, left",
    [
        ("env", "1", "4"),
        *by_night("faults", ("env", "0", "0"), ("env", "1", "0"), ("env", "0", "4")),
        *by_night("faults", *((door, who, "4") for door in DOORS if door != "env" for who in "01")),
    ],
)
def test_rank_that_has_used_up_its_descriptors_is_named_by_all(
    door: str, who: str, left: str, tmp_path: Path
) -> None:
    """With none left it cannot even resolve a name."""
    told = meet(door, [{"WHO": who, "LEFT": left}] * 3, tmp_path, before="use_up_descriptors")
    for one in told:
        assert f"rank {who} on" in one or one is told[int(who)], told
        assert "BootstrapError" in one or "BackendError" in one, told
        assert "no descriptor" in one or "descriptors" in one, told


def forbid_memory(rank: int) -> None:
    def refuse() -> int:
        raise PermissionError("memfd_create: Operation not permitted")

    if rank == 1:
        arena._wanted_bytes = refuse


def die_after_arriving(rank: int) -> None:
    """Rank 1 is killed once its peer info is there; rank 2 comes later."""
    if rank == 1:
        meet_others = mesh.meet

        def meet_and_die(*given: object, **more: object) -> None:
            def poll() -> None:
                os.kill(os.getpid(), signal.SIGKILL)

            meet_others(*given[:-1], poll)  # type: ignore[arg-type]

        mesh.meet = meet_and_die  # type: ignore[assignment]
    if rank == 2:
        time.sleep(3.0)  # not for luck: rank 1 dies a second after it came, in any order


@through_each_door("env")
def test_rank_that_is_killed_after_it_arrived_is_named_by_those_who_come_later(
    door: str, tmp_path: Path
) -> None:
    for told in meet(door, [{}] * 3, tmp_path, before="die_after_arriving", victims=[1])[::2]:
        assert "rank 1" in told and "ended" in told, told


def differ_in_a_subgroup(rank: int, _size: int) -> str:
    os.environ["HCCL_ALGORITHM"] = "mesh"
    with Communicator(timeout_s=OWN_TIMEOUT_S) as comm:
        os.environ["HCCL_ALGORITHM"] = "ring" if rank == 2 else "mesh"
        data = np.ones(1000)
        comm.all_reduce(data)  # by what was compared
        assert data[0] == 3
        texts = []
        for make in (lambda: comm.subset([0, 2], "both"), lambda: comm.split(rank % 2)):
            if rank == 1 and not texts:
                texts.append("")
                continue
            try:
                with make() as _:
                    texts.append("")
            except BootstrapError as error:
                texts.append(str(error))
        return "\n".join(texts)


def test_settings_of_subsets_and_splits_are_compared() -> None:
    told = run_ranks(differ_in_a_subgroup, 3)
    assert told[1] == "\n"
    for text in (told[0], told[2]):
        named = "HCCL_ALGORITHM is 'mesh' on rank 0, 'ring' on rank 1"
        assert text.count(named) == 2, text


def fill_files(rank: int) -> None:
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_240, 10_240))


def forbid_files(rank: int) -> None:
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def forbid_threads(rank: int) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    if rank == 1:
        threading.Thread.start = refuse  # type: ignore[method-assign]


def forbid_eventfd(rank: int) -> None:
    if rank == 1:
        forbid("eventfd2", errno.EPERM)


LIMITS: dict[str, tuple[tuple[str, ...], str]] = {
    "lack_descriptors": (("torch", "file"), "descriptor|open files"),
    "forbid_memory": (("file", "torch", "env", "id"), "memfd_create"),
    "fill_files": (("file", "torch", "env", "id"), "File too large"),
    "forbid_files": (("env", "torch"), "HCCL_TLS=1.*ulimit -f"),
    "forbid_threads": (("env", "torch", "file", "id"), "can't start new thread.*ulimit -u"),
    "forbid_eventfd": (("torch", "file"), "eventfd2"),
}
"""What befalls rank 1: the doors, of which the first stands in the default tier, and what all tell.
A door that is missing needs itself what is forbidden."""


@pytest.mark.parametrize(
    "before, door",
    [
        pytest.param(before, door, marks=MORE if door != doors[0] else ())
        for before, (doors, _) in LIMITS.items()
        for door in doors
    ],
)
def test_rank_that_lacks_what_it_needs_is_named_by_all(
    before: str, door: str, tmp_path: Path
) -> None:
    if before == "forbid_eventfd" and not is_possible():
        pytest.skip("numbers of another machine")
    env = {"HCCL_TLS": "1"} if before == "forbid_files" else {}
    for rank, told in enumerate(meet(door, [env] * 3, tmp_path, before=before)):
        assert rank == 1 or "rank 1 on" in told, told
        assert re.search(LIMITS[before][1], told) or (rank, before) == (1, "lack_descriptors"), told


GARBAGE = [
    ({"RANK": "two"}, "RANK: expected a number, got 'two'"),
    ({"RANK": "-1"}, "is not in 0..2"),
    ({"WORLD_SIZE": "three"}, "WORLD_SIZE: expected a number, got 'three'"),
    ({"WORLD_SIZE": "-3"}, "rank 2 is not in 0..-4"),
    ({"WORLD_SIZE": "1"}, "rank 2 is not in 0..0"),
]


def _meet_by_environment(
    rank: int, _size: int, with_torch: bool, wrong: dict[str, str], who: int
) -> str:
    if rank == who:
        os.environ.update(wrong)
    if not with_torch:
        sys.modules["torch"] = None  # type: ignore[assignment]  # as if it was never imported
    try:
        Communicator(timeout_s=OWN_TIMEOUT_S)
    except HcclError as error:
        return str(error)
    return ""


SERVED = ("by an agent", "with torch", "without torch")
GARBAGE_OF_RANK_0 = [
    ({"RANK": "zero"}, "RANK: expected a number, got 'zero'"),
    ({"RANK": ""}, "RANK is not set"),
    ({"WORLD_SIZE": "three"}, "WORLD_SIZE: expected a number, got 'three'"),
]


@pytest.mark.parametrize(
    "served, who, wrong, named",
    [
        *(
            pytest.param(served, 2, *case, marks=() if i == daily else MORE)
            for served, daily in (("by an agent", 0), ("without torch", None))
            for i, case in enumerate(GARBAGE)
        ),
        *(
            pytest.param(served, 0, *case, marks=MORE)
            for served in SERVED
            for case in GARBAGE_OF_RANK_0
        ),
    ],
)
def test_rank_that_does_not_know_which_it_is_tells_the_others(
    served: str, who: int, wrong: dict[str, str], named: str
) -> None:
    env = {} if served == "by an agent" else {"MASTER_PORT": str(free_port())}
    env["TORCHELASTIC_USE_AGENT_STORE"] = str(served == "by an agent")
    args = (served != "without torch", wrong, who)
    for told in run_ranks(_meet_by_environment, 3, *args, env=env, timeout_s=HANG_S):
        assert named in told, told


def split_with_one_that_fails(rank: int, _size: int, how: str, who: int) -> str:
    comm = Communicator(timeout_s=OWN_TIMEOUT_S)
    comm.all_reduce(np.ones(3))
    if rank == who and how == "setting":
        os.environ["HCCL_ALGORITHM"] = "rign"
    if rank == who and how == "descriptors":
        fill = [os.open(os.devnull, os.O_RDONLY)]
        limit = fill[0] + 40
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        with contextlib.suppress(OSError):
            while True:
                fill.append(os.open(os.devnull, os.O_RDONLY))
        for one in fill[-3:]:
            os.close(one)
    try:
        comm.split(0)
    except HcclError as error:
        if rank == who:
            comm.close()  # at once, before the others have looked
        return str(error)
    return ""


@pytest.mark.parametrize(
    "how, named, who",
    [
        ("setting", "there is no 'rign'", 0),
        pytest.param("descriptors", "ulimit -n", 1, marks=MORE),
        pytest.param("setting", "there is no 'rign'", 1, marks=MORE),
        pytest.param("descriptors", "ulimit -n", 0, marks=MORE),
    ],
)
def test_why_a_rank_fails_in_split_is_the_error_of_all(how: str, named: str, who: int) -> None:
    for rank, told in enumerate(run_ranks(split_with_one_that_fails, 3, how, who)):
        assert named in told, told
        assert rank == who or f"rank {who} on" in told, told
