"""--dry-run says what the start does, and starts nothing."""

import json
import os
import shlex
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest
from launching import dry_run, launch

from hccl_py.launcher.parts.dry_run import PlannedRank, render
from hccl_py.launcher.placement.binding import Place
from hccl_py.schedulers.ports import free_port

SCRIPT = """
import json, os, sys
os.write(1, (json.dumps({"argv": sys.orig_argv, **os.environ}) + "\\n").encode())
"""
OPEN = "<chosen at start>"
RANK_OF_SLURM = {
    "SLURM_JOB_ID": "1",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def printed(text: str) -> dict[int, dict[str, str]]:
    """Return the variables of each rank, with its command as `$`."""
    shared, *own = text.partition("every rank:\n")[2].split("\nrank ")
    common = variables(shared)
    return {
        int(each.partition(":")[0]): {**common, **variables(each.partition(":")[2])} for each in own
    }


def variables(text: str) -> dict[str, str]:
    found = {}
    for line in filter(str.strip, text.splitlines()):
        if line.startswith("  $ "):
            found["$"] = line[4:]
        else:
            name, _, value = line.strip().partition("=")
            found[name] = value if value == OPEN else "".join(shlex.split(value))
    return found


def of_ranks(text: str, name: str) -> list[str]:
    return [each[name] for each in printed(text).values()]


def test_every_variable_and_command_is_that_of_the_real_start(script: Path) -> None:
    port = free_port("127.0.0.1")
    with socket.create_server(("127.0.0.1", port)):
        words = ("--nnodes", 2, "--nproc", 2, "--rdzv-id", "my job", "--master-port", port)
        told = launch("--dry-run", *words, script, "a b")
        assert (told.returncode, told.stderr) == (0, "")
    done = launch(*words, script, "a b")
    real = {int(each["RANK"]): each for each in map(json.loads, done.stdout.splitlines())}
    shown = printed(told.stdout)
    assert sorted(shown) == sorted(real) == [0, 1, 2, 3]
    for rank, environment in real.items():
        assert shlex.split(shown[rank].pop("$")) == environment.pop("argv")
        set_here = {name for name in environment if name not in os.environ} - {"HCCL_TEST_JOB"}
        assert set(shown[rank]) >= set_here
        for name, value in shown[rank].items():
            assert value in (environment[name], "***", OPEN), name
    assert of_ranks(told.stdout, "HCCL_SECRET") == ["***"] * 4


def test_port_that_the_start_chooses_is_left_open(script: Path) -> None:
    told = dry_run(script)
    assert of_ranks(told.stdout, "MASTER_PORT") == [OPEN]
    assert of_ranks(told.stdout, "MASTER_ADDR") == ["127.0.0.1"]


@pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh")
def test_ranks_of_all_hosts_replace_gloo_and_each_host_looks_for_accelerators(script: Path) -> None:
    words = ("--replace-gloo", "--habana-shim", "--hosts", "127.0.0.1:1,192.0.2.9:1")
    told = dry_run(*words, script)
    assert of_ranks(told.stdout, "HCCL_REPLACE") == ["gloo"] * 2
    assert of_ranks(told.stdout, "HCCL_HABANA_SHIM") == ["1"] * 2
    assert printed(told.stdout)[1]["ACCELERATE_USE_CPU"] == OPEN


@pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh")
def test_cores_of_other_hosts_are_not_known(script: Path) -> None:
    hosts = ("--hosts", "127.0.0.1:1,192.0.2.9:2", "-x", "HF_TOKEN=x", "-x", "COLOR=red")
    told = dry_run(*hosts, "--remote-python", "py", script)
    assert told.returncode == 0, told.stderr
    table = [line.split() for line in told.stdout.splitlines()[1:4]]
    assert [line[:4] for line in table] == [
        ["127.0.0.1", "0", "0", "0"],
        ["192.0.2.9", "1", "0", "1"],
        ["192.0.2.9", "1", "1", "2"],
    ]
    assert [line[4:] == ["?"] * 3 for line in table] == [False, True, True]
    assert of_ranks(told.stdout, "LOCAL_WORLD_SIZE") == ["1", "2", "2"]
    assert of_ranks(told.stdout, "HF_TOKEN") == ["***"] * 3
    assert of_ranks(told.stdout, "COLOR") == ["red"] * 3
    assert of_ranks(told.stdout, "$")[1].startswith("py ")


@pytest.mark.parametrize(
    ("words", "environment", "ranks", "address"),
    [
        ("--nnodes 2 --nproc 2 --node-rank 1 --master-addr a", {}, [2, 3], "a"),
        ("--nnodes 2 --rdzv-endpoint a:300", {}, [0], "a"),
        (
            "--nproc 2",
            {"JOB_COMPLETION_INDEX": "1", "PET_NNODES": "3", "PET_MASTER_ADDR": "a"},
            [2, 3],
            "a",
        ),
        (
            "--nproc 2",
            {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[1-2]"},
            [0, 1, 2, 3],
            OPEN,
        ),
        (
            "",
            RANK_OF_SLURM,
            [3],
            OPEN,
        ),
    ],
    ids=["by hand", "by arrival", "pod", "allocation", "rank of Slurm"],
)
def test_ranks_of_one_of_several_nodes(
    script: Path, words: str, environment: Mapping[str, str], ranks: list[int], address: str
) -> None:
    told = dry_run(*words.split(), script, **environment)
    assert told.returncode == 0, told.stderr
    assert list(printed(told.stdout)) == ranks
    assert set(of_ranks(told.stdout, "MASTER_ADDR")) == {address}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            "--nnodes 1:2 --rdzv-endpoint 127.0.0.1:29400",
            "--dry-run: an elastic job places its ranks when its nodes have come",
        ),
        ("--nnodes 2 --master-addr a", "--node-rank: expected 0 to 1"),
    ],
)
def test_place_that_is_not_known_is_an_error(script: Path, words: str, expected: str) -> None:
    told = dry_run(*words.split(), script)
    assert told.returncode == 2
    assert told.stderr.startswith(f"hccl-launch: error: {expected}")


