"""`hccl-bench --tune`: the model read off plans, the fit, the file, and one choice on all ranks."""

import json
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from node_shapes import nodes_by, one_node
from ranks import run_ranks
from stores import MemoryStore
from thread_ranks import ThreadRanks
from tiers import by_night

from hccl_py import Communicator
from hccl_py.algorithms.choice.cost import NUMBERS, cost_of, product
from hccl_py.algorithms.choice.tuner import UNKNOWN_SIZE, choose
from hccl_py.algorithms.choice.tuning import FORMAT, VARIABLE, Tuning, read_for_all_ranks
from hccl_py.algorithms.table import ALGORITHMS, names_for
from hccl_py.bench.collective.main import main
from hccl_py.bench.tuning.fit import fit
from hccl_py.bench.tuning.main import (
    chosen_against_best,
    document,
    fit_doubts,
    text_of,
    tuning_from,
)
from hccl_py.bench.tuning.sweep import PING_PONG, Measurement, SweepPoint, Swept
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import Nodes
from hccl_py.transport.errors import BootstrapError, InvalidArgumentError

KNOWN = (2.0, 0.5, 100.0, 40.0, 30.0, 5.0, 900.0, 20.0)
SIZES = [1 << exponent for exponent in range(3, 26, 2)]


def root_of(collective: str) -> int | None:
    return 0 if COLLECTIVES[collective].rooted else None


def synthetic(nodes: Nodes, cores: float) -> Swept:
    """Measurements of a machine that keeps to the model."""
    found = []
    crowd = max(1.0, max(map(len, nodes)) / cores)
    for collective, algorithm in ALGORITHMS:
        if collective in UNKNOWN_SIZE or COLLECTIVES[collective].meets:
            continue  # no sweep measures them: a tuning never chooses them
        examined = cost_of(collective, algorithm, nodes, root_of(collective))
        assert examined is not None
        for size in SIZES:
            us = float(np.dot(examined.row(size, crowd, KNOWN), KNOWN))
            found.append(Measurement(collective, algorithm, size, us, (us,)))
    return Swept(nodes, cores, tuple(found), 0)


def file_of(swept: Swept) -> dict[str, Any]:
    return document(swept, fit(swept), "hccl-bench", {})


@pytest.mark.parametrize(
    ("collective", "algorithm", "nodes", "rounds"),
    [
        ("all_reduce", "ring", one_node(1000), (0, 1998)),
        ("all_gather", "ring", nodes_by("ab"), (1, 0)),
        ("all_reduce", "hierarchical", nodes_by("aabb"), (1, 2)),
        ("broadcast", "tree", one_node(128), (0, 7)),
        ("reduce", "tree", one_node(128), (0, 7)),
        ("barrier", "dissemination", one_node(9), (0, 4)),
    ],
)
def test_dependent_rounds_are_read_off_the_plans(
    collective: str, algorithm: str, nodes: Nodes, rounds: tuple[int, int]
) -> None:
    found = cost_of(collective, algorithm, nodes, root_of(collective))
    assert found is not None
    assert found.rounds == rounds


def test_messages_and_bytes_are_those_of_the_busiest_rank() -> None:
    found = cost_of("all_reduce", "mesh", nodes_by("aab"), None)
    assert found is not None
    row = found.row(3 << 20, 1.0, KNOWN)
    # Rank 2: both ways, to both others, a third of 3 MiB in tiles of 128 KiB; adds two thirds up.
    assert row[4:] == pytest.approx((2 * 4.5, 8 * 8, 8, 2))
    assert product(row, KNOWN) == pytest.approx(np.dot(row, KNOWN))


def test_a_world_too_large_for_a_first_call_is_not_examined() -> None:
    assert cost_of("all_reduce", "mesh", one_node(4096), None) is None


@pytest.mark.parametrize(
    ("nodes", "cores"),
    [("aaaabbb", 8.0), ("ab", 2.0), ("aabb", 1.0), ("aaaa", 4.0), ("aaaaaaaa", 2.0)],
)
def test_fit_recovers_the_numbers_of_a_machine_that_keeps_to_the_model(
    nodes: str, cores: float
) -> None:
    fitted = fit(synthetic(nodes_by(nodes), cores))
    missing = ["scale_out"] if len(set(nodes)) == 1 else []
    if nodes == "ab":  # what is copied counts as reduced inside the node
        missing = ["scale_up_latency", "scale_up_message", "scale_up_us"]
    for name, known, number in zip(NUMBERS, KNOWN, fitted, strict=True):
        if name.startswith(tuple(missing)):
            assert number is None, name
        else:
            assert number == pytest.approx(known, rel=1e-4), name


