"""Jobs on several hosts over ssh: they run, fail, are stopped and killed, and leave nothing."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ssh_hosts
from launching import COMMAND
from ssh_hosts import SshHosts

from hccl_py.launcher.exit_codes import CHECK_FAILED, LOST_NODE, MISSING_NODE

LIMIT_S = 60.0
WITHIN_S = 5.0

pytestmark = [
    pytest.mark.nightly("launchers"),
    pytest.mark.skipif(bool(ssh_hosts.why_not()), reason=str(ssh_hosts.why_not())),
]
SLEEPS = """
import os, subprocess, time
subprocess.Popen(["sleep", "1000"], start_new_session=True)
print("ready", flush=True)
time.sleep(1000)
"""
ADDS = """
import os
import numpy as np
import torch, torch.distributed as dist
dist.init_process_group("hccl")
data = torch.ones(1000) * (dist.get_rank() + 1)
dist.all_reduce(data)
print(f"{int(data[0])} {os.environ['NODE_RANK']} {len(os.environ.get('COLOR', ''))}")
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[SshHosts]:
    with SshHosts(num_hosts=3) as made:
        yield made


SECRET = "0123456789abcdef"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HCCL_SECRET", SECRET)


def command(hosts: SshHosts, *arguments: object) -> list[str]:
    """Return a command line; ssh takes the first of equal options, so those given stand first."""
    options = [word for option in hosts.ssh.options for word in ("--ssh-option", option)]
    return hosts.command(
        0, *COMMAND, *map(str, arguments[:-1]), *options, *map(str, arguments[-1:])
    )


def run(hosts: SshHosts, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(hosts, *arguments), capture_output=True, text=True, timeout=LIMIT_S
    )


