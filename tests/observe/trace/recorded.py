"""Flight recorders made by hand: ranks on hosts whose clocks differ, one of them late."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hccl_py.observe.dump_files import write

MS = 1_000_000
T0 = 1_700_000_000_000_000_000


def entry(sequence: int, begin_ns: int, end_ns: int, **more: Any) -> dict[str, Any]:
    """Make one all_reduce."""
    return {
        "process_group": ["default", ""],
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "op_id": sequence - 1,
        "profiling_name": "hccl:all_reduce",
        "call": f"all_reduce(sum, float32[10]) number {sequence}",
        "time_created_ns": begin_ns,
        "time_discovered_started_ns": begin_ns,
        "time_discovered_completed_ns": end_ns,
        "state": "completed",
        "input_sizes": [[10]],
        "input_dtypes": ["Float"],
        "output_sizes": [[10]],
        "output_dtypes": ["Float"],
        "bytes_in": 40,
        "bytes_out": 40,
        "is_p2p": False,
        "retired": True,
        "rendezvous": False,
        "waiting_ns": 0,
        "waited_until_ns": 0,
        "waited_for": None,
        "peer": None,
        "tag": None,
        "fingerprint": 1,
        "frames": [],
        **more,
    }


def header(rank: int, world_size: int, **more: Any) -> dict[str, Any]:
    """Describe the communicator."""
    return {
        "name": "default",
        "description": "",
        "rank": rank,
        "world_size": world_size,
        "id": "abc",
        "global_ranks": list(range(world_size)),
        "hosts": [],
        "boot_id": "boot",
        "clock": None,
        **more,
    }


def job(
    folder: Path,
    skews_ns: Sequence[int],
    *,
    late_rank: int = -1,
    late_ns: int = 0,
    num_calls: int = 20,
    probes: bool = False,
) -> list[Path]:
    """Write what the ranks of a job recorded, each on a host of its own, whose clock is ahead.

    `late_rank` comes late to every fifth call; with `probes` the control plane compared the clocks.
    """
    world_size = len(skews_ns)
    paths = []
    for rank, skew_ns in enumerate(skews_ns):
        entries = []
        for number in range(1, num_calls + 1):
            begin_ns = T0 + number * MS + rank * 1000
            is_late = number % 5 == 0 and late_rank >= 0
            if is_late and rank == late_rank:
                begin_ns += late_ns
            # All are there 50 us after the last has come.
            end_ns = T0 + number * MS + (late_ns if is_late else 0) + world_size * 1000 + 50_000
            waits = {}
            if is_late and rank != late_rank:
                arrived_ns = end_ns - 10_000
                waits = {
                    "waiting_ns": arrived_ns - begin_ns,
                    "waited_until_ns": arrived_ns + skew_ns,
                    "waited_for": late_rank,
                }
            entries.append(entry(number, begin_ns + skew_ns, end_ns + skew_ns, **waits))
        clock = {"coordinator": 0, "offset_ns": skews_ns[0] - skew_ns, "round_trip_ns": 20_000}
        about = header(rank, world_size, boot_id=f"boot {rank}", clock=clock if probes else None)
        paths.append(write(folder, rank, "test", [(about, entries)]))
    return paths


def change(path: Path, **more: Any) -> None:
    """Replace keys of a file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **more}))
