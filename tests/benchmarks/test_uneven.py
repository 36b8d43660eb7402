"""Synthesized plans between four hosts whose links differ: measured, run, and right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.uneven import NUM_HOSTS, measure_links, race, uneven_hosts
from hccl_py.bench.namespaces import Hosts
from hccl_py.lab.synthesis.network_file import read_network
from hccl_py.lab.synthesis.synthesize import SYNTHESIZED, synthesize

SIZES = "1M,100004"  # the second is no multiple of what a plan cuts it into


@pytest.mark.nightly("hosts")
@pytest.mark.parametrize("rates", [(50.0, 100.0, 200.0), (100.0,)], ids=["uneven", "even"])
def test_plans_for_measured_links_run_and_are_right(
    rates: tuple[float, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    links, path = tmp_path / "links.json", tmp_path / "plan.json"
    with Hosts(num_hosts=NUM_HOSTS) as hosts:
        uneven_hosts(hosts, rates)
        measure_links(hosts, links)
        measured = json.loads(links.read_text())["links"]
        assert len(measured) == NUM_HOSTS * (NUM_HOSTS - 1)
        network = read_network(links, separate_links=True)
        for collective in SYNTHESIZED:
            found = synthesize(collective, network)
            assert 0.7 < found.certificate.share <= 1, found.certificate
            with capsys.disabled():
                words = ["--sizes", SIZES, "-n", "2"]
                assert race(hosts, found, path.with_stem(collective), words) == 0
