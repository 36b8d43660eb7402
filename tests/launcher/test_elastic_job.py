"""Jobs that torch.distributed.run has: their ends, their signals and what they keep."""

import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from launching import COMMAND, job, launch, run
from namespaces import Hosts
from quiet_clock import HANG_S

from hccl_py.launcher.exit_codes import LOST_NODE, MISSING_NODE
from hccl_py.schedulers.ports import free_port

ELASTIC = ("--nnodes", "1:2", "--standalone", "--rdzv-conf", "last_call_timeout=1", "--nproc", 2)
FAILS = """
import os, sys, time
names = ("RANK", "WORLD_SIZE", "NODE_RANK", "TORCHELASTIC_RESTART_COUNT")
os.write(1, (" ".join(os.environ[name] for name in names) + "\\n").encode())
if os.environ["RANK"] == "1":
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise ValueError("no image")
    sys.exit(5)
time.sleep(1000)
"""
WAITS = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"warned\\n"))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(os.write(1, b"saved\\n") - 6))
os.write(1, b"ready\\n")
while True: time.sleep(1)
"""


def write(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "script.py"
    path.write_text(body)
    return path


@pytest.mark.nightly("launchers")
def test_signal_in_the_midst_of_an_import_ends_the_job(tmp_path: Path) -> None:
    program = """
import os, signal, sys, time
from hccl_py.launcher.main import command
class Finder:
    def find_spec(name, *_):
        if name == "torch.distributed.run":
            try:
                os.kill(os.getppid(), signal.SIGTERM)
                time.sleep(1000)
            except BaseException:  # as the import of C++ modules does
                pass
sys.meta_path.insert(0, Finder)
command()
"""
    script = write(tmp_path, "pass")
    done = run(sys.executable, "-c", program, "--standalone", "--role", "x", script)
    assert done.returncode == 143, done.stderr
    assert done.stderr == "hccl-launch: stopped by SIGTERM\n"


@pytest.mark.nightly("launchers")
def test_program_that_the_kernel_does_not_run_is_one_line(tmp_path: Path) -> None:
    program = write(tmp_path, "no program")
    program.chmod(0o755)
    done = launch("--standalone", "--role", "x", "--no-python", program)
    assert done.returncode == 126
    assert done.stderr == f"hccl-launch: error: cannot start a rank: {program}: Exec format error\n"


@pytest.mark.nightly("launchers")
def test_failure_starts_all_again_and_the_last_one_gives_the_exit_code(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    options = (*ELASTIC, "--max-restarts", 1, "--log-dir", logs, "--rdzv-id", "job")
    done = launch(*options, write(tmp_path, FAILS))
    assert done.returncode == 5, done.stderr
    lines = sorted(line.partition(":")[2] for line in done.stdout.splitlines())
    assert lines == ["0 2 0 0", "0 2 0 1", "1 2 0 0", "1 2 0 1"]
    assert done.stderr.count("ValueError: no image") == 1
    assert done.stderr.count("will restart") == 1
    assert "hccl-launch: rank 1 exited with code 5" in done.stderr.splitlines()[-1]
    (kept,) = logs.glob("job_*/attempt_0/1/stderr.log")
    assert "ValueError: no image" in kept.read_text()


def test_signals_reach_the_ranks_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    script = write(tmp_path, WAITS)
    with job(*COMMAND, *ELASTIC, script) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        for number, text in ((signal.SIGUSR1, "warned"), (signal.SIGTERM, "saved")):
            process.send_signal(number)
            assert [process.stdout.readline() for _ in range(2)] == [f"{text}\n"] * 2
        _, err = process.communicate(timeout=HANG_S)
    assert (process.returncode, err) == (
        128 + signal.SIGTERM,
        "hccl-launch: stopped by SIGTERM; all ranks were ended\n",
    )
    assert list(tmp_path.iterdir()) == [script]


@pytest.mark.parametrize(
    "option", ["--bind core", "--prefix always", "--check", "--min-ranks 1", "--dry-run"]
)
def test_option_that_torch_does_not_have_is_refused(tmp_path: Path, option: str) -> None:
    done = launch(*ELASTIC, *option.split(), write(tmp_path, WAITS))
    assert done.returncode == 2
    assert f"hccl-launch: error: {option.split()[0]}: " in done.stderr


@pytest.mark.nightly("launchers")
def test_killed_launcher_leaves_no_process(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    # A child in a session of its own, which no signal to the rank's group reaches.
    path.write_text(
        "import subprocess, time\n"
        "subprocess.Popen(['sleep', '100'], start_new_session=True)\n"
        "print('ready', flush=True)\ntime.sleep(100)\n"
    )
    endpoint = f"127.0.0.1:{free_port('127.0.0.1')}"
    command = (*COMMAND, "--nnodes", "1:2", "--rdzv-endpoint", endpoint)
    with job(*command, "--rdzv-conf", "last_call_timeout=1", path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()  # the orphans are looked for on the way out


EXAMPLE = Path(__file__).parents[2] / "examples" / "01_train_digits.py"
NODES = (*COMMAND, "--nnodes", "2:3", "--rdzv-conf", "last_call_timeout=1")
LIMIT_S = 60.0


def read_until(process: subprocess.Popen[str], pattern: str) -> list[str]:
    """Read what a job prints up to a line; all output is one stream here, and ends with the job."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if re.search(pattern, line):
            return lines
    raise AssertionError("".join(lines))


