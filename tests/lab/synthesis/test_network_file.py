"""Files of networks: which links there are, and one line for wrong ones."""

import json
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from networks import between, network_of

from hccl_py.lab.synthesis.network import Network
from hccl_py.lab.synthesis.network_file import read_network
from hccl_py.transport.errors import InvalidArgumentError

GB_PER_MBIT = 1 / 8000


def matrix_of(
    folder: Path, mbit: dict[tuple[int, int], float], node_of: str, *, separate: bool = False
) -> Network:
    """Read a matrix as --validate writes it; ranks with equal letters share a node."""
    links = [
        {
            "from": source,
            "to": target,
            "between_nodes": node_of[source] != node_of[target],
            "gb_per_s": mbit[source, target] * GB_PER_MBIT,
        }
        for source, target in permutations(range(len(node_of)), 2)
    ]
    path = folder / "links.json"
    path.write_text(json.dumps({"links": links}))
    return read_network(path, separate_links=separate)


def rates(network: Network) -> dict[str, float]:
    named = {(network.names[a], network.names[b]): r for (a, b), r in network.kbit_per_s.items()}
    return {f"{a} > {b}": rate / 1000 for (a, b), rate in named.items()}


def test_message_takes_the_fastest_way_and_of_equal_ones_the_shortest(tmp_path: Path) -> None:
    links = [between(0, 1, 50), between(0, "a", 100), between("a", "b", 100)]
    links += [between("b", 1, 100), between("a", 1, 100), between(1, 2, 10)]
    network = network_of(links, tmp_path)
    ways = {pair: [network.described(arc) for arc in way] for pair, way in network.routes.items()}
    assert ways[0, 1] == ["0 > a 100 Mbit/s", "a > 1 100 Mbit/s"]
    assert (0, 2) not in ways, "no rank forwards"
    assert len(ways) == 4


def test_parallel_links_add_up_and_one_direction_stays_one(tmp_path: Path) -> None:
    one_way = {"from": 1, "to": 0, "mbit": 0.5}
    network = network_of([between(0, 1, 2), between(0, 1, 3), one_way], tmp_path)
    assert rates(network) == {"0 > 1": 5, "1 > 0": 5.5}


def test_matrix_has_a_nic_for_each_node_unless_links_are_separate(tmp_path: Path) -> None:
    mbit = {pair: 100.0 for pair in permutations(range(3), 2)} | {(0, 1): 200.0}
    assert rates(matrix_of(tmp_path, mbit, "abc", separate=True)) == {
        f"{a} > {b}": rate for (a, b), rate in mbit.items()
    }
    shared = matrix_of(tmp_path, mbit, "abc")
    found = rates(shared)
    assert found["0 > wire from 0"] == found["wire to 1 > 1"] == 200
    assert found["wire from 0 > wire to 2"] == found["wire to 0 > 0"] == 100
    assert len(found) == 6 + 6 and shared.nodes == ((0,), (1,), (2,))


def test_ranks_of_a_node_share_its_nic(tmp_path: Path) -> None:
    mbit = {(a, b): 9000.0 if a // 2 == b // 2 else 100.0 for a, b in permutations(range(4), 2)}
    network = matrix_of(tmp_path, mbit, "aabb")
    assert network.nodes == ((0, 1), (2, 3))
    assert rates(network)["0 > 1"] == 9000
    crossing = [set(network.routes[pair]) for pair in ((0, 2), (1, 3))]
    shared = {network.described(arc) for arc in set.intersection(*crossing)}
    assert "nic of 0 1 > wire from 0 1 100 Mbit/s" in shared
    assert "wire from 0 1 > wire to 2 3 100 Mbit/s" in shared


def test_noise_of_a_matrix_is_taken_off(tmp_path: Path) -> None:
    every = list(permutations(range(3), 2))
    mbit = dict(zip(every, (96.0, 99.0, 100.0, 101.0, 104.0, 50.0), strict=True))
    found = rates(matrix_of(tmp_path, mbit, "abc", separate=True))
    assert sorted(found.values()) == [50, 100, 100, 100, 100, 100]


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ([], 'expected "links": \\[...\\]: a topology, or what'),
        ({"links": []}, 'expected "links"'),
        ({"links": [3]}, 'expected "links"'),
        ({"links": [{"between": [0, 1]}]}, r"links\[0\]: expected .*\"mbit\": 50.*; got"),
        ({"links": [between(0, 0, 5)]}, r"links\[0\]: expected"),
        ({"links": [between(0, True, 5)]}, r"links\[0\]: expected"),
        ({"links": [between(0, 1, 0)]}, r"links\[0\]: expected"),
        ({"links": [between(0, 1, float("nan"))]}, r"links\[0\]: expected"),
        ({"links": [{"between": [0, 1], "mbit": "5"}]}, r"links\[0\]: expected"),
        ({"links": [{"between": [0, 1], "mbit": 5, "gbit": 5}]}, r"links\[0\]: expected"),
        ({"links": [between(0, 2, 5)]}, r"2 to 1024 ranks 0, 1, ...; got \[0, 2\]"),
        ({"links": [between("a", "b", 5)]}, r"2 to 1024 ranks 0, 1, ...; got \[\]"),
        (
            {"links": [between(0, 1, 5), between(2, 3, 5)]},
            "expected a route between all ranks; rank 2 and 0 have none",
        ),
        ({"links": [{"from": 0, "to": 1, "mbit": 5}]}, "a route between all ranks; rank 1 and 0"),
        (
            {"links": [{"from": 0, "to": 1, "gb_per_s": 1}]},
            r"every pair of 2 ranks; there is no link from, to \(1, 0\)",
        ),
        ({"links": [{"from": 0, "to": 1, "gb_per_s": -1}]}, r"links\[0\]: expected \"from\""),
        ({"links": [{"from": 0, "to": 1, "gb_per_s": True}]}, r"links\[0\]: expected \"from\""),
        (
            {
                "links": [
                    {"from": a, "to": b, "gb_per_s": 1, "between_nodes": {a, b} == {0, 2}}
                    for a, b in permutations(range(3), 2)
                ]
            },
            "which ranks share a node; the link from, to .* contradicts the others",
        ),
    ],
)
def test_wrong_file_gets_one_line(document: Any, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "network.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidArgumentError, match=f"network.json: .*{problem}") as error:
        read_network(path)
    assert len(str(error.value).splitlines()) == 1


def test_file_that_cannot_be_read_gets_one_line(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="none.json: No such file"):
        read_network(tmp_path / "none.json")
    for content in (b"\xff", b"[" * 100_000):
        (tmp_path / "text").write_bytes(content)
        with pytest.raises(InvalidArgumentError, match="text: expected JSON"):
            read_network(tmp_path / "text")
