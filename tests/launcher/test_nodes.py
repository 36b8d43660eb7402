"""Several hccl-launch of one job, as on several hosts: they begin, fail and end together."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from launching import COMMAND, agent_of, job
from namespaces import TWO_HOSTS, Hosts
from quiet_clock import HANG_S, Moment, over_after
from thread_ranks import wait_until
from tiers import by_night

from hccl_py.launcher.exit_codes import AGENT_KILLED, LOST_NODE, MISSING_NODE
from hccl_py.schedulers.ports import free_port

Nodes = list[subprocess.Popen[str]]
WITHIN_S = 5.0  # what the launcher promises
SLEEP = "import time; time.sleep(100)\n"
SAYS_AT_ONCE = (
    *(sys.executable, "-c"),
    "from hccl_py.launcher import main, own_lines; own_lines._FIRST_LINE_S = 0.0; main.command()",
)
"""hccl-launch, which does not wait 5 s until it says what it waits for."""
READY = "say('ready')\n"


@contextmanager
def two_nodes(port: int, *arguments: object) -> Iterator[Nodes]:
    """Start both nodes, two ranks each; nothing may be left of them on the way out."""
    common = (*COMMAND, "--nnodes", 2, "--nproc", 2, "--master-port", port)
    with ExitStack() as opened:
        yield [
            opened.enter_context(job(*common, "--node-rank", node, *arguments)) for node in (1, 0)
        ][::-1]


def wait_for_ranks(nodes: Nodes) -> None:
    for node in nodes:
        assert node.stdout is not None
        assert [node.stdout.readline() for _ in range(2)] == ["ready\n"] * 2


def ends(nodes: Nodes) -> tuple[list[int], list[str]]:
    """Wait for all; return their exit codes and what they wrote to stderr."""
    errors = [node.communicate(timeout=HANG_S)[1] for node in nodes]
    return [node.returncode for node in nodes], errors


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_failure_on_one_node_ends_the_other_with_one_report(
    port: int, script: Callable[[str], Path]
) -> None:
    path = script(f"{READY}if rank == 3:\n    raise ValueError('no such image')\n{SLEEP}")
    with two_nodes(port, path) as nodes:
        wait_for_ranks(nodes)
        before = Moment.now()
        codes, errors = ends(nodes)
        assert Moment.now() - before < WITHIN_S
    assert codes == [1, 1]
    assert "".join(errors).count("Traceback") == 1
    title = r"hccl-launch: rank 3 of 4 failed \(node 1 on \S+, local rank 1, pid \d+, exit code 1\)"
    assert re.search(title, errors[0])
    assert errors[0].endswith("\nValueError: no such image\n")
    assert re.fullmatch(rf"{title} \(node 0 at 127.0.0.1:\d+ has the report\)\n", errors[1])


@pytest.mark.nightly("launchers")
def test_all_nodes_restart_or_none(port: int, script: Callable[[str], Path]) -> None:
    path = script(
        f"""
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
os.write(1, f"{{rank}} in attempt {{attempt}}\\n".encode())
if attempt == "0":
    if rank == 3:
        raise SystemExit(3)
    {SLEEP}