def start(hosts: SshHosts, *arguments: object) -> subprocess.Popen[str]:
    """Start a job of ranks that say when they are ready, and wait for two of them."""
    process = subprocess.Popen(
        command(hosts, *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    return process


def left(hosts: SshHosts, script: Path) -> list[str]:
    """Return the processes of a job, and what its ranks started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_text().split("\0")
            environment = (folder / "environ").read_text(errors="replace")
        except OSError:
            continue
        if str(script) in words or ("sleep" in words and f"JOB={script}" in environment):
            found.append(" ".join(words))
    return found


def nothing_is_left(hosts: SshHosts, script: Path) -> bool:
    deadline_s = time.monotonic() + WITHIN_S
    while left(hosts, script) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return not left(hosts, script)


def write(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "script.py"
    path.write_text(body)
    return path


@pytest.mark.parametrize("names", ["node-b:2,node-c:1", "node-a:1,node-c:2"])
def test_ranks_of_several_hosts_add_up(hosts: SshHosts, tmp_path: Path, names: str) -> None:
    done = run(hosts, "--hosts", names, "-x", f"COLOR={100_000 * 'b'}", write(tmp_path, ADDS))
    assert done.returncode == 0, done.stderr
    nodes = [int(word.partition(":")[2]) for word in names.split(",")]
    expected = [f"6 {node} 100000" for node, ranks in enumerate(nodes) for _ in range(ranks)]
    assert sorted(done.stdout.splitlines()) == expected


PRINTS = """
import os
for number in range(20_000): print(os.environ['RANK'], number, 'x' * 60)
"""


@pytest.mark.parametrize("reader", ["sleep 12; cat", "cat"])
@pytest.mark.parametrize("link", ["", "rate 3mbit burst 20k latency 400ms"])
def test_every_line_arrives_from_other_hosts(
    hosts: SshHosts, tmp_path: Path, reader: str, link: str
) -> None:
    if link:
        for name in hosts.names:
            device = f"ip -n {name} -o link show type veth"
            words = (
                f"ip netns exec {name} tc qdisc replace dev $({device} | cut -d: -f2 | cut -d@ -f1)"
            )
            subprocess.run(f"{words} root tbf {link}", shell=True, check=True)
    launched = shlex.join(command(hosts, "--hosts", "node-b:1,node-c:1", write(tmp_path, PRINTS)))
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{launched} | ({reader})"],
        capture_output=True,
        text=True,
        timeout=2 * LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    found = [tuple(map(int, line.split()[:2])) for line in done.stdout.splitlines()]
    for rank in range(2):
        assert [number for one, number in found if one == rank] == list(range(20_000))


READS = """
import os, sys
for line in sys.stdin: print(os.environ['RANK'], 'read', line.strip())
print(os.environ['RANK'], 'end')
"""


@pytest.mark.parametrize("names", ["node-b:1,node-c:1", "node-a:1,node-c:1"])
@pytest.mark.parametrize("source", ["cat", "file"])
def test_rank_0_reads_standard_input_on_any_host(
    hosts: SshHosts, tmp_path: Path, names: str, source: str
) -> None:
    data, count = tmp_path / "data", 50_000
    data.write_text("".join(f"{number}\n" for number in range(count)))
    launched = shlex.join(command(hosts, "--hosts", names, write(tmp_path, READS)))
    piped = f"cat {data} | {launched}" if source == "cat" else f"{launched} < {data}"
    done = subprocess.run(
        piped, shell=True, capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    expected = [f"0 read {number}" for number in range(count)]
    assert [line for line in done.stdout.splitlines() if "read" in line] == expected
    assert {"0 end", "1 end"} <= set(done.stdout.splitlines())


ASKS = """
import os
if os.environ["RANK"] == "0":
    print("hello", input("your name? "))
    import pdb; pdb.set_trace()
"""


@pytest.mark.parametrize("names", ["node-b:2,node-c:1", "node-a:1,node-c:1"])
def test_prompts_of_rank_0_are_seen_before_they_are_answered(
    hosts: SshHosts, tmp_path: Path, names: str
) -> None:
    words = command(hosts, "--hosts", names, write(tmp_path, ASKS))
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for question, answer in ((b"your name? ", b"Ada\n"), (b"(Pdb) ", b"c\n")):
            printed = b""
            while not printed.endswith(question):
                assert (chunk := os.read(process.stdout.fileno(), 1024)), printed
                printed += chunk
            process.stdin.write(answer)
            process.stdin.flush()
        process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert b"hello Ada\n" in printed


def test_warnings_and_stops_reach_the_ranks_of_all_hosts(hosts: SshHosts, tmp_path: Path) -> None:
    body = """
import os, signal, sys, time
def handle(number, frame):
    print("got", number, flush=True)
    if number == signal.SIGTERM:
        time.sleep(4)  # longer than the launcher once gave them
        print("saved", flush=True)
        sys.exit()
for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(number, handle)
print("ready", flush=True)
time.sleep(1000)
"""
    script = write(tmp_path, body)
    with start(hosts, "--hosts", "node-b:1,node-c:1", "-x", f"JOB={script}", script) as process:
        assert process.stdout is not None
        for number in (signal.SIGUSR1, signal.SIGTERM):
            os.kill(launcher_of(process), number)
            assert [process.stdout.readline() for _ in range(2)] == [f"got {number}\n"] * 2
        out, error = process.communicate(timeout=LIMIT_S)
    assert out == "saved\nsaved\n", error
    assert nothing_is_left(hosts, script)


def test_failure_names_the_host_and_ends_all(hosts: SshHosts, tmp_path: Path) -> None:
    body = f"import os\nif os.environ['RANK'] == '2':\n    raise ValueError('no image')\n{SLEEPS}"
    script = write(tmp_path, body)
    done = run(hosts, "--hosts", "node-b:2,node-c:1", "-x", f"JOB={script}", script)
    assert done.returncode == 1
    assert "rank 2 of 3 failed (node 1 on " in done.stderr
    assert done.stderr.count("Traceback") == 1
    assert done.stderr.endswith("ValueError: no image\n")
    assert nothing_is_left(hosts, script)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_stopped_launcher_leaves_nothing_on_any_host(
    hosts: SshHosts, tmp_path: Path, number: signal.Signals
) -> None:
    script = write(tmp_path, SLEEPS)
    with start(hosts, "--hosts", "node-b:1,node-c:1", "-x", f"JOB={script}", script) as process:
        shown = [words for index in range(3) for words in hosts.processes(index).values()]
        assert shown and not [words for words in shown if SECRET in words]
        before_s = time.monotonic()
        os.kill(launcher_of(process), number)
        assert nothing_is_left(hosts, script)
        assert time.monotonic() - before_s < WITHIN_S
        process.kill()


def launcher_of(process: subprocess.Popen[str]) -> int:
    """Return the process that runs hccl-launch: `ip netns exec` may have replaced itself by it."""
    pid = process.pid
    if "hccl_py" in Path(f"/proc/{pid}/cmdline").read_text():
        return pid
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


@pytest.mark.parametrize("end", ["ssh", "sshd", "network"])
def test_connection_that_ends_is_a_lost_node(hosts: SshHosts, tmp_path: Path, end: str) -> None:
    script, before = write(tmp_path, SLEEPS), hosts.processes(2)
    with start(hosts, "--hosts", "node-b:1,node-c:1", "-x", f"JOB={script}", script) as process:
        if end == "network":
            hosts.cut(0)
        else:
            running = hosts.processes(0 if end == "ssh" else 2).items()
            ways = {pid for pid, words in running if words.split()[0].rstrip(":") == end}
            for pid in ways - set(before):
                if end == "sshd" or "node-c" in dict(running)[pid]:
                    os.kill(pid, signal.SIGKILL)
        try:
            _, error = process.communicate(timeout=LIMIT_S)
        finally:
            hosts.restore(0)
    # A rank whose agent ends it may be told of before.
    assert process.returncode == LOST_NODE or end == "sshd", error
    assert re.search(r"node [01] \(", error)
    assert "was lost" in error
    assert nothing_is_left(hosts, script)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--remote-dir", "/no/such"), "cannot enter the working directory /no/such"),
        (("--ssh-port", 2), "Connection refused; start sshd there"),
        (("--ssh-option", "PubkeyAuthentication=no"), "install a key there"),
        (("--ssh-option", "UserKnownHostsFile=/dev/null"), "check its key"),
        (("--hosts", "10.77.0.9:1"), "No route to host; check that the host is up"),
        (("--hosts", "10.99.0.9:1"), "Network is unreachable; check that the host is up"),
    ],
)
def test_host_that_cannot_be_used_is_one_line(
    hosts: SshHosts, tmp_path: Path, options: tuple[object, ...], expected: str
) -> None:
    there = () if "--hosts" in options else ("--hosts", "node-b:1")
    done = run(hosts, *there, *options, write(tmp_path, SLEEPS))
    assert done.returncode == MISSING_NODE
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1


def test_agent_that_cannot_begin_ends_the_job_at_once(hosts: SshHosts, tmp_path: Path) -> None:
    script = write(tmp_path, SLEEPS)
    done = run(hosts, "--hosts", "node-b:1,node-c:1", "-x", "TMPDIR=/proc", script)
    assert done.returncode == MISSING_NODE
    assert "cannot make a folder in /proc" in done.stderr
    assert re.search("error: node-[bc]: its agent ended with exit code 2", done.stderr)


def test_name_that_does_not_resolve_is_refused_at_once(hosts: SshHosts, tmp_path: Path) -> None:
    done = run(hosts, "--hosts", "node-b:1,node-x:1", write(tmp_path, SLEEPS))
    assert done.returncode == 2
    assert "no address for node-x" in done.stderr


def test_names_that_only_the_configuration_of_ssh_knows_are_hosts(
    hosts: SshHosts, tmp_path: Path
) -> None:
    """An alias, a file that is included, a `Match`, and a host behind another one."""
    folder = Path("/etc/netns", hosts.names[0], "ssh")
    folder.mkdir()
    words = [word for option in hosts.ssh.options for word in ("-o", option)]
    (folder / "more").write_text("Host last\n  HostName node-c\n")
    (folder / "ssh_config").write_text(
        f"Include {folder}/more\nHost first\n  HostName {hosts.address(1)}\n"
        f"Match originalhost second\n  HostName {hosts.address(2)}\n  ProxyCommand "
        f"ssh {' '.join(words)} -W %h:%p node-b\n"
    )
    try:
        script = write(tmp_path, ADDS)
        for names in ("first:2,last:1", "first:2,second:1"):
            done = run(hosts, "--hosts", names, script)
            assert done.returncode == 0, done.stderr
            assert sorted(done.stdout.splitlines()) == ["6 0 0", "6 0 0", "6 1 0"]
    finally:
        shutil.rmtree(folder)


def test_check_finds_what_would_fail_before_a_rank_runs(hosts: SshHosts, tmp_path: Path) -> None:
    script = write(tmp_path, "print('ran')")
    done = run(hosts, "--check", "--hosts", "node-b:2,node-c:1", script)
    assert done.returncode == 0, done.stderr
    assert "all good" in done.stderr
    assert "ran" not in done.stdout
    few = [*hosts.command(0), "prlimit", "--nofile=40", *command(hosts)[len(hosts.command(0)) :]]
    done = subprocess.run(
        [*few, "--hosts", "node-a:2,node-c:40", str(script)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == CHECK_FAILED, done.stderr
    assert "error" in done.stderr
    assert "ran" not in done.stdout
