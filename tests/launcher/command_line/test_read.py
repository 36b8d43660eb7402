"""The command line: when nodes are emulated, and one clear line for what cannot be done."""

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import launch
from tiers import by_night

from hccl_py.launcher.command_line.parser import parser
from hccl_py.launcher.command_line.read import parse
from hccl_py.launcher.exit_codes import UsageError
from hccl_py.launcher.main import main

SCRIPT = __file__
SCREEN_LINES = 40


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.parametrize(
    ("arguments", "coordinator"),
    [
        ("", None),
        ("--standalone", None),
        ("--nnodes 2", None),
        ("--nnodes 2 --master-port 29511", None),
        ("--nnodes 2 --standalone --node-rank 1", None),
        ("--node-rank 0", ("127.0.0.1", 29501)),
        ("--nnodes 2 --node_rank 1", ("127.0.0.1", 29501)),
        ("--nnodes 2 --master-addr 10.0.0.1", ("10.0.0.1", 29501)),
        ("--nnodes 2 --master-addr a --master-port 300", ("a", 301)),
        ("--nnodes 2 --master-addr [fd00::1]", ("fd00::1", 29501)),
        ("--nnodes 2 --rdzv-endpoint [::1]:29400", ("::1", 29400)),
    ],
)
def test_nodes_meet_only_where_an_option_says_so(
    arguments: str, coordinator: tuple[str, int] | None
) -> None:
    assert parse([*arguments.split(), SCRIPT], {}).coordinator == coordinator


@pytest.mark.parametrize(
    ("arguments", "elastic"),
    [
        ("--nnodes 2", False),
        ("--nnodes 2:2 --rdzv-backend c10d --rdzv-endpoint a:1", False),
        ("--nnodes 1:2 --rdzv-endpoint a:1", True),
        ("--role trainer", True),
        ("--rdzv-backend etcd", True),
    ],
)
def test_torchs_elastic_runs_what_only_it_can(arguments: str, elastic: bool) -> None:
    assert parse([*arguments.split(), SCRIPT], {}).elastic == elastic


@pytest.mark.parametrize("option", ["--numa-binding node", "--virtual-local-rank"])
def test_option_of_torchruns_start_of_ranks_is_refused(option: str) -> None:
    with pytest.raises(UsageError, match=f"^{option.split()[0]}: "):
        parse([*option.split(), SCRIPT], {})


def test_check_needs_no_program() -> None:
    assert parse(["--check", "--hosts", "localhost:2"], {}).checks


def test_option_of_gaudi_spawn_that_has_no_effect_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parse(["--use_mpi", "--world_size", "2", SCRIPT], {})
    told = capsys.readouterr().err
    assert told == "hccl-launch: --use_mpi: hccl-launch starts the ranks itself\n"


def test_torchruns_variables_count_as_options() -> None:
    request = parse([SCRIPT], {"PET_NODE_RANK": "1", "PET_NNODES": "2"})
    assert (request.node_rank, request.num_nodes) == (1, 2)


