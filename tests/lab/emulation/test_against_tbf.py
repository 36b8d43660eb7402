"""An all_reduce on emulated nodes takes as long as on namespaces whose links a token bucket limits.

    HCCL_TEST_ROUNDS=5 python3 -m pytest -q -s -m nightly tests/lab/emulation/test_against_tbf.py

prints the table of docs/tables/emulation.md: medians of all calls of alternating rounds.
"""

import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from launching import COMMAND, LIMIT_S, run
from namespaces import TWO_HOSTS, Hosts

from hccl_py.schedulers.ports import free_port

PROGRAM = Path(__file__).parent / "timed_calls.py"
ROUNDS = int(os.environ.get("HCCL_TEST_ROUNDS", "3"))
MIB = 1 << 20
BURST_S = 0.01  # as `Hosts` sets its token buckets
LIMIT = 0.10

Times = dict[int, list[float]]


class Layout(NamedTuple):
    num_nodes: int
    ranks_per_node: int
    rate_mbit: int
    sizes_mib: tuple[int, ...]

    @property
    def calls(self) -> list[str]:
        """A second of each size, as the network takes it, and two calls at least."""
        share = 2 * (self.num_nodes - 1) / self.num_nodes
        return [
            f"{size * MIB}:{max(2, min(20, int(self.rate_mbit / (size * 8.8 * share))))}"
            for size in self.sizes_mib
        ]


LAYOUTS = (
    Layout(2, 1, 100, (1, 4, 16, 64)),
    Layout(2, 2, 100, (1, 4, 16, 64)),
    Layout(4, 1, 100, (1, 4, 16, 64)),
    Layout(2, 1, 1000, (1, 4, 16, 64)),
)


def on_emulated_nodes(layout: Layout, folder: Path) -> Times:
    file = folder / "cluster.toml"
    file.write_text(
        f"nodes = {layout.num_nodes}\nranks_per_node = {layout.ranks_per_node}\n"
        f'[network]\nbandwidth = "{layout.rate_mbit} Mbit/s"\n'
        f'burst = "{layout.rate_mbit * 1e6 / 8 * BURST_S:.0f} B"\n'
    )
    done = run(*COMMAND, "--emulate", file, PROGRAM, *layout.calls)
    assert done.returncode == 0, done.stderr
    return of_output(done.stdout)


def link(layout: Layout) -> Hosts:
    # A queue that overflows loses packets, and the time until they are repeated is not the link's.
    return Hosts(num_hosts=layout.num_nodes, rates_mbit=[layout.rate_mbit], queue_ms=1000)


def on_namespaces(layout: Layout) -> Times:
    count = layout.num_nodes * layout.ranks_per_node
    with ExitStack() as opened:
        hosts = opened.enter_context(link(layout))
        port = free_port("127.0.0.1")
        ranks = []
        for rank in range(count):
            host = hosts.host_of(rank, count)
            words = hosts.command(host, sys.executable, str(PROGRAM), *layout.calls)
            environment = {
                "RANK": str(rank),
                "WORLD_SIZE": str(count),
                "MASTER_ADDR": hosts.address(0),
                "MASTER_PORT": str(port),
            }
            process = subprocess.Popen(
                words, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True
            )
            ranks.append(opened.enter_context(process))
            opened.callback(process.kill)
        outputs = [rank.communicate(timeout=LIMIT_S)[0] for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0] * count
    return of_output(outputs[0])


def of_output(text: str) -> Times:
    found = json.loads(text.splitlines()[-1])
    return {int(size): times_s for size, times_s in found.items()}


def row(layout: Layout, size: int, emulated_s: Sequence[float], real_s: Sequence[float]) -> str:
    cells = [f"{layout.num_nodes} x {layout.ranks_per_node}", f"{layout.rate_mbit} Mbit/s"]
    cells.append(f"{size // MIB} MiB")
    for times_s in (emulated_s, real_s):
        low, _, high = statistics.quantiles(times_s, n=4)
        middle = statistics.median(times_s)
        cells.append(f"{1e3 * middle:.1f} ms ({1e3 * low:.1f}-{1e3 * high:.1f})")
    cells.append(f"{statistics.median(emulated_s) / statistics.median(real_s):.3f}")
    return "| " + " | ".join(cells) + " |"


@pytest.mark.timeout(900)
@TWO_HOSTS
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda one: "x".join(map(str, one[:3])))
def test_all_reduce_takes_as_long_as_between_namespaces(layout: Layout, tmp_path: Path) -> None:
    emulated: defaultdict[int, list[float]] = defaultdict(list)
    real: defaultdict[int, list[float]] = defaultdict(list)
    for _ in range(ROUNDS):
        for all_s, times in (
            (emulated, on_emulated_nodes(layout, tmp_path)),
            (real, on_namespaces(layout)),
        ):
            for size, times_s in times.items():
                all_s[size] += times_s
    print()
    for size in emulated:
        print(row(layout, size, emulated[size], real[size]))
    ratios = {
        size: statistics.median(emulated[size]) / statistics.median(real[size]) for size in emulated
    }
    assert all(abs(ratio - 1) <= LIMIT for ratio in ratios.values()), ratios
