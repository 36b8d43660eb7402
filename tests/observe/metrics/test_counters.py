"""What a snapshot takes from the counters of an engine."""

from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from thread_ranks import ThreadRanks

from hccl_py.observe.flight_recorder import recorders_of_process
from hccl_py.observe.metrics import counters
from hccl_py.observe.metrics.counters import ProcessCounters


def samples(counted: ProcessCounters) -> dict[int, dict[tuple[str, ...], float]]:
    ranks = counted.snapshot()["ranks"]
    return {
        rank: {(name, *labels): value for name, labels, value in found}
        for rank, found in ranks.items()
    }


def path(name: str, **counted: Any) -> dict[str, Any]:
    return {"path": name, "connected": True, "reconnects": 0, "checksum_errors": 0, **counted}


def test_counters_of_paths_are_summed_by_interface() -> None:
    device = {"messages": 4, "bytes": 64, "stalls": 1, "retries": 3}
    read = {
        "calls": {},
        "devices": {"tcp": device, "verbs": dict.fromkeys(device, 0)},
        "paths": [
            path("eth0 10.0.0.1 -> 10.0.0.2", reconnects=2),
            path("eth0 10.0.0.1 -> 10.0.0.3", reconnects=1, connected=None, checksum_errors=5),
            path("eth1 10.1.0.1 -> 10.1.0.2", connected=False),
        ],
        "peers": [
            {"times_last": 0, "waited_s": 0.0},
            {"times_last": 6, "waited_s": 0.5},
        ],
    }
    recorder: Any = SimpleNamespace(member=SimpleNamespace(global_ranks=(3, 7)))
    core: Any = SimpleNamespace(failed=lambda: True)
    with mock.patch.object(counters, "read_statistics", lambda _: read):
        found = counters._read(core, recorder)
    assert found["path_failures", ("eth0",)] == 3
    assert found["path_failures", ("eth1",)] == 0
    assert found["paths_down", ("eth0",)] == 0
    assert found["paths_down", ("eth1",)] == 1
    assert found["checksum_errors", ("eth0",)] == 5
    assert found["retries", ("tcp",)] == 3
    assert ("retries", ("verbs",)) not in found
    assert found["straggler_calls", ("7",)] == 6
    assert found["straggler_seconds", ("7",)] == 0.5
    assert found["failures", ()] == 1


def test_counters_do_not_decrease_when_a_communicator_ends() -> None:
    counted = ProcessCounters()
    for round_number in range(1, 3):
        with ThreadRanks("aa") as ranks:
            ranks.run(lambda comm: comm.all_reduce(np.ones(3)))
            found = samples(counted)
            for rank in range(2):
                assert found[rank]["calls", "all_reduce"] == round_number
                assert found[rank]["communicators",] == 1
            for recorder in recorders_of_process():
                counted.count(recorder)
        found = samples(counted)
        assert found[0]["calls", "all_reduce"] == round_number
        assert ("communicators",) not in found[0]