def start(stack: ExitStack, *command: object) -> subprocess.Popen[str]:
    """Start a node whose output and errors are one stream."""
    return stack.enter_context(job("sh", "-c", 'exec "$@" 2>&1', "sh", *command))


@pytest.mark.nightly("launchers")
def test_nodes_that_do_not_come_are_one_line() -> None:
    endpoint = f"127.0.0.1:{free_port('127.0.0.1')}"
    with ExitStack() as stack:
        node = start(
            *(stack, *NODES, "--rdzv-endpoint", endpoint, "--connect-timeout", 1),
            *("--no-python", "true"),
        )
        said, _ = node.communicate(timeout=LIMIT_S)
    assert node.returncode == MISSING_NODE
    assert said.count("\n") == 1
    assert "(--connect-timeout)" in said
    assert endpoint in said


@pytest.mark.nightly("hosts")
@pytest.mark.timeout(300)
def test_digits_go_on_when_a_node_joins_and_another_is_killed(tmp_path: Path) -> None:
    with Hosts(num_hosts=3) as hosts, ExitStack() as stack:
        endpoint = f"{hosts.address(0)}:29400"
        options = (
            *NODES,
            "--rdzv-endpoint",
            endpoint,
            "--max-restarts",
            3,
            "--rdzv-id",
            "digits",
        )

        def node(host: int) -> subprocess.Popen[str]:
            # 120 is a multiple of 2 and 3: the steps of an epoch do not change with the nodes.
            checkpoint = tmp_path / str(host) / "digits.pt"
            script = (EXAMPLE, "--epochs", 200, "--batch-size", 120, "--checkpoint", checkpoint)
            return start(stack, *hosts.command(host, *map(str, (*options, *script))))

        first, second = node(0), node(1)
        read_until(first, "epoch +2/200")
        third = node(2)
        read_until(first, "will restart")
        read_until(first, "resumed")
        read_until(first, "epoch")
        second.kill()
        second.wait()
        read_until(first, "will restart")
        read_until(first, "resumed")
        last = read_until(first, "2 ranks on 2 nodes reached")[-1]
        assert first.wait(LIMIT_S) == third.wait(LIMIT_S) == 0
    accuracy = re.search(r"reached ([0-9.]+)%", last)
    assert accuracy is not None
    assert float(accuracy[1]) > 97


@pytest.mark.nightly("hosts")
def test_all_end_with_the_node_of_the_endpoint(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text("import time\nprint('ready')\ntime.sleep(100)\n")
    with Hosts() as hosts, ExitStack() as stack:
        options = (*NODES, "--rdzv-endpoint", f"{hosts.address(0)}:29400", path)
        first, second = (
            start(stack, *hosts.command(host, *map(str, options))) for host in range(2)
        )
        read_until(second, "ready")
        first.send_signal(signal.SIGKILL)
        before_s = time.monotonic()
        said = read_until(second, "hccl-launch: error")
        assert second.wait(LIMIT_S) == LOST_NODE
        assert time.monotonic() - before_s < 5.0
    assert said == [
        f"hccl-launch: error: lost {hosts.address(0)}:29400: the node of --rdzv-endpoint ended or "
        "cannot be reached, and an elastic job ends with it\n"
    ]
