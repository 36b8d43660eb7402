"""What a communicator holds open: lanes between nodes come with the peers that a rank talks to."""

import numpy as np
import pytest
from thread_ranks import ThreadRanks, wait_until

from hccl_py import Communicator


def connected(comm: Communicator) -> list[int]:
    """Return the peer of each data connection between nodes."""
    return [path["peer"] for path in comm.statistics()["paths"] if path["connected"]]


def test_lanes_between_nodes_are_made_for_the_peers_of_a_call() -> None:
    with ThreadRanks("aabbcc") as ranks:
        for comm in ranks.communicators:
            assert {path["connected"] for path in comm.statistics()["paths"]} == {None}

        def ping(comm: Communicator) -> None:
            data = np.zeros(1, np.float32)
            if comm.rank == 0:
                comm.send(data, 5)
            elif comm.rank == 5:
                comm.recv(data, 0)

        ranks.run(ping)
        assert ranks.run(connected) == [[5], [], [], [], [], [0]]

        def exchange(comm: Communicator) -> None:
            data = np.full(comm.world_size, comm.rank, np.float32)
            received = np.empty_like(data)
            comm.all_to_all(received, data)
            assert list(received) == list(range(comm.world_size))

        ranks.run(exchange)
        for rank, peers in enumerate(ranks.run(connected)):
            assert set(peers) == {peer for peer in range(6) if peer // 2 != rank // 2}
            assert len(peers) <= 5, "one lane of each, and that of the send"


@pytest.mark.parametrize("sender", [0, 1])
def test_lane_is_made_while_the_receiver_makes_no_call(sender: int) -> None:
    with ThreadRanks("ab") as ranks:
        comms = ranks.communicators
        comms[sender].send(np.full(3, 7, np.float32), 1 - sender)
        wait_until(lambda: all(map(connected, comms)), "the lane is made")
        data = np.empty(3, np.float32)
        comms[1 - sender].recv(data, sender)
        assert list(data) == [7, 7, 7]


@pytest.mark.parametrize("sender", [0, 1])
def test_message_before_a_close_arrives_over_a_lane_that_it_needed(sender: int) -> None:
    for _ in range(10):  # the goodbye and the lane race
        with ThreadRanks("ab") as ranks:

            def run(comm: Communicator) -> None:
                data = np.full(3, comm.rank, np.float32)
                if comm.rank == sender:
                    comm.send(data, 1 - sender)
                    comm.close()
                else:
                    comm.recv(data, sender)
                    assert list(data) == [sender] * 3

            ranks.run(run)
