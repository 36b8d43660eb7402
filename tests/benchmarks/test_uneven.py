"""Synthesized plans between four hosts whose links differ: measured, run, and right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.uneven import NUM_HOSTS, Race, lines, measure_links, race, uneven_hosts
from hccl_py.algorithms.plan_file import write_plans
from hccl_py.bench.namespaces import Hosts
from hccl_py.lab.synthesis.network_file import read_network
from hccl_py.lab.synthesis.synthesize import SYNTHESIZED, synthesize

SIZES = (1 << 20, 100_004)  # the second is no multiple of what a plan cuts it into


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
            written = path.with_stem(collective)
            write_plans(written, found.plans, str(found.certificate))
            assert 0.7 < found.certificate.share <= 1, found.certificate
            for one in race(hosts, found, written, SIZES, num_rounds=2):
                assert one.wrong == 0
                with capsys.disabled():
                    print("", f"{found.name}, {found.certificate}", *lines(one), sep="\n")


def test_lines_compare_the_plan_with_the_best_of_the_table() -> None:
    us = {"plan": [1000.0, 2000.0], "ring": [3000.0, 3000.0], "mesh": [2000.0, 2500.0]}
    one = Race("all_reduce", 1 << 20, us, {"tree": 9000.0}, wrong=0)
    text = list(lines(one))
    assert one.best == "mesh" and one.ratios == [2.0, 1.25]
    assert [line.split()[3] for line in text[:4]] == ["plan", "mesh", "ring", "tree"]
    assert text[-1].strip() == "mesh / plan: 1.62 (1.25 to 2.00), wrong elements: 0"
