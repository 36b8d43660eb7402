"""The example without torch: its own assertions hold, and every rank says where it ended up."""

import sys
from pathlib import Path

import pytest
from launching import run

EXAMPLE = Path(__file__).parents[2] / "examples" / "05_communicator_by_unique_id.py"


def test_ranks_find_each_other_by_the_id_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "HCCL_COMM_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HCCL_SOCKET_IFNAME", "lo")
    done = run(sys.executable, EXAMPLE, "--ranks", 3)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "rank 0 of 3 is rank 1 of 2, where rank 0 was 2",
        "rank 1 of 3 is rank 0 of 1, where rank 0 was 1",
        "rank 2 of 3 is rank 0 of 2, where rank 0 was 2",
    ]
