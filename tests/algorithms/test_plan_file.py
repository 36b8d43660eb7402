"""Plans in a file: what is written is what runs, and what is wrong is refused."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from node_shapes import one_node
from stores import MemoryStore
from thread_ranks import ThreadRanks

from hccl_py import Communicator, ReduceOp, algorithm
from hccl_py.algorithms.loading import in_effect, loaded
from hccl_py.algorithms.plan_file import write_plans
from hccl_py.algorithms.table import ALGORITHMS, plans_for
from hccl_py.plan.contracts import COLLECTIVES
from hccl_py.plan.language import PlanBuilder, input, output
from hccl_py.transport.errors import InvalidArgumentError

NODES = one_node(4)
FOR_FILES = [names for names, entry in ALGORITHMS.items() if not entry.equal_blocks]


def written(path: Path, collective: str, name: str) -> Path:
    roots = range(4) if COLLECTIVES[collective].rooted else [None]
    write_plans(path, {root: plans_for(collective, name, NODES, root) for root in roots}, "about")
    return path


def changed(path: Path, change: Callable[[Any], object]) -> str:
    document = json.loads(path.read_text())
    change(document)
    other = path.with_name("changed.json")
    other.write_text(json.dumps(document))
    return f"plan:{other}"


@pytest.mark.parametrize(("collective", "name"), FOR_FILES)
def test_plans_of_the_table_come_back_as_they_were(
    collective: str, name: str, tmp_path: Path
) -> None:
    one = loaded(f"plan:{written(tmp_path / 'p.json', collective, name)}", collective)
    assert str(one) == f"{collective}=plan:p.json" and one.cost == "about"
    for root in range(4) if COLLECTIVES[collective].rooted else [None]:
        expected = plans_for(collective, name, NODES, root)
        assert one.plans(NODES, root) == tuple(
            replace(plan, algorithm="plan:p.json") for plan in expected
        )
        one.verify(NODES, root)


def test_it_serves_its_number_of_ranks_on_any_nodes(tmp_path: Path) -> None:
    one = loaded(f"plan:{written(tmp_path / 'p.json', 'all_reduce', 'ring')}")
    assert one.serves(NODES) and one.serves(((0, 2), (1, 3))) and not one.serves(one_node(3))
    with pytest.raises(InvalidArgumentError, match=r"plan:p.json: expected 4 ranks, got 3"):
        one.plan(0, one_node(3), None)


def _set(key: str, value: object) -> Callable[[Any], object]:
    return lambda document: document.update({key: value})


def _line(text: object) -> Callable[[Any], object]:
    def change(document: Any) -> None:
        document["plans"][0]["ops"][1][2] = text

    return change


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_set("format", "other"), 'expected "format": "hccl-plan"'),
        (_set("version", 2), "expected version 1, got 2: write it again"),
        (_set("collective", "allreduce"), "collective: expected one of all_reduce, .*'allreduce'"),
        (_set("collective", ["all_reduce"]), "collective: expected one of all_reduce, "),
        (_set("world_size", "4"), "world_size: expected a number from 1 to 4096, got '4'"),
        (_set("world_size", 5), "plans: expected ops of 5 ranks, a list each, got"),
        (_set("data_chunks", 10**12), "data_chunks: expected a number from 0 to 65536, got"),
        (_set("data_chunks", True), "data_chunks: expected a number from 0 to 65536, got True"),
        (_set("data_chunks", 0), "data_chunks: expected 1 or more, got 0"),
        (_set("block_parts", 0), "block_parts: expected a number from 1 to 65536, got 0"),
        (_set("block_parts", 2), "block_parts: expected 1 without blocks, got 2"),
        (_set("about", None), "about: expected text, got None"),
        (_set("plans", []), r"plans: expected the roots \[None\], in order, got \[\]"),
        (_set("plans", [3]), r"plans: expected objects, got \[3\]"),
        (_line("send data[0] 1"), "plans, rank 1, op 2: expected `send CHUNK to RANKS`"),
        (_line(7), "plans, rank 1, op 2: expected `send CHUNK to RANKS`.*got '7'"),
        (_line("recv data[0] from 1 2"), "plans, rank 1, op 2: expected one peer of a recv"),
        (_line("send data[0] to 2~"), "plans, rank 1, op 2: expected no compressed peer"),
    ],
)
def test_wrong_file_gets_one_line(
    change: Callable[[Any], object], problem: str, tmp_path: Path
) -> None:
    place = changed(written(tmp_path / "p.json", "all_reduce", "ring"), change)
    with pytest.raises(InvalidArgumentError, match=f"^plan:.*changed.json: {problem}") as error:
        in_effect([], {"HCCL_ALGORITHM": f"all_reduce={place}"})
    assert len(str(error.value).splitlines()) == 1


def test_file_without_a_root_is_read(tmp_path: Path) -> None:
    place = written(tmp_path / "p.json", "all_reduce", "ring")
    assert loaded(changed(place, lambda one: one["plans"][0].pop("root"))).serves(NODES)


def test_missing_file_and_other_collective_get_one_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"no.json: No such file"):
        loaded(f"plan:{tmp_path}/no.json")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(InvalidArgumentError, match="expected JSON: Expecting value"):
        loaded(f"plan:{tmp_path}/text")
    path = written(tmp_path / "p.json", "all_reduce", "ring")
    with pytest.raises(InvalidArgumentError, match="expected an algorithm of broadcast, got one"):
        loaded(f"plan:{path}", "broadcast")


def test_a_job_runs_it_and_other_sizes_of_world_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    names = {"all_reduce": "ring", "broadcast": "mesh", "reduce_scatter": "ring"}
    files = {one: written(tmp_path / f"{one}.json", one, name) for one, name in names.items()}
    text = ",".join(f"{one}=plan:{path}" for one, path in files.items())
    monkeypatch.setenv("HCCL_ALGORITHM", text)

    def run(comm: Communicator) -> None:
        n, me = comm.world_size, comm.rank
        for count in (0, 3, 90_001):
            data = np.arange(count, dtype=np.int64) + me
            comm.all_reduce(data)
            expected = n * np.arange(count) + n * (n - 1) // 2
            np.testing.assert_array_equal(data, expected)
            comm.broadcast(data, n - 1)
            blocks = np.tile(np.arange(count, dtype=np.int64), n) * (me + 1)
            output = np.zeros(count, np.int64)
            comm.reduce_scatter(output, blocks)
            np.testing.assert_array_equal(output, np.arange(count) * (n * (n + 1) // 2))

    for layout, serving in (("aabb", set(names)), ("abb", set())):
        caplog.clear()
        with caplog.at_level(logging.INFO, "hccl_py"), ThreadRanks(layout) as ranks:
            ranks.run(run)
        chosen = [one for one in caplog.messages if "your algorithm, about" in one]
        assert {one.split(": ")[1].split()[0] for one in chosen} == serving


def halves(me: int, n: int, plan: PlanBuilder) -> None:
    """all_gather: the halves of each block go to the others on their own."""
    others = [peer for peer in range(n) if peer != me]
    for part in (1, 0):
        plan.copy(output[2 * me + part], input[part])
        plan.send(others, output[2 * me + part])
    for peer in others:
        for part in (1, 0):
            plan.recv(peer, output[2 * peer + part])


def thirds(me: int, n: int, plan: PlanBuilder) -> None:
    """reduce_scatter: the thirds of each block go round a ring, the second in scratch."""
    for part in range(3):
        at = plan.scratch(0, like=input[3 * ((me - 1) % n) + part])
        plan.copy(at, input[3 * ((me - 1) % n) + part])
        for step in range(1, n):
            block = (me - step - 1) % n
            plan.send([(me + 1) % n], at)
            at = plan.scratch(step % 2, like=input[3 * block + part])
            if step == n - 1:
                at = output[part]
            plan.copy(at, input[3 * block + part])
            plan.recv_reduce([(me - 1) % n], at)


def test_a_job_runs_plans_that_cut_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a file, blocks of any length, uneven ones too, out of place and in place."""
    functions = {
        "all_gather": algorithm("all_gather", chunks=2)(halves),
        "reduce_scatter": algorithm("reduce_scatter", chunks=3)(thirds),
    }
    for name, one in functions.items():
        write_plans(tmp_path / f"{name}.json", {None: one.verify(NODES)}, "about")
        again = loaded(f"plan:{tmp_path}/{name}.json").plans(NODES, None)
        assert [plan.shape for plan in again] == [plan.shape for plan in one.plans(NODES, None)]
    files = (f"{name}=plan:{tmp_path}/{name}.json" for name in functions)
    monkeypatch.setenv("HCCL_ALGORITHM", ",".join(files))

    def run(comm: Communicator) -> None:
        n, me = comm.world_size, comm.rank
        for count in (0, 1, 2, 5, 90_001, 400_000):
            every = [np.arange(count, dtype=np.float32) + rank for rank in range(n)]
            gathered = np.zeros(n * count, np.float32)
            comm.all_gather(gathered, every[me])
            np.testing.assert_array_equal(gathered, np.concatenate(every))
            uneven = [one[: max(0, count - rank)] for rank, one in enumerate(every)]
            outputs = [np.zeros_like(one) for one in uneven]
            comm.all_gather(outputs, uneven[me])
            for got, expected in zip(outputs, uneven, strict=True):
                np.testing.assert_array_equal(got, expected)
            blocks = np.tile(np.arange(count, dtype=np.float32), n) * (me + 1)
            for op, factor in ((ReduceOp.SUM, 10.0), (ReduceOp.AVG, 2.5), (ReduceOp.MAX, 4.0)):
                output = np.zeros(count, np.float32)
                comm.reduce_scatter(output, blocks, op)
                np.testing.assert_allclose(output, np.arange(count) * factor, rtol=1e-6)
            inside = blocks.copy()
            mine = inside[me * count : (me + 1) * count]
            comm.reduce_scatter(mine, inside)
            np.testing.assert_array_equal(mine, np.arange(count) * 10)

    for layout in ("aaaa", "aabb"):
        with ThreadRanks(layout) as ranks:
            ranks.run(run)


def test_file_that_differs_on_one_rank_is_named(tmp_path: Path) -> None:
    for name in ("ring", "mesh"):
        (tmp_path / name).mkdir()
        written(tmp_path / name / "p.json", "all_reduce", name)
    store = MemoryStore(60.0)

    def open_rank(rank: int) -> str:
        own = loaded(f"plan:{tmp_path}/{'mesh' if rank == 2 else 'ring'}/p.json")
        with pytest.raises(InvalidArgumentError) as error:
            Communicator(store, rank, 4, timeout_s=60.0, algorithms=[own])
        return str(error.value)

    with ThreadPoolExecutor(4) as threads:
        (message,) = set(threads.map(open_rank, range(4)))
    assert "plan:p.json: rank 2 has another function than rank 0" in message
    assert message.endswith("give all ranks the same file")
