"""The command line: when nodes are emulated, and one clear line for what cannot be done."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hccl_py.launcher import options
from hccl_py.launcher.main import main

SCRIPT = __file__


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.parametrize(
    ("arguments", "local_nodes"),
    [
        ("", 1),
        ("--standalone", 1),
        ("--nnodes 1 --node-rank 0", None),
        ("--nnodes 2", 2),
        ("--nnodes 2 --master-port 29511", 2),
        ("--nnodes 2 --standalone", 2),
        ("--nnodes 2 --node-rank 0", None),
        ("--nnodes 2 --node_rank 1", None),
        ("--nnodes 2 --master-addr 10.0.0.1", None),
        ("--nnodes 2 --rdzv-endpoint host:29400", None),
        ("--nnodes 2 --rdzv-backend c10d", None),
        ("--nnodes 2 --rdzv-id 7", None),
        ("--nnodes 1:2", None),
    ],
)
def test_nodes_are_emulated_only_where_nothing_says_otherwise(
    arguments: str, local_nodes: int | None
) -> None:
    assert options.parse([*arguments.split(), SCRIPT], {}).local_nodes == local_nodes


@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "GROUP_RANK"])
def test_nodes_are_not_emulated_under_a_scheduler(name: str) -> None:
    request = options.parse(["--nnodes", "2", SCRIPT], {name: "0"})
    assert request.local_nodes is None
    assert request.scheduler == name


def test_torchruns_variables_count_as_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_NODE_RANK", "1")
    request = options.parse(["--nnodes", "2", SCRIPT], os.environ)
    assert request.local_nodes is None
    assert int(request.args.node_rank) == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--nproc-per-node 0 SCRIPT", "--nproc-per-node: expected 1 or more, got '0'"),
        ("--nproc-per-node few SCRIPT", "--nproc-per-node: expected a number"),
        ("--nnodes abc SCRIPT", "--nnodes: expected a number or MIN:MAX, got 'abc'"),
        ("--nnodes 3:2 SCRIPT", "--nnodes: expected 1 or more (MIN <= MAX), got '3:2'"),
        ("--nnodes 0 SCRIPT", "--nnodes: expected 1 or more (MIN <= MAX), got '0'"),
        ("--master-port 70000 SCRIPT", "--master-port: expected 1 to 65535, got 70000"),
        ("--max-restarts -1 SCRIPT", "--max-restarts: expected 0 or more, got -1"),
        ("--tee 9 SCRIPT", "--tee: expected 0 to 3"),
        ("missing.py", "script not found: missing.py"),
        ("-m missing_module", "module not found: missing_module"),
        ("--no-python missing-program", "program not found: missing-program"),
        ("-m --no-python json", "-m and --no-python exclude each other"),
        ("--local-ranks-filter x SCRIPT", "--local_ranks_filter must be a comma-separated list"),
    ],
)
def test_wrong_argument_is_one_line_and_exit_code_2(
    arguments: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.replace("SCRIPT", SCRIPT).split()) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"hccl-launch: error: {expected}")
    assert told.count("\n") == 1


@pytest.mark.parametrize("nnodes", ["1", "2"])
def test_port_in_use_is_one_line_and_exit_code_2_and_leaves_no_folder(
    nnodes: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["--nnodes", nnodes, "--master-port", port, SCRIPT]) == 2
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith("hccl-launch: error: ")
    assert f"127.0.0.1:{port}" in last
    assert "in use" in last
    assert list(tmp_path.iterdir()) == []
