"""The hosts of --hosts and --hostfile, as mpirun, DeepSpeed, Horovod and MPICH read them."""

from pathlib import Path

import pytest

from hccl_py.launcher.exit_codes import UsageError
from hccl_py.launcher.hosts.environment import read_env_file
from hccl_py.launcher.hosts.host_list import Host, choose, parse_hosts, read_hostfile


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:8,b:4", [Host("a", 8), Host("b", 4)]),
        ("a, b.example.org", [Host("a", 2), Host("b.example.org", 2)]),
        ("root@a:3,[fd00::1]:4,[fe80::1%eth0],10.0.0.7:1",
         [Host("a", 3, "root"), Host("fd00::1", 4), Host("fe80::1%eth0", 2), Host("10.0.0.7", 1)]),
        ("a,a,b", [Host("a", 2), Host("b", 1)]),
    ],
)  # fmt: skip
def test_hosts_option_is_read_as_mpirun_does(text: str, expected: list[Host]) -> None:
    assert parse_hosts(text, default_slots=2) == tuple(expected)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a:8,,b", "got ''"),
        ("fd00::1", "IPv6 addresses stand in brackets"),
        ("a:0", "expected 1 to 32768 slots, got '0'"),
        ("a:x", "got 'a:x'"),
        ("-oProxyCommand=x", "got '-oProxyCommand=x'"),
        ("-l@a", "got '-l@a'"),
        ("a;b", "got 'a;b'"),
        ("a:4,a:4", "host a is named again"),
        ("x@a,y@a", "host a is named again"),
    ],
)
def test_wrong_hosts_option_is_one_line(text: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_hosts(text)
    assert problem in str(caught.value)
    assert str(caught.value).startswith("--hosts: ")
    assert "\n" not in str(caught.value)


def test_hostfile_forms_and_comments_are_read(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text(
        "# the cluster\n\nworker-0 slots=16\nworker-1 slots = 4 max_slots=8 # Open MPI\n"
        "worker-2:2\n  me@worker-3\tslots=1\n[fd00::4]:2\nworker-5\n"
    )
    assert read_hostfile(path, default_slots=3) == (
        *(Host("worker-0", 16), Host("worker-1", 4), Host("worker-2", 2)),
        *(Host("worker-3", 1, "me"), Host("fd00::4", 2), Host("worker-5", 3)),
    )


def test_node_file_with_a_line_for_each_slot_counts_them(tmp_path: Path) -> None:
    path = tmp_path / "nodes"
    path.write_text("a\na\na\nb\n")
    assert read_hostfile(path) == (Host("a", 3), Host("b", 1))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("b slots=two", "expected 1 to 32768 slots, got 'two'"),
        ("b slots=2 gpus=2", "got 'gpus=2'"),
        ("b:2 slots=2", "got 'slots=2'"),
        ("b slots=4 max_slots=2", "max_slots=2 is less than slots=4"),
        ("b c", "got 'c'"),
        ("a slots=4", "host a is named again"),
        ("a", "host a is named again"),
    ],
)
def test_wrong_line_of_hostfile_is_named(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(f"a slots=4\n\n{line}\n")
    with pytest.raises(UsageError, match="hosts:3: ") as caught:
        read_hostfile(path)
    assert problem in str(caught.value)


@pytest.mark.parametrize("content", [None, "# nobody\n"])
def test_hostfile_without_hosts_is_an_error(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "hosts"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=f"--hostfile {path}: "):
        read_hostfile(path)


def test_options_use_a_part_of_the_list() -> None:
    hosts = (Host("a", 8), Host("b", 8), Host("c", 4))
    assert choose(hosts) == hosts
    assert choose(hosts, num_nodes=2, ranks_per_node=4, world_size=8) == (
        *(Host("a", 4), Host("b", 4)),
    )


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"num_nodes": 3}, "--nnodes 3: expected that many hosts, got a, b"),
        ({"ranks_per_node": 8}, "--nproc-per-node 8: .* but b has 4"),
        ({"world_size": 16}, r"--world_size 16: the hosts run 12 ranks \(a:8, b:4\)"),
    ],
)
def test_options_that_the_list_contradicts_are_errors(
    options: dict[str, int], problem: str
) -> None:
    with pytest.raises(UsageError, match=problem):
        choose((Host("a", 8), Host("b", 4)), **options)


def test_file_without_end_is_refused() -> None:
    endless = Path("/dev/zero")
    with pytest.raises(UsageError, match="--hostfile /dev/zero: expected 1 MiB at most"):
        read_hostfile(endless)
    with pytest.raises(UsageError, match="--env-file /dev/zero: expected 1 MiB at most"):
        read_env_file(endless)
