"""--validate against links that are really slow: a token bucket between two of three namespaces."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hccl_py.bench.collective.analysis.validate import Validator
from hccl_py.bench.collective.analysis.validate_command import validate
from hccl_py.bench.collective.command_line.read import parse
from hccl_py.bench.collective.main import main
from hccl_py.bench.collective.output.matrix import text
from hccl_py.bench.collective.rank import prepare, time_each
from hccl_py.bench.namespaces import Hosts
from hccl_py.lab.synthesis.network_file import read_network


@pytest.mark.nightly("bench")
def test_validate_measures_every_pair_in_both_directions(tmp_path: Path) -> None:
    path = tmp_path / "links.json"
    # Which code it is depends on the machine; a slow link has a name in the document.
    words = "--validate -g 3 --size 64K --api communicator --json"
    code = main([*words.split(), str(path)])
    links = json.loads(path.read_text())["links"]
    assert {(link["from"], link["to"]) for link in links} == {
        (a, b) for a in range(3) for b in range(3) if a != b
    }
    assert all(link["gb_per_s"] > 0 and link["latency_us"] > 0 for link in links)
    assert code == any(link["slow"] for link in links)


class _Links:
    """Ranks whose links have the rates of a test: `spread` is what single looks differ by."""

    def __init__(self, rates: dict[tuple[int, int], float], spread: float) -> None:
        self._rates, self._spread, self._looks = rates, spread, 0

    def ask(self, function: Callable[..., Any], *arguments: Any, what: str) -> list[Any]:
        if function is prepare:
            ((self._pair),) = arguments[0].pairs
            self._num_bytes = arguments[0].count
            return []
        if function is time_each:
            return [np.full(10, 1e-5)]
        self._looks += 1
        rate = self._rates.get(self._pair, 1e9)
        return [self._num_bytes / (rate * (1 + self._spread * np.sin(2.4 * self._looks)))]


@pytest.mark.parametrize(
    ("share", "spread", "slow", "hidden"),
    [(0.9, 0.02, 1, 0), (0.9, 0.04, 1, 0), (0.93, 0.03, 0, 1), (0.96, 0.02, 0, 0)],
)
def test_link_below_the_limit_is_looked_at_until_noise_hides_it_no_more(
    share: float, spread: float, slow: int, hidden: int
) -> None:
    links = Validator(_Links({(1, 2): share * 1e9}, spread), [0, 1, 2, 3], 1 << 20).run()
    below = [link for link in links if link.is_slow or link.is_hidden]
    assert [link.is_slow for link in below] == [True] * slow + [False] * hidden
    for link in below:
        assert (link.source, link.target) == (1, 2)
        assert link.rate == pytest.approx(share, rel=0.02)
    shown = "\n".join(text(links, 1 << 20, str))
    assert shown.count("SLOW: 1 -> 2") == slow
    assert shown.count("hidden by noise: 1 -> 2") == hidden


def test_link_as_fast_as_its_class_only_on_a_slower_machine_is_told() -> None:
    class Slowed(_Links):
        def ask(self, function: Callable[..., Any], *arguments: Any, what: str) -> list[Any]:
            found = super().ask(function, *arguments, what=what)
            # The last link meets another program, which then stays.
            return [each * 20 if self._looks > 20 else each for each in found]

    links = Validator(Slowed({}, 0.0), [0, 0, 0], 1 << 20).run()
    assert not any(link.is_slow or link.is_hidden for link in links)
    shown = "\n".join(text(links, 1 << 20, str))
    assert "every link is as fast as its class" not in shown
    assert "GB/s beside 0.05" in shown and "measure again when it is idle" in shown


@pytest.mark.nightly("hosts")
def test_validate_names_the_one_direction_that_is_slow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    png = tmp_path / "links.png"
    argv = [
        *["--validate", "-g", "1", "--nnodes", "3", "--api", "communicator", "--plot"],
        str(png),
    ]
    with Hosts(num_hosts=3) as hosts:
        hosts.slow_down(0, 2, rate_mbit=100)
        assert validate(parse(argv)[0], "hccl-bench", hosts) == 1
    captured = capsys.readouterr()
    slow = [line for line in captured.err.splitlines() if "SLOW" in line]
    assert any("rank 0 (node 0, 10.77.0.1) -> rank 2 (node 2, 10.77.0.3)" in one for one in slow)
    assert "median between nodes" in slow[0]
    assert png.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.nightly("hosts")
def test_validate_in_a_job_of_several_hosts_writes_what_synthesize_reads(tmp_path: Path) -> None:
    path, words = tmp_path / "links.json", ["--validate", "--api", "communicator", "--json"]
    with Hosts(num_hosts=3, rates_mbit=[200]) as hosts:
        hosts.slow_down(0, 2, rate_mbit=20)
        common = os.environ | {
            "WORLD_SIZE": "4",
            "MASTER_ADDR": hosts.address(0),
            "MASTER_PORT": "29871",
            "HCCL_SOCKET_IFNAME": "link0",
            "HCCL_SECRET": "secret of the test, of some length",
        }
        command = [str(Path(sys.executable).with_name("hccl-bench")), *words, str(path)]
        ranks = [
            subprocess.Popen(
                hosts.command(host, *command),
                env=common | {"RANK": str(rank)},
                stdout=-1,
                stderr=-1,
            )
            for rank, host in enumerate((0, 0, 1, 2))
        ]
        try:
            ended = [(*rank.communicate(timeout=120), rank.returncode) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
    # A direction is slow, which rank 0 says.
    assert [code for *_, code in ended] == [1, 0, 0, 0], ended
    assert [bool(out) for out, *_ in ended] == [True, False, False, False], ended
    network = read_network(path)
    assert network.nodes == ((0, 1), (2,), (3,))
    links = {(one["from"], one["to"]): one["gb_per_s"] * 8e3 for one in read(path)}
    assert links[0, 3] == pytest.approx(20, rel=0.2) and links[1, 3] == pytest.approx(20, rel=0.2)
    assert links[3, 0] == pytest.approx(200, rel=0.2)
    assert min(links[0, 1], links[1, 0]) > 1000
    separate = read_network(path, separate_links=True)
    assert separate.kbit_per_s[0, 3] < separate.kbit_per_s[3, 0] / 5


def read(path: Path) -> list[dict[str, float]]:
    links: list[dict[str, float]] = json.loads(path.read_text())["links"]
    return links
