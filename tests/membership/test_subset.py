"""Communicators of some ranks of another one: they open together, or fail as that one does."""

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from leftovers import settled_holdings, wait_for_return
from quiet_clock import Moment
from rank_processes import on_nodes, wait_for_every_report
from ranks import run_ranks
from thread_ranks import ThreadRanks, wait_until
from tiers import by_night

from hccl_py import BootstrapError, Communicator, CommunicatorError, InvalidArgumentError

RAISE_S = 2.0
"""What is promised, from the cause until a rank has raised."""

layouts = pytest.mark.parametrize("nodes", ["aaaa", "aabb"], ids=["one node", "two nodes"])
Story = tuple[Any, ...]


def told(error: BaseException | None) -> Story:
    assert isinstance(error, CommunicatorError), repr(error)
    blame = error.rank, error.host, error.pid, error.cause, error.collective, error.sequence
    return type(error), str(error), blame


def sum_of(comm: Communicator, value: int) -> int:
    data = np.full(3, value, np.int32)
    comm.all_reduce(data)
    return int(data[0])


@layouts
def test_group_orders_its_ranks_as_told_and_outlives_its_parent(nodes: str) -> None:
    with ThreadRanks(nodes) as ranks:

        def open_and_sum(comm: Communicator) -> tuple[int, int, int, int] | None:
            if comm.rank == 3:
                return None
            with comm.subset((2, 0, 1), "three", timeout_s=7.0) as group:
                assert group.timeout_s == 7.0
                before = sum_of(group, 10**comm.rank)
                members = (1,) if comm.rank == 0 else (2, 0)
                with group.subset(members, "part") as part:
                    of_part = sum_of(part, 10**comm.rank)
                comm.close()
                return group.rank, before, of_part, sum_of(group, 10**comm.rank)

        assert ranks.run(open_and_sum) == [
            (1, 111, 1, 111),
            (2, 111, 110, 111),
            (0, 111, 110, 111),
            None,
        ]


def test_group_of_one_rank_and_of_a_communicator_of_one_need_nobody() -> None:
    with Communicator(None, 0, 1) as comm, comm.subset([0], "alone") as group:
        assert (group.rank, group.world_size, sum_of(group, 7)) == (0, 1, 7)
    with ThreadRanks("ab") as ranks:
        sizes = ranks.run(lambda comm: comm.subset([comm.rank], "alone").world_size)
        assert sizes == [1, 1]


@pytest.mark.parametrize(
    ("members", "expected"),
    [((0, 2), r"ranks of 0\.\.1, got 2"), ((1, 0, 1), "each rank once"), ((), "this rank")],
)
def test_group_wrong_members_are_refused_and_nothing_is_lost(
    members: tuple[int, ...], expected: str
) -> None:
    with ThreadRanks("aa") as ranks:

        def wrong_then_right(comm: Communicator) -> int:
            with pytest.raises(InvalidArgumentError, match=expected):
                comm.subset(members, "wrong")
            return sum_of(comm, 1)

        assert ranks.run(wrong_then_right) == [2, 2]


def test_group_that_a_member_does_not_come_to_ends_with_its_own_time_alone() -> None:
    with ThreadRanks("ab") as ranks:

        def one_comes(comm: Communicator) -> int:
            if comm.rank == 0:
                with pytest.raises(BootstrapError, match="rank 1 of 2 did not arrive"):
                    comm.subset((0, 1), "two", timeout_s=0.3)
            return sum_of(comm, 1)

        assert ranks.run(one_comes) == [2, 2]