"""
    )
    with two_nodes(port, "--max-restarts", 1, path) as nodes:
        outputs = [node.communicate(timeout=HANG_S) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    for number, (out, _) in enumerate(outputs):
        ranks = (2 * number, 2 * number + 1)
        assert sorted(out.splitlines()) == sorted(
            f"{rank} in attempt {attempt}" for rank in ranks for attempt in (0, 1)
        )
    assert "restart 1 of 1: all ranks start again" in outputs[0][1]


@pytest.mark.parametrize(
    ("stopped", "number"), [(1, signal.SIGTERM), *by_night("launchers", (0, signal.SIGINT))]
)
def test_signal_on_one_node_ends_both(
    port: int, script: Callable[[str], Path], stopped: int, number: signal.Signals
) -> None:
    with two_nodes(port, script(READY + SLEEP)) as nodes:
        wait_for_ranks(nodes)
        nodes[stopped].send_signal(number)
        before = Moment.now()
        codes, errors = ends(nodes)
        assert Moment.now() - before < WITHIN_S
    assert codes == [128 + number] * 2
    for error in errors:
        assert f"stopped by {number.name}" in error


@pytest.mark.parametrize(
    ("process", "killed"),
    [
        ("agent", 1),
        *by_night("launchers", ("supervisor", 0), ("supervisor", 1), ("agent", 0)),
    ],
)
def test_killed_launcher_ends_every_process_of_every_node(
    port: int,
    script: Callable[[str], Path],
    killed: int,
    process: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    # A child of a rank in a session of its own, which no signal to the rank's group reaches.
    daemon = "import subprocess\nsubprocess.Popen(['sleep', '100'], start_new_session=True)\n"
    with two_nodes(port, script(daemon + READY + SLEEP)) as nodes:
        wait_for_ranks(nodes)
        victim = nodes[killed]
        os.kill(victim.pid if process == "supervisor" else agent_of(victim), signal.SIGKILL)
        before = Moment.now()
        codes, errors = ends(nodes)
        assert Moment.now() - before < WITHIN_S
    assert 0 not in codes
    if process == "supervisor":
        assert codes[1 - killed] == AGENT_KILLED
        assert "hccl-launch: killed" in errors[1 - killed]
    is_over = over_after(WITHIN_S)
    wait_until(lambda: not list(tmp_path.glob("hccl_launch_*")) or is_over(), "the folders go")
    assert not list(tmp_path.glob("hccl_launch_*"))
    if process == "agent":
        assert codes[1 - killed] == LOST_NODE
        lost = "node 1 (" if killed else "lost node 0 at 127.0.0.1"
        assert lost in errors[1 - killed]


@pytest.mark.nightly("launchers")
def test_launcher_that_is_frozen_is_a_lost_node(port: int, script: Callable[[str], Path]) -> None:
    with two_nodes(port, script(READY + SLEEP)) as nodes:
        wait_for_ranks(nodes)
        frozen = nodes[1].pid, agent_of(nodes[1])  # the supervisor would continue its agent
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        try:
            _, error = nodes[0].communicate(timeout=HANG_S)
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)
        assert nodes[0].returncode == nodes[1].wait(HANG_S) == LOST_NODE
    assert "hccl-launch: error: node 1 (" in error
    assert "SIGTERM" not in error, "ranks that the launcher stopped are no failures"


@TWO_HOSTS
def test_hosts_that_have_ipv6_alone_meet(script: Callable[[str], Path]) -> None:
    path = script("os.write(1, f'{rank} of {os.environ[\"MASTER_ADDR\"]}\\n'.encode())")
    with Hosts(ipv6=True) as hosts, ExitStack() as opened:
        options = ("--nnodes", 2, "--master-addr", f"[{hosts.address(0)}]", path)
        nodes = [
            opened.enter_context(job(*hosts.command(node, *COMMAND), "--node-rank", node, *options))
            for node in range(2)
        ]
        outputs = [node.communicate(timeout=HANG_S) for node in nodes]
        assert [out for out, _ in outputs] == [f"{k} of {hosts.address(0)}\n" for k in range(2)]


def test_nodes_without_numbers_get_them_as_they_come(
    port: int, script: Callable[[str], Path]
) -> None:
    path = script("os.write(1, f'{rank} {os.environ[\"NODE_RANK\"]}\\n'.encode())")
    command = (*COMMAND, "--nnodes", 2, "--nproc", 1, "--rdzv-backend", "c10d")
    command = (*command, "--rdzv-endpoint", f"127.0.0.1:{port}", path)
    with job(*command) as first, job(*command) as second:
        outputs = [node.communicate(timeout=HANG_S) for node in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), outputs
    assert sorted(out for out, _ in outputs) == ["0 0\n", "1 1\n"]


def test_node_that_never_comes_is_named_and_the_job_ends(
    port: int, script: Callable[[str], Path]
) -> None:
    options = ("--nnodes", 2, "--connect-timeout", 2, script(SLEEP))
    nobody = free_port("127.0.0.1")
    with (
        job(*SAYS_AT_ONCE, "--node-rank", 0, "--master-port", port, *options) as first,
        job(*SAYS_AT_ONCE, "--node-rank", 1, "--master-port", nobody, *options) as other,
    ):
        codes, errors = ends([first, other])
    assert codes == [MISSING_NODE] * 2
    (waiting, *_, last), (refused, *_, at_last) = (error.splitlines() for error in errors)
    assert f"waiting for node 1, which should reach 127.0.0.1:{port + 1}, for " in waiting
    assert "error: node 1 did not connect within 2 s (--connect-timeout)" in last
    why = f"no answer from node 0 at 127.0.0.1:{nobody + 1} (Connection refused)"
    assert why in refused
    assert why in at_last


def test_node_with_another_secret_is_not_let_in(
    port: int, script: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = (*COMMAND, "--nnodes", 2, "--master-port", port)
    monkeypatch.setenv("HCCL_SECRET", "3f9c")
    with job(*options, "--node-rank", 0, script(SLEEP)) as first:
        wait_until(lambda: listens(port + 1), "the coordinator listens", HANG_S)
        monkeypatch.setenv("HCCL_SECRET", "77ab")
        with job(*options, "--node-rank", 1, "--connect-timeout", 1, script(SLEEP)) as second:
            codes, errors = ends([second])
        assert first.poll() is None, "it waits for the right node"
        first.send_signal(signal.SIGINT)
        first_codes, first_errors = ends([first])
    assert codes + first_codes == [MISSING_NODE, 128 + signal.SIGINT]
    assert "or its HCCL_SECRET differs" in errors[0]
    assert "it belongs to another job, or its HCCL_SECRET differs" in first_errors[0]
    assert not {"3f9c", "77ab"} & set("".join(errors + first_errors).split())


@pytest.mark.nightly("launchers")
def test_node_that_expects_another_job_is_refused_and_the_job_goes_on(
    port: int, script: Callable[[str], Path], tmp_path: Path
) -> None:
    go_on = tmp_path / "go on"
    path = script(
        f"import time\n{READY}while not os.path.exists({str(go_on)!r}):\n    time.sleep(0.01)\n"
    )
    with two_nodes(port, path) as nodes:
        wait_for_ranks(nodes)
        other = (*COMMAND, "--nnodes", 3, "--master-port", port, "--node-rank", 2, path)
        with job(*other) as wrong:
            codes, (error,) = ends([wrong])
        assert codes == [MISSING_NODE]
        assert "was refused by node 0: it expects 3 nodes, node 0 expects 2" in error
        go_on.touch()
        codes, errors = ends(nodes)
    assert codes == [0, 0], errors


@pytest.mark.nightly("launchers")
def test_node_takes_the_coordinator_over_from_a_process_that_was_about_to_end(
    port: int, script: Callable[[str], Path]
) -> None:
    path = script("os.write(1, f'{rank}\\n'.encode())")
    command = (*COMMAND, "--nnodes", 2, "--rdzv-endpoint", f"127.0.0.1:{port}", path)
    with socket.create_server(("127.0.0.1", port)) as earlier:
        first = job(*command)
        with first as node:
            earlier.accept()[0].close()  # it takes the earlier process for the coordinator
            earlier.close()
            with job(*command) as second:
                outputs = [each.communicate(timeout=HANG_S) for each in (node, second)]
    assert (node.returncode, second.returncode) == (0, 0), outputs
    assert sorted(out for out, _ in outputs) == ["0\n", "1\n"]
