"""Costs from measurements: those that a simulation with known costs makes up."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hccl_py import Costs, LinkCosts, Topology, simulate
from hccl_py.algorithms.choice.cost import NUMBERS
from hccl_py.algorithms.choice.tuning import FORMAT
from hccl_py.lab.plan_command.main import main
from hccl_py.lab.simulation.costs import costs_from
from hccl_py.lab.simulation.fitting import Sample, fit

KIB, MIB = 1 << 10, 1 << 20
KNOWN = Costs(
    LinkCosts(0.6, 0.5, 90.0),
    LinkCosts(9.0, 5.0, 300.0),
    reduce_us_per_mib=25.0,
    result_us_per_mib=50.0,
    cold_us_per_mib=30.0,
    warm_share=0.6,
    cores_per_machine=2,
    cache_bytes=4.0 * MIB,
)
NONE = LinkCosts(0.0, 0.0, 0.0)
ONE, TWO = Topology.even(1, 4), replace(Topology.even(2, 1), machines=(0, 0))


def samples() -> list[Sample]:
    return [
        Sample(what, topology, size, simulate(what, topology, KNOWN, size, num_calls=3).us)
        for topology in (ONE, TWO)
        for what in ("all_reduce=mesh", "all_reduce=one_shot", "all_reduce=tree")
        for size in (16 * KIB, 512 * KIB, 2 * MIB)
    ]


def test_fit_finds_costs_with_which_simulated_times_are_the_measured_ones() -> None:
    start = Costs(NONE, NONE, 0.0, cores_per_machine=2, cache_bytes=KNOWN.cache_bytes)
    costs, errors = fit(samples(), start, 60.0)
    assert max(map(abs, errors)) < 0.05
    # Also of what it has not seen.
    for what, topology in (("all_reduce=ring", ONE), ("all_reduce=recursive_doubling", TWO)):
        known, fitted = (simulate(what, topology, x, MIB).us for x in (KNOWN, costs))
        assert fitted == pytest.approx(known, rel=0.15)


def test_fit_without_time_returns_where_it_began() -> None:
    start = Costs(NONE, NONE, 0.0, cores_per_machine=2)
    assert fit(samples()[:1], start, 0.0)[0].scale_up.latency_us == 1.0


def tuning_file(path: Path, cache_bytes: int) -> Path:
    measurements = [
        {"collective": "all_reduce", "algorithm": one.what.partition("=")[2]}
        | {"bytes": one.num_bytes, "us": one.us}
        for one in samples()
        if one.topology == TWO
    ]
    content = {"format": FORMAT, "layout": [1, 1], "cores_per_node": 1.0, "machines": [0, 0]}
    content |= {"numbers": dict.fromkeys(NUMBERS, 1.0), "measurements": measurements}
    path.write_text(json.dumps(content | {"cache_bytes": cache_bytes}))
    return path


def test_calibrate_writes_what_predict_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "costs.json"
    tuning = tuning_file(tmp_path / "tuning.json", 4 * MIB)
    words = [str(tuning), "--out", str(out), "--budget", "1e-9"]
    assert main(["calibrate", *words]) == 0
    costs = costs_from(out)
    assert (costs.cores_per_machine, costs.cache_bytes) == (2, 4 * MIB)
    assert costs.scale_out.message_us == 3.0
    assert "9 measurements, off by" in capsys.readouterr().out
    other = tuning_file(tmp_path / "other.json", 8 * MIB)
    assert main(["calibrate", str(tuning), str(other)]) == 2
    assert "expected files of machines with the same cores" in capsys.readouterr().err
    for wrong in ({"simulation_costs": {"scale_up": {}}}, {"simulation_costs": 3}):
        out.write_text(json.dumps(wrong))
        with pytest.raises(Exception, match="expected what hccl-plan calibrate wrote"):
            costs_from(out)
