"""Which cores the ranks of a machine have."""

from __future__ import annotations

from hccl_py.transport.network.identity import Identity, count_cores


def test_cores_that_ranks_share_count_once() -> None:
    def bound_to(cores: str) -> Identity:
        return Identity("host", 1, "boot", 1, "", cores)

    assert count_cores([bound_to("3"), bound_to("3")]) == 2
    assert count_cores([bound_to("1"), bound_to("100000000"), bound_to("f")]) == 5
    assert count_cores([Identity.of_this_process()]) > 0