@pytest.mark.parametrize(
    ("variable", "arguments", "expected"),
    [
        ("MASTER_ADDR=node-a", "--nnodes 2", "MASTER_ADDR=node-a is set, but nothing says which"),
        ("NODE_RANK=", "--nnodes 2", "NODE_RANK= is set, but nothing says which of 2 nodes"),
        ("NODE_RANK=5", "--nnodes 2 --master-addr a", "Lightning says that this is node 5 of 2"),
        ("PET_CHECK=yes", "", "PET_CHECK: expected 0 or 1, got 'yes'"),
    ],
)
def test_variable_that_makes_no_sense_is_refused(
    variable: str, arguments: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, _, value = variable.partition("=")
    os.environ[name] = value
    assert main([*arguments.split(), SCRIPT]) == 2
    assert capsys.readouterr().err.startswith(f"hccl-launch: error: {expected}")


def test_help_fits_two_screens_and_begins_with_examples(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["--help"], {})
    lines = capsys.readouterr().out.splitlines()
    assert ended.value.code == 0
    assert len(lines) <= 2 * SCREEN_LINES
    assert lines[2].strip().startswith("hccl-launch --nproc 8")
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--nnodes abc SCRIPT", "--nnodes: expected a number or MIN:MAX, got 'abc'"),
        ("--nnodes 2:3 SCRIPT", "--nnodes 2:3 needs --rdzv-endpoint HOST:PORT"),
        ("--nnodes 3:2 SCRIPT", "--nnodes: expected 1 to 65536 (MIN <= MAX), got '3:2'"),
        ("--nnodes 2 --node-rank 5 SCRIPT", "--node-rank: expected 0 to 1 of --nnodes 2, got 5"),
        ("--nnodes 2 --master-addr a SCRIPT", "--node-rank: expected 0 to 1, for this is one of"),
        (
            "--master-addr [::1]:5 SCRIPT",
            "--master-addr: expected a name or an address, got '[::1]:5'",
        ),
        ("--rdzv-backend c10d SCRIPT", "--rdzv-backend c10d needs --rdzv-endpoint HOST:PORT"),
        ("--rdzv-endpoint :x SCRIPT", "--rdzv-endpoint: expected HOST:PORT, got ':x'"),
        (
            "--nnodes 2 --node-rank 1 --master-addr no.such.host.invalid SCRIPT",
            "no.such.host.invalid does not resolve to an address",
        ),
        (
            "--nnodes 2 --node-rank 1 --master-addr a..b SCRIPT",
            "a..b does not resolve to an address",
        ),
        ("--redirects 3 SCRIPT", "--redirects and --tee need --log-dir"),
        (
            "--nproc-per-node gpu SCRIPT",
            "--nproc-per-node/--nproc: torch finds no gpu on this machine",
        ),
        ("--nproc 99999999 SCRIPT", "--nproc-per-node: expected at most the "),
        ("--hosts localhost:99999999999 SCRIPT", "--hosts: expected 1 to 32768 slots, got"),
        ("-x A=1 SCRIPT", "--export needs --hosts or --hostfile"),
        (
            "--nnodes 2 --node-rank 0 --master-port 65535 SCRIPT",
            "--master-port: expected 1 to 65534 for several nodes",
        ),
        ("--nnodes 2 --node-rank 1 --master-addr .. SCRIPT", ".. does not resolve to an address"),
        ("--nprocs 2 SCRIPT", "unrecognized: --nprocs; is it --nproc?"),
        ("", "the following arguments are required: script (see --help)"),
        ("/tmp", "script not found: /tmp"),
        ("missing.py", "script not found: missing.py"),
        ("-m missing_module", "module not found: missing_module"),
        ("-m --no-python json", "-m and --no-python exclude each other"),
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


# Of these, a text that makes sense nowhere else is a value: names, paths, and options that are kept
# for torchrun's command lines.
_TAKE_ANY_TEXT = {
    *("rdzv_id", "rdzv_backend", "local_addr", "signals_to_handle", "role", "event_log_handler"),
    *("rdzv_conf", "log_dir", "master_addr", "ssh_user", "remote_python", "remote_dir", "hosts"),
    *("rdzv_endpoint", "hostfile", "emulate", "export", "env_file"),
}
_WITH_VALUE = [
    (action.option_strings[0], action.dest)
    for action in parser()._actions
    if action.option_strings and action.nargs is None
]
_HUGE = "9" * 30
_WRONG = ("", "-1", _HUGE, "text", "inf", "-inf", "nan", "1_000", "0x10", "1e400")


_NONSENSE = [
    (option, dest, text)
    for option, dest in _WITH_VALUE
    for text in _WRONG
    if not (dest in _TAKE_ANY_TEXT and text)
    and (dest, text) not in {("local_ranks_filter", ""), ("local_ranks_filter", _HUGE)}
]


@pytest.mark.parametrize(("option", "dest", "text"), _NONSENSE)
def test_value_that_makes_no_sense_is_one_line(
    option: str, dest: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    joined = f"{option}={text}" if option.startswith("--") else f"{option}{text}"
    hosts = (
        ["--hosts", "127.0.0.1:1"] if dest.startswith(("ssh", "remote", "export", "env")) else []
    )
    assert main([*hosts, *([joined] if text else [option, ""]), SCRIPT]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    (line,) = told.err.splitlines()
    assert line.startswith("hccl-launch: error: ")
    assert "expected" in line or "choose from" in line or "--emulate" in line


@pytest.mark.nightly("launchers")
@pytest.mark.parametrize("option", ["--rdzv-backend", "--event-log-handler"])
def test_name_that_torch_does_not_know_is_one_line(option: str) -> None:
    done = launch(option, "unknown", SCRIPT)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "unknown" in line


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--node-rank", "0"),
        *by_night("launchers", (("--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=1"),)),
    ],
)
def test_port_0_of_the_endpoint_is_any_free_one(options: tuple[str, ...]) -> None:
    done = launch("--rdzv-endpoint", "localhost:0", *options, "--no-python", "true")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("endpoint", "nodes", "expected"),
    [
        ("localhost:0", "2", "--rdzv-endpoint: expected a port that 2 nodes know"),
        ("192.0.2.77:0", "1", "--rdzv-endpoint: expected an address of this machine"),
    ],
)
def test_port_0_that_others_cannot_know_is_refused(
    endpoint: str, nodes: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--rdzv-endpoint", endpoint, "--nnodes", nodes, SCRIPT]) == 2
    assert expected in capsys.readouterr().err