COMMAND = ("python", "train.py", "--name", "two words")


def planned(rank: int, place: Place | None, **environment: str | None) -> PlannedRank:
    return PlannedRank("a", 0, rank, rank, place, {"RANK": str(rank), **environment}, COMMAND)


def test_map_variables_and_commands_of_two_ranks() -> None:
    shared = {
        "HCCL_SECRET": "c0ffee",
        "HF_TOKEN": "x",
        "PGPASSWORD": "x",
        "TOKENIZERS_PARALLELISM": "false",
        "https_proxy": "http://me:x@proxy",
    }
    place = Place((0, 1, 4), (0,), 2, is_bound=True)
    text = render([planned(0, place, **shared), planned(1, None, **shared, PORT=None)], ["a note"])
    assert (
        text
        == """\
host  node  local rank   rank  threads  numa   cpus
a        0           0      0        2  0      0-1,4
a        0           1      1        ?  ?      ?
a note

every rank:
  HCCL_SECRET=***
  HF_TOKEN=***
  PGPASSWORD=***
  TOKENIZERS_PARALLELISM=false
  https_proxy=***
  $ python train.py --name 'two words'
rank 0:
  RANK=0
rank 1:
  PORT=<chosen at start>
  RANK=1
"""
    )


def test_long_hosts_and_lists_fit_100_columns() -> None:
    place = Place(tuple(range(0, 256, 2)), (0, 2), 128, is_bound=True)
    rank = PlannedRank("h" * 60, 1023, 0, 4095, place, {}, COMMAND)
    table = render([rank]).partition("\n\n")[0].splitlines()
    assert max(map(len, table)) <= 100
    listed = "".join(line.split()[-1] for line in table[1:])
    assert listed == ",".join(map(str, range(0, 256, 2)))
