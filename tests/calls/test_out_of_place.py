"""Large calls out of place, by each algorithm and however payloads are copied."""

import numpy as np
import pytest
from thread_ranks import ThreadRanks
from tiers import by_night

import hccl_py
from hccl_py import Communicator

WAYS = [
    *[("near", "mesh"), ("far", "mesh"), ("near", "ring")],
    *by_night("calls", ("far", "ring"), ("crowded", "mesh"), ("near", "tree"), ("near", "leader")),
    *by_night("calls", ("far", "halving_doubling"), ("near", "recursive_doubling")),
    *by_night("calls", ("near", "hierarchical"), ("far", "hierarchical"), ("near", "one_shot")),
]
SIZES = (4_096, 70_001, 1_200_007)
"""Elements: the least that is read where it lies, several tiles, many tiles."""


@pytest.mark.parametrize("nodes", ["aa", "aaabb"])
@pytest.mark.parametrize(("cores", "algorithm"), WAYS)
def test_large_input_is_only_read(
    nodes: str, cores: str, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HCCL_CORES", cores)
    monkeypatch.setenv("HCCL_ALGORITHM", f"all_reduce={algorithm}")

    def check(comm: Communicator) -> None:
        n = comm.world_size
        for count in SIZES:
            values = np.arange(count, dtype=np.float32) % 1000
            for registers in ((False, False), (True, False), (False, True), (True, True)):
                data, output = (
                    hccl_py.empty(count, np.float32) if registered else np.empty(count, np.float32)
                    for registered in registers
                )
                data[:] = values + comm.rank
                for root in (None, 0, n - 1):
                    output[:] = -1
                    if root is None:
                        comm.all_reduce(data, output=output)
                    else:
                        comm.reduce(data, root, output=output)
                    total = values * n + n * (n - 1) / 2
                    assert (output == (total if root in (None, comm.rank) else -1)).all()
                    assert (data == values + comm.rank).all()

    with ThreadRanks(nodes) as ranks:
        ranks.run(check)