def test_numbers_that_do_not_predict_their_measurements_are_doubtful() -> None:
    swept = synthetic(nodes_by("aabb"), 1.0)
    numbers = fit(swept)
    assert fit_doubts(swept, numbers) == []
    noisy = swept._replace(
        measurements=tuple(
            one._replace(us=one.us * factor)
            for one, factor in zip(swept.measurements, cycle((0.2, 1.0, 5.0)), strict=False)
        )
    )
    (doubt,) = fit_doubts(noisy, fit(noisy))
    assert "% off (median;" in doubt


def test_measured_layout_is_chosen_for_as_measured_and_others_by_the_numbers() -> None:
    swept = synthetic(nodes_by("aabb"), 2.0)
    tuning = tuning_from(text_of(file_of(swept)))
    assert read_for_all_ranks({}) == b"", "a file that the tuner reads is no communicator's"
    *_, by_tuning, by_numbers, _ = chosen_against_best(swept, tuning)
    assert "100%" in by_tuning
    assert "100%" in by_numbers
    for nodes, source in ((swept.nodes, "measured"), (nodes_by("aaabbb"), "predicted")):
        assert source in choose("all_reduce", 1 << 13, nodes, {}, tuning=tuning).why
    forced = choose("all_reduce", 8, swept.nodes, {"HCCL_ALGORITHM": "ring"}, tuning=tuning)
    assert forced.algorithm == "ring"
    lonely = tuning_from(text_of(file_of(synthetic(one_node(4), 2.0))))
    assert "lacks numbers" in choose("all_reduce", 8, swept.nodes, {}, tuning=lonely).why
    assert choose("all_reduce", 1 << 20, one_node(4096), {}, tuning=tuning).algorithm == "mesh"
    narrow = choose("all_reduce", 1 << 20, swept.nodes, {}, in_one_step=True, tuning=tuning)
    assert narrow.algorithm in ("one_shot", "mesh")


def test_chosen_is_compared_with_best_round_by_round() -> None:
    nodes = one_node(2)
    # The machine slowed down; ring was measured before that only.
    rounds = {"one_shot": (10.0, 10.0, 30.0, 30.0, 30.0), "mesh": (9.5, 9.5, 28.0, 28.0, 28.0)}
    found = [
        Measurement("all_reduce", name, 8, float(np.median(us)), us)
        for name, us in {**rounds, "ring": (25.0, 25.0)}.items()
    ]
    tuning = tuning_from(text_of(file_of(synthetic(nodes, 2.0))))
    _, cell, by_tuning, *_ = chosen_against_best(Swept(nodes, 2.0, tuple(found), 0), tuning)
    assert cell.split()[2:] == ["one_shot", "30.00", "mesh", "28.00", "1.07"]
    assert "1 of 1 sizes" in by_tuning


def test_algorithms_far_behind_are_not_measured_again() -> None:
    point = SweepPoint.of("reduce", 8, one_node(4))
    assert point.near() == [first for first, *_ in point.alike]
    point.times = {
        "direct": [1.0, 9.0, 1.0],
        "mesh": [4.0] * 3,
        "tree": [2.0] * 3,
        "bine": [5.0] * 3,
    }
    assert point.near() == ["direct", "tree"]
    in_file = {one.algorithm: one.us for one in point.measurements(4)}
    alike = {"leader": 1.0, "hierarchical": 4.0}  # on one node they have plans of the others
    assert in_file == {"direct": 1.0, "mesh": 4.0, "tree": 2.0, "bine": 5.0, **alike}


@pytest.mark.parametrize(("slower", "chosen"), [(1.02, "mesh"), (1.05, "ring")])
def test_table_stays_where_the_difference_may_be_noise(slower: float, chosen: str) -> None:
    nodes = one_node(4)
    curves = {("all_reduce", "ring"): ((1 << 20, 100.0),)}
    curves["all_reduce", "mesh"] = ((1 << 20, 100.0 * slower),)
    tuning = Tuning((4,), 2.0, (None,) * len(NUMBERS), curves)
    assert choose("all_reduce", 1 << 20, nodes, {}, tuning=tuning).algorithm == chosen


