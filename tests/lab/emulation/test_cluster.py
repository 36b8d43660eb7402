"""The file of --emulate: what it may say, and one line for what it may not."""

from pathlib import Path

import pytest

from hccl_py.lab.emulation.cluster import Cluster, LinkCut, RankKill, read
from hccl_py.launcher.command_line.read import parse
from hccl_py.launcher.exit_codes import UsageError
from hccl_py.transport.errors import InvalidArgumentError

NETWORK = '[network]\nbandwidth = "1 Gbit/s"\n'
SMALL = f"nodes = 2\n{NETWORK}"
LINK = f"{SMALL}[[link]]\n"
LARGE = """
nodes = 3
ranks_per_node = 2
faults = ["at step 100: cut 1-0 for 2 s", "at step 5: kill rank 5"]

[network]
bandwidth = "10 Gbit/s"
latency = "50 us"
burst = "64 KiB"

[[link]]
nodes = [2, 0]
bandwidth = "0.5Gbit/s"

[[link]]
nodes = [0, 1]
latency = "1.5 ms"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cluster.toml"


def test_file_says_nodes_links_and_faults(file: Path) -> None:
    file.write_text(LARGE)
    assert read(file) == Cluster(
        num_nodes=3,
        ranks_per_node=2,
        bytes_per_s=1.25e9,
        burst_bytes=65536,
        latency_s=50 * 1e-6,
        links={(0, 2): 62.5e6},
        latencies_s={(0, 1): 1.5e-3},
        faults=(LinkCut(100, (0, 1), 2.0), RankKill(5, 5)),
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nodes = ", "expected TOML, such as nodes = 2 and"),
        ("", "nodes: missing, expected as in nodes = 2"),
        ("nodes = 2", "network: missing"),
        (f"nodes = 1\n{NETWORK}", "nodes: expected 2 to 256, got 1"),
        (f"nodes = true\n{NETWORK}", "nodes: expected 2 to 256, got True"),
        (f"ranks = 2\n{SMALL}", "ranks: expected one of faults, link, network, nodes"),
        (f"ranks_per_node = 0\n{SMALL}", "ranks_per_node: expected 1 to"),
        ("nodes = 2\nnetwork = 1", "network: expected a table, got 1"),
        ("nodes = 2\n[network]", 'network.bandwidth: missing, expected such as "1 Gbit/s"'),
        (f'{SMALL}speed = "1"', "network: speed: expected one of bandwidth, burst, latency"),
        (SMALL.replace("Gbit", "GB"), "expected a rate such as 1gbit or 100 Mbit/s, got"),
        (
            SMALL.replace("1 G", "0 G"),
            "network.bandwidth: expected 1 kbit/s to 1000 Gbit/s, got '0",
        ),
        (SMALL.replace("1 G", "1001 G"), "network.bandwidth: expected 1 kbit/s to 1000 Gbit/s"),
        (SMALL.replace("1 G", "-1 G"), "expected 1 kbit/s to 1000 Gbit/s, got '-1 Gbit/s'"),
        (f'{SMALL}latency = "5 ms/s"', "expected a time such as 50us or 2 ms, got '5 ms/s'"),
        (f'{SMALL}latency = "11 s"', "network.latency: expected 0 s to 10 s, got '11 s'"),
        (f'{SMALL}latency = "-5 ms"', "expected 0 s to 10 s, got '-5 ms'"),
        (f'{SMALL}burst = "1 KB/s"', "expected a size such as 4, 64K or 1M, got '1 KB/s'"),
        (f'{SMALL}burst = "0 B"', "network.burst: expected 1 B to 1024 MiB, got '0 B'"),
        (f'faults = ["at step 1: cut 0-1 for 2000000 s"]\n{SMALL}', "expected 1 us to 86400 s"),
        (f"{SMALL}latency = 50", "network.latency: expected a time such as 50us or 2 ms, got 50"),
        (f"{LINK}nodes = [0]", r"link 1: expected nodes = [A, B], got [0]"),
        (f'{LINK}nodes = [0, 2]\nlatency = "1 s"', "two different nodes from 0 to 1, got 0 and 2"),
        (f"{LINK}nodes = [0, 1]", "link 1: expected a bandwidth, a latency or both"),
        (f"nodes = 2\nlink = 3\n{NETWORK}", "link: expected [[link]], in double brackets"),
        (f'faults = "at step 1: kill rank 0"\n{SMALL}', "faults: expected a list of texts, got"),
        (
            f'faults = ["kill rank 0"]\n{SMALL}',
            "N from 1 on, got 'kill rank 0'",
        ),
        (f'faults = ["at step 0: kill rank 0"]\n{SMALL}', "N from 1 on, got 'at step 0:"),
        (f'faults = ["at step 1: cut 0-0 for 1 s"]\n{SMALL}', "two different nodes from 0 to 1"),
        (f'faults = ["at step 1: cut 0-1 for 1"]\n{SMALL}', "a time such as 50us or 2 ms, got"),
    ],
)
def test_wrong_file_gets_a_line_that_says_what_was_expected(
    file: Path, text: str, problem: str
) -> None:
    file.write_text(text)
    with pytest.raises(InvalidArgumentError) as caught:
        read(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value).replace(text, "")


def options(file: Path, *words: str) -> tuple[int, int]:
    read_options = parse([*words, "--emulate", str(file), __file__], {})
    assert read_options.emulates is not None
    return read_options.num_nodes, read_options.ranks_per_node


def test_command_line_gets_its_nodes_from_the_file(file: Path) -> None:
    file.write_text(LARGE)
    assert options(file) == (3, 2)
    assert options(file, "--nnodes", "3", "--nproc", "2") == (3, 2)
    file.write_text(SMALL)
    assert options(file) == (2, 1)
    assert options(file, "--nproc-per-node", "4") == (2, 4)
    assert options(file, "--world-size", "8") == (2, 4)


@pytest.mark.parametrize(
    ("words", "environment", "problem"),
    [
        (["--nnodes", "4"], {}, "has 3 nodes, --nnodes says 4"),
        (["--nproc", "8"], {}, "has ranks_per_node = 2, the command line says 8"),
        (["--hosts", "a:2"], {}, "expected all nodes on this machine, without --hosts"),
        (["--node-rank", "0"], {}, "without --node-rank"),
        (["--check"], {}, "without --check"),
        (["--role", "x"], {}, "expected a job of fixed size"),
        ([], {"HCCL_TRANSPORT": "zmq"}, "HCCL_TRANSPORT: expected auto or tcp on an emulated"),
    ],
)
def test_options_that_do_not_fit_are_named(
    file: Path, words: list[str], environment: dict[str, str], problem: str
) -> None:
    file.write_text(LARGE)
    with pytest.raises(UsageError) as caught:
        parse([*words, "--emulate", str(file), __file__], environment)
    assert str(caught.value).startswith("--emulate: ")
    assert problem in str(caught.value)


def test_fault_of_a_rank_that_is_not_there_is_named(file: Path) -> None:
    file.write_text(LARGE.replace("rank 5", "rank 6"))
    with pytest.raises(UsageError, match="kill rank 6: expected a rank from 0 to 5"):
        options(file)


def test_missing_file_is_named(file: Path) -> None:
    with pytest.raises(UsageError, match=r"cluster\.toml: No such file"):
        options(file)
