"""--validate against links that are really slow: a token bucket between two of three namespaces."""

import json
from pathlib import Path

import pytest

from hccl_py.bench.collective.contenders import APIS
from hccl_py.bench.collective.main import main, validate
from hccl_py.bench.collective.options import parse
from hccl_py.bench.namespaces import Hosts


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


@pytest.mark.nightly("hosts")
def test_validate_names_the_one_direction_that_is_slow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    png = tmp_path / "links.png"
    argv = [*["--validate", "-g", "1", "--nnodes", "3", "--plot"], str(png)]
    with Hosts(num_hosts=3) as hosts:
        hosts.slow_down(0, 2, rate_mbit=100)
        assert validate(parse(argv)[0], argv, APIS["communicator"], hosts) == 1
    captured = capsys.readouterr()
    slow = [line for line in captured.err.splitlines() if "SLOW" in line]
    assert any("rank 0 (node 0, 10.77.0.1) -> rank 2 (node 2, 10.77.0.3)" in one for one in slow)
    assert "median between nodes" in slow[0]
    assert png.read_bytes()[:4] == b"\x89PNG"
