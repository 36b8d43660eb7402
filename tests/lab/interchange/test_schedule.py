"""Plans and recorded jobs as GOAL and as Chakra traces."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from thread_ranks import ThreadRanks

from hccl_py.lab.plan_command.main import main


def varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(raw):
        key, at = varint(raw, at)
        value: int | bytes
        value, at = varint(raw, at)
        if key & 7 == 2:
            value, at = raw[at : at + int(value)], at + int(value)
        yield key >> 3, value


def nodes_of(path: Path) -> list[dict[str, object]]:
    """Return the nodes of a Chakra trace, with their attributes."""
    raw, at, found = path.read_bytes(), 0, list[dict[str, object]]()
    while at < len(raw):
        length, at = varint(raw, at)
        node: dict[str, object] = {"needs": []}
        for number, value in fields(raw[at : at + length]):
            if number == 10:
                (_, name), (_, last) = fields(value)  # type: ignore[arg-type]
                node[name.decode()] = last  # type: ignore[union-attr]
            elif number == 5:
                node["needs"].append(value)  # type: ignore[attr-defined]
            else:
                node[{1: "id", 2: "name", 3: "type", 7: "us"}[number]] = value
        found.append(node)
        at += length
    assert found[0]["id"] == b"0.0.4"
    return found[1:]


def test_goal_has_each_message_at_both_ends(tmp_path: Path) -> None:
    path = tmp_path / "ring.goal"
    words = "export all_reduce=ring --nodes 3 --size 3M --preset office1 -o"
    assert main([*words.split(), str(path)]) == 0
    text = path.read_text()
    ranks = re.findall(r"^rank \d+ \{(.*?)^\}", text, re.DOTALL | re.MULTILINE)
    assert text.startswith("num_ranks 3\n") and len(ranks) == 3
    sends, takes = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for rank, body in enumerate(ranks):
        for size, to, tag in re.findall(r"send (\d+)b to (\d) tag (\d+)", body):
            sends[str(rank), to, tag, size] += 1
        for size, source, tag in re.findall(r"recv (\d+)b from (\d) tag (\d+)", body):
            takes[source, str(rank), tag, size] += 1
        labels = re.findall(r"^l(\d+):", body, re.MULTILINE)
        for later, earlier in re.findall(r"l(\d+) requires l(\d+)", body):
            assert int(earlier) < int(later) < len(labels)
        assert body.count("calc 60000") == 2
    assert sends == takes and sends.total() == 3 * 4 and set(sends.values()) == {1}
    assert {size for *_, size in sends} == {str(1 << 20)}


def test_chakra_has_the_messages_of_each_rank(tmp_path: Path) -> None:
    words = "export all_reduce=ring --nodes 3 --size 3M -o"
    assert main([*words.split(), str(tmp_path / "ring.et")]) == 0
    sends, takes = set[tuple[object, ...]](), set[tuple[object, ...]]()
    for rank in range(3):
        nodes = nodes_of(tmp_path / f"ring.{rank}.et")
        assert [node["id"] for node in nodes] == list(range(8))
        for node in nodes:
            found = sends if node["type"] == 5 else takes
            found.add(tuple(node[key] for key in ("comm_src", "comm_dst", "comm_tag", "comm_size")))
            assert node["comm_src" if node["type"] == 5 else "comm_dst"] == rank
            assert node["is_cpu_op"] == 0
        assert nodes[-1]["needs"] and not nodes[0]["needs"]
    assert sends == takes and len(sends) == 12


def test_recorded_job_is_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ThreadRanks("ab") as ranks:

        def work(comm: object) -> None:
            for _ in range(3):
                comm.all_reduce(np.zeros(1 << 16, np.float32))  # type: ignore[attr-defined]
            comm.broadcast(np.zeros(1 << 12, np.float32), 0)  # type: ignore[attr-defined]
            comm.dump_flight_recorder(tmp_path)  # type: ignore[attr-defined]

        ranks.run(work)
    export = ["export", "--trace", str(tmp_path), "-o"]
    assert main([*export, str(tmp_path / "job.et")]) == 0
    nodes = nodes_of(tmp_path / "job.1.et")
    calls = [(node["comm_type"], node["comm_size"]) for node in nodes if node["type"] == 7]
    assert calls == [(0, 1 << 18)] * 3 + [(5, 1 << 14)]
    assert main([*export, str(tmp_path / "job.goal")]) == 0
    text = (tmp_path / "job.goal").read_text()
    assert text.count("send ") == text.count("recv ") >= 3 * 2 + 1
    assert main([*export, str(tmp_path / "job.xml")]) == 2
    assert "expected an --output of .goal or .et" in capsys.readouterr().err