@pytest.mark.parametrize(
    "layout",
    ["a", "aab", "abbab", *by_night("bench", "aa", "aaaab", "aaaabbb", "aabbccdd", "ababababc")],
)
def test_all_ranks_choose_alike_and_get_numpys_result(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tuning.json"
    path.write_text(text_of(file_of(synthetic(nodes_by("aaabb"), 2.0))))
    monkeypatch.setenv(VARIABLE, str(path))
    caplog.set_level(logging.DEBUG, "hccl_py")
    n = len(layout)

    def all_reduce(comm: Communicator) -> None:
        for count in (1, 1_000, 90_001):
            data = np.arange(count, dtype=np.int64) + comm.rank
            comm.all_reduce(data)
            expected = n * np.arange(count) + n * (n - 1) // 2
            np.testing.assert_array_equal(data, expected)
            comm.reduce(data, n - 1)

    with ThreadRanks(layout) as ranks:
        ranks.run(all_reduce)
    lines = [re.fullmatch(r"rank (\d+): (.*)", one) for one in caplog.messages]
    chosen = [(int(line[1]), line[2]) for line in lines if line and " among " in line[2]]
    assert {rank for rank, _ in chosen} == set(range(n))
    assert len({text for _, text in chosen}) == len(chosen) / n == (6 if n > 1 else 3)
    assert n == 1 or all("predicted: " in text for _, text in chosen)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (None, "No such file or directory"),
        ({"format": 7}, f"expected a file of format {FORMAT} .*format 7"),
        ({"format": 1}, "KeyError: 'reduce_us_per_mib'"),
        ({"numbers": {}}, "KeyError"),
        ({"layout": [0]}, "0 where a positive number belongs"),
        ({"measurements": [{"collective": "reduce"}]}, "KeyError"),
    ],
)
def test_broken_file_is_one_error_on_all_ranks(
    change: dict[str, Any] | None, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tuning.json"
    if change is not None:
        path.write_text(json.dumps(file_of(synthetic(one_node(2), 2.0)) | change))
    monkeypatch.setenv(VARIABLE, str(path))
    store = MemoryStore(30)
    with ThreadPoolExecutor(3) as threads:
        made = [threads.submit(Communicator, store, rank, 3, timeout_s=30) for rank in range(3)]
    first, *others = [one.exception() for one in made]
    assert isinstance(first, InvalidArgumentError)
    assert re.search(f"HCCL_TUNING={path}: .*{problem}", str(first))
    for error in others:
        assert isinstance(error, BootstrapError)
        assert str(first) in str(error)


def chosen_by_this_rank(rank: int, world_size: int) -> list[str]:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("hccl_py").addHandler(handler)
    with Communicator(timeout_s=30) as comm:
        comm.all_reduce(np.ones(2, np.float32))
        comm.subset([1], "alone") if rank else None
    return lines


@pytest.mark.nightly("bench")
def test_file_of_a_real_run_decides_in_a_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tuning.json"
    options = ["--tune_check", "-g", "2", "--sizes", "8,4K", "--timeout", "1000"]
    for budget_s in (5.0, 40.0, 320.0):  # what there is no time for is left out
        monkeypatch.setattr("hccl_py.bench.tuning.main._BUDGET_S", budget_s)
        assert main(["--tune", str(path), *options]) == 0
        printed = capsys.readouterr().out
        if "left out: time was up" not in printed:
            break
    assert re.search(r"chosen within 10 % of the best by HCCL_TUNING: \d+ of \d+ cells", printed)
    content = json.loads(path.read_text())
    assert content["layout"] == [2]
    assert {one["algorithm"] for one in content["measurements"]} >= {*names_for("all_reduce")}
    assert {one["bytes"] for one in content["measurements"] if one["collective"] == PING_PONG}
    assert all(one["us"] > 0 for one in content["measurements"])
    only_rank_0 = [{VARIABLE: str(path), "HCCL_DEBUG": "1"}, {}]
    lines, others = run_ranks(chosen_by_this_rank, 2, env=lambda rank: only_rank_0[rank])
    (line,) = [one for one in lines if "all_reduce" in one]
    assert re.search(
        r"rank 0: all_reduce of up to 8 bytes among 2 ranks on 1 node.s.: .*measured: ", line
    )
    assert others == []