@layouts
@pytest.mark.parametrize(
    ("end", "cause"),
    [
        (lambda comm: comm.close(), "left"),
        (lambda comm: comm.__exit__(ValueError, ValueError("mine"), None), "uncaught exception"),
        (lambda comm: comm.abort("enough"), "aborted"),
    ],
    ids=["leaves", "fails", "aborts"],
)
def test_group_hears_at_once_what_a_member_does_instead(
    nodes: str, end: Callable[[Communicator], None], cause: str
) -> None:
    """Ranks 0 and 1 wait for 3 in a group, 2 for 1 in another: it hears why 1 never comes."""
    ThreadRanks("ab").close()  # leaves what all communicators of a process share
    before = settled_holdings()
    with ThreadRanks(nodes) as ranks:
        began = Moment.now()

        def open_or_end(comm: Communicator) -> Any:
            comm.barrier()
            if comm.rank == 3:
                end(comm)
            elif comm.rank == 2:
                comm.subset((1, 2), "other")
            else:
                comm.subset((0, 1, 3), "three")

        *failures, last = ranks.failures(open_or_end)
        assert Moment.now() - began < RAISE_S
        assert last is None
        stories = [told(failure) for failure in failures]
        assert len(set(stories)) == 1, stories
        assert stories[0][2][0] == 3
        assert stories[0][2][3] == cause
    assert not wait_for_return(before)  # while the errors are still held


def dies_beside_a_group(rank: int, world_size: int, waits: str, folder: Path) -> Story | None:
    """Rank 3 dies. Ranks 0 and 1 open a group with it, 2 does too or calls."""
    wait_for_every_report()
    comm = Communicator()
    comm.barrier()
    struck, last = folder / "struck", world_size - 1
    if rank == last:
        others = [folder / str(other) for other in range(last)]
        wait_until(lambda: all(other.exists() for other in others), "all have passed the barrier")
        time.sleep(0.2)  # most of them wait by then, and may as well not
        Moment.now().write(struck)
        os.kill(os.getpid(), signal.SIGKILL)
    (folder / str(rank)).touch()
    with pytest.raises(CommunicatorError) as raised:
        if rank == 2 and waits == "one calls":
            comm.barrier()
        else:
            comm.subset(range(world_size), "all")
    took_s = Moment.now() - Moment.read(struck)
    with pytest.raises(CommunicatorError) as again:
        comm.barrier()
    assert told(again.value) == told(raised.value)
    comm.close()
    return took_s, *told(raised.value)


@pytest.mark.parametrize(
    ("nodes", "waits"),
    [
        (1, "all open"),
        (2, "one calls"),
        *by_night("faults", (1, "one calls"), (2, "all open")),
    ],
)
def test_group_hears_at_once_of_the_death_of_a_member(
    nodes: int, waits: str, tmp_path: Path
) -> None:
    stories = run_ranks(dies_beside_a_group, 4, waits, tmp_path, env=on_nodes(nodes), victims={3})
    survivors = stories[:3]
    assert all(story[0] < RAISE_S for story in survivors), survivors
    assert len({story[1:] for story in survivors}) == 1, survivors
    _, _, text, blame = survivors[0]
    assert blame[0] == 3
    assert blame[3] == "died"
    # The kernel may not tell how it ended.
    assert re.search(r"died: (killed by signal 9|its connections closed without a goodbye)", text)


def open_and_close_often(_rank: int, _size: int, how: str) -> list[int]:
    with Communicator() as comm:
        sizes = []
        for _ in range(3):
            for _ in range(5):
                (comm.subset([0, 1], "some") if how == "subset" else comm.shrink()).close()
            comm.barrier()
            coordination = comm._state.coordination
            assert coordination is not None
            coordination.agree(f"all have left {len(sizes)}", None, 10.0)  # after what they sent
            participant = coordination._require()
            store = participant._serves["set"].__closure__[0].cell_contents  # type: ignore[attr-defined]
            sizes.append(len(participant._sets) + len(store._values) + len(store._left))
            comm.barrier()  # before the other rank's next subset
    return sizes


@pytest.mark.parametrize("how", ["subset", "shrink"])
def test_closed_subset_leaves_nothing_in_the_store(how: str) -> None:
    for sizes in run_ranks(open_and_close_often, 2, how):
        assert sizes == [0, 0, 0]
