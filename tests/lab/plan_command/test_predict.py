"""`hccl-plan predict`: tables, pictures, other worlds, recorded jobs; and 4,096 ranks in time."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from thread_ranks import ThreadRanks

from hccl_py.algorithms.choice.cost import NUMBERS
from hccl_py.algorithms.choice.tuning import FORMAT
from hccl_py.algorithms.table import names_for
from hccl_py.lab.plan_command.main import main
from hccl_py.lab.plan_command.predict import _too_slow
from hccl_py.lab.simulation.costs import PRESETS, costs_from
from hccl_py.lab.simulation.run import simulate
from hccl_py.lab.simulation.topology import Topology, changed
from hccl_py.transport.errors import InvalidArgumentError


def rows_of(output: str) -> list[str]:
    return [line for line in output.splitlines() if not line.startswith("#")]


def test_table_has_every_algorithm_at_every_size(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--nodes", "4x2", "--preset", "cloud25", "--size", "64K:1M"]
    assert main(["predict", *command]) == 0
    head, *rows = rows_of(capsys.readouterr().out)
    assert head.split()[1:-1] == list(names_for("all_reduce"))
    assert [row.split()[0] for row in rows] == ["64K", "256K", "1M"]
    assert all(row.count("GB/s") == len(names_for("all_reduce")) for row in rows)
    assert rows[-1].split()[-1] == "hierarchical"


def test_chart_has_a_letter_for_each_algorithm_at_its_place(
    capsys: pytest.CaptureFixture[str],
) -> None:
    algorithms = ["--algorithm", "hierarchical,one_shot"]
    command = ["--nodes", "4x2", "--preset", "office1", "--size", "1M:4M"]
    assert main(["predict", *command, *algorithms]) == 0
    chart = [line for line in capsys.readouterr().out.splitlines() if line.startswith("# ")][1:]
    assert chart[0] == "# a hierarchical, b one_shot"
    assert (chart[1], chart[5]) == ("# time of a call", "# busbw")
    axis, small, large = chart[2:5]
    assert small.split() == ["#", "1M", "a", "b"]
    assert chart[7].split() == ["#", "1M", "b", "a"]
    assert small.index("a") < large.index("a") < small.index("b") < large.index("b")
    assert large.index("b") == len(axis) - 1  # the longest time is at the end


@pytest.mark.nightly("bench")
def test_picture_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "predicted.svg"
    words = ["--preset", "gaudi2", "--size", "1M,4M", "--algorithm", "mesh,ring", "--plot"]
    assert main(["predict", *words, str(path)]) == 0
    assert "<svg" in path.read_text() and f"wrote {path}" in capsys.readouterr().out


def test_gaudi_box_moves_what_its_wires_move() -> None:
    pair = PRESETS["gaudi2"].scale_up.wire_us_per_mib
    assert (1 << 20) / pair / 1e3 == pytest.approx(37.5 * 512.96 / 525)  # GB/s of three ports


def test_what_if_changes_the_world() -> None:
    text = "straggler=17:2ms, link=4-3:10Gbit,network=100mbit,burst=125KB"
    topology, costs = changed(text, Topology.even(8, 4), PRESETS["office1"])
    assert topology.late_us == {17: 2000.0} and topology.links_gbit == {(3, 4): 10.0}
    before = PRESETS["office1"].scale_out.wire_us_per_mib
    assert costs.scale_out.wire_us_per_mib == pytest.approx(10 * before)
    assert costs.scale_out.burst_bytes == 125 << 10


def test_what_if_changes_no_links_of_a_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pair.json"
    file.write_text('{"links": [{"between": [0, 1], "mbit": 100}]}')
    words = ["predict", "--network", str(file), "--preset", "office1", "--size", "64K"]
    for change in ("network=1Gbit", "link=0-1:1Gbit", "burst=125KB"):
        assert main([*words, "--what-if", change]) == 2
        assert "the network's file has the links" in capsys.readouterr().err
    assert main([*words, "--what-if", "straggler=1:2ms"]) == 0


def test_burst_fills_the_idle_time_of_a_wire() -> None:
    # Measured over tc's tbf of 100 Mbit/s: bursts of 2000 and 125,000 bytes.
    for burst, measured_us in (("2000", 16_900), ("122KB", 11_030)):
        what_if = f"network=100Mbit,burst={burst}"
        topology, costs = changed(what_if, Topology.even(2, 2), PRESETS["cloud25"])
        us = simulate("all_reduce=tree", topology, costs, 64 << 10, num_calls=4).us
        assert us == pytest.approx(measured_us, rel=0.04)


def test_one_op_with_more_chunks_than_fit_a_message_is_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match="16384 chunks, .* at most 8192: take fewer"):
        simulate("all_reduce=halving_doubling", Topology.even(4096, 8), "gaudi2", 1 << 20)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--what-if", "straggler=17"], "straggler=RANK:TIME"),
        (["--what-if", "link=0-1:10"], "expected a rate such as 1gbit"),
        (["--what-if", "straggler=9:1ms"], "straggler 9: there are ranks 0..7"),
        (["--algorithm", "star"], "--algorithm star: expected one of all_reduce: one_shot"),
        (["--trace", ".", "--size", "1M"], "leave --size out"),
        (["--nodes", "1"], "--nodes: expected two ranks or more, such as 4 or 2x4"),
        (["--size", "2"], "num_bytes: expected a whole number of at least 4 (item_bytes), got 2"),
        (["--trace", "/nowhere"], "/nowhere"),
    ],
)
def test_wrong_options_are_one_line(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = [] if {"--trace", "--size"} & {*words} else ["--size", "1M"]
    assert main(["predict", "--preset", "gaudi2", *sizes, *words]) == 2
    error = capsys.readouterr().err
    assert problem in error and error.count("\n") == 1


def test_costs_are_those_of_a_tuning_file(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    numbers: dict[str, float | None] = dict(zip(NUMBERS, range(1, 9), strict=True))
    content = {"format": FORMAT, "layout": [2, 2], "cores_per_node": 2.0, "measurements": []}
    content["numbers"] = numbers
    path.write_text(json.dumps(content))
    costs = costs_from(path)
    assert (costs.scale_up.latency_us, costs.scale_out.us_per_mib) == (1, 7)
    assert (costs.reduce_us_per_mib, costs.cores_per_machine) == (4, 2)
    only_up = numbers | {name: None for name in NUMBERS if name.startswith("scale_out")}
    path.write_text(json.dumps(content | {"numbers": only_up}))
    assert costs_from(path).scale_out == costs_from(path).scale_up
    only_out = numbers | {name: None for name in NUMBERS[:3]}
    path.write_text(json.dumps(content | {"numbers": only_out}))
    assert costs_from(path).reduce_us_per_mib == 8
    older = {name: number for name, number in numbers.items() if "reduce" not in name}
    older["reduce_us_per_mib"] = 5
    path.write_text(json.dumps(content | {"format": 1, "numbers": older}))
    assert costs_from(path).reduce_us_per_mib == 5
    path.write_text("{}")
    with pytest.raises(InvalidArgumentError, match=f"expected a file of format {FORMAT}"):
        costs_from(path)


def test_recorded_calls_are_predicted_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ThreadRanks("aa") as ranks:

        def work(comm: object) -> None:
            for _ in range(3):
                comm.all_reduce(np.zeros(1 << 16, np.float32))  # type: ignore[attr-defined]
            comm.broadcast(np.zeros(1 << 12, np.float32), 0)  # type: ignore[attr-defined]
            comm.dump_flight_recorder(tmp_path)  # type: ignore[attr-defined]

        ranks.run(work)
    assert main(["predict", "--preset", "office1", "--nodes", "4x1", "--trace", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert f"# {tmp_path}: a job of 2 ranks" in output and "4 ranks: 4 nodes of 1" in output
    lines = {tuple(line.split()[:3]) for line in rows_of(output)[1:]}
    assert lines == {("all_reduce", "256K", "3"), ("broadcast", "16K", "1")}
    assert "# all calls: took" in output
    command = ["predict", "--preset", "office1", "--nodes", "4x1", "--trace", str(tmp_path)]
    assert main([*command, "--algorithm", "ring,one_shot"]) == 0
    lines = {tuple(line.split()) for line in rows_of(capsys.readouterr().out)[1:]}
    assert {line[-1] for line in lines if line[0] == "all_reduce"} == {"ring"}
    assert main([*command, "--algorithm", "bruck"]) == 2
    error = capsys.readouterr().err
    assert "--algorithm bruck: expected one of all_reduce: one_shot, mesh" in error


def test_plan_file_brings_its_collective_and_its_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", "broadcast=tree", "--nodes", "4x1", "-o", "tree.json"]) == 0
    words = ["predict", "--preset", "office1", "--size", "64K", "--algorithm"]
    assert main([*words, "plan:tree.json"]) == 0
    printed = capsys.readouterr().out
    assert "# 4 ranks: 4 nodes of 1, office1" in printed
    assert main([*words, "tree", "--collective", "broadcast", "--nodes", "4x1"]) == 0
    own, table = (rows_of(text)[-1].split() for text in (printed, capsys.readouterr().out))
    assert own[1:5] == table[1:5] and own[0] == "64K"


def test_wrong_algorithm_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import hccl_py\nfrom hccl_py.plan.language import data\n"
        '@hccl_py.algorithm("all_reduce")\n'
        "def stuck(me, n, plan): plan.recv((me + 1) % n, data[:])\n"
    )
    words = ["--nodes", "2", "--preset", "office1", "--size", "1M"]
    assert main(["predict", *words, "--algorithm", f"{file}:stuck,mesh"]) == 1
    printed = capsys.readouterr()
    assert "mine.py:stuck is wrong for 2 ranks on 1 node(s)" in printed.err
    assert not rows_of(printed.out)


@pytest.mark.nightly("plans")
def test_too_slow_algorithms_are_left_out_of_large_worlds_that_differ() -> None:
    names = ["one_shot", "tree", "mesh"]

    def left_out(topology: Topology) -> dict[str, str]:
        return _too_slow("all_reduce", names, topology, PRESETS["gaudi2"], 1 << 20)

    late = {7: 1.0}
    large, small = Topology.even(129, 8), Topology.even(2, 8)
    assert left_out(large) == left_out(replace(small, late_us=late)) == {}
    (name,), (why,) = zip(*left_out(replace(large, late_us=late)).items(), strict=True)
    assert name == "one_shot" and re.search(r"without --what-if mesh is [23]\d\d times", why)


def test_large_world_that_differs_is_announced(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--nodes", "256x8", "--preset", "gaudi2", "--size", "1M", "--algorithm", "tree"]
    assert main(["predict", *words]) == 0
    assert "is simulated" not in capsys.readouterr().out
    assert main(["predict", *words, "--what-if", "straggler=17:2ms"]) == 0
    assert "# each of 2048 ranks is simulated, because not all are alike" in capsys.readouterr().out


def test_larger_size_first_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["predict", "--preset", "gaudi2", "--size", "1G:1M"])
    assert ended.value.code == 2
    assert "expected the smaller size first, got 1G:1M" in capsys.readouterr().err
