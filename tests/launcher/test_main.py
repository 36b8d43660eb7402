"""hccl-launch from the outside: what ranks see, and how a job ends."""

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from launching import COMMAND, agent_of, job, launch, ranks_of, run
from quiet_clock import HANG_S
from tiers import by_night

from hccl_py.schedulers.ports import free_port

PRINT_ENVIRONMENT = """
import json, os, sys
say(json.dumps({"argv": sys.argv[1:], "path": sys.path[0], "name": __name__, **os.environ}))
"""
Script = Callable[[str], Path]
SLEEP = "import time; time.sleep(100)"
TWO_BY_TWO = ("--nnodes", 2, "--nproc-per-node", 2)


def environments(output: str) -> list[dict[str, Any]]:
    """Return what each rank printed of its environment, by rank."""
    return sorted((json.loads(line) for line in output.splitlines()), key=lambda env: env["RANK"])


def test_two_emulated_nodes_every_rank_knows_its_place_and_the_secret(script: Script) -> None:
    path = script(PRINT_ENVIRONMENT)
    done = launch(*TWO_BY_TWO, path, "--epochs", 3)
    assert done.returncode == 0, done.stderr
    ranks = environments(done.stdout)
    assert [env["RANK"] for env in ranks] == ["0", "1", "2", "3"]
    assert [env["LOCAL_RANK"] for env in ranks] == ["0", "1", "0", "1"]
    assert [env["NODE_RANK"] for env in ranks] == ["0", "0", "1", "1"]
    assert {(env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"]) for env in ranks} == {("4", "2")}
    assert len({(env["MASTER_ADDR"], env["MASTER_PORT"]) for env in ranks}) == 1
    nodes = [env["HCCL_NODE_ID"] for env in ranks]
    assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
    assert int(ranks[0]["OMP_NUM_THREADS"]) >= 1
    (secret,) = {env["HCCL_SECRET"] for env in ranks}
    assert re.fullmatch("[0-9a-f]{64}", secret)
    for env in ranks:
        assert env["argv"] == ["--epochs", "3"]
        assert (env["path"], env["name"]) == (str(path.parent), "__main__")
    assert done.stderr == (
        "hccl-launch: emulating 2 nodes of 2 ranks on this machine (no --node-rank given); "
        "ranks of different nodes talk TCP\n"
    )


def test_host_that_is_this_machine_gets_exported_variables(script: Script) -> None:
    done = launch("--hosts", "127.0.0.1:2", "-x", "COLOR=red", script("say(os.environ['COLOR'])"))
    assert done.stdout.split() == ["red", "red"], done.stderr


def test_one_node_emulates_nothing_and_says_nothing(script: Script) -> None:
    done = launch("--nproc_per_node", 2, script(PRINT_ENVIRONMENT))
    ranks = environments(done.stdout)
    assert [env["RANK"] for env in ranks] == ["0", "1"]
    assert all("HCCL_NODE_ID" not in env and env["NODE_RANK"] == "0" for env in ranks)
    assert done.stderr == ""


def test_real_nodes_meet_and_are_not_emulated(script: Script, port: int) -> None:
    path = script(PRINT_ENVIRONMENT)
    options = (*COMMAND, "--nnodes", 2, "--master-port", port)
    with job(*options, "--node-rank", 0, path) as a, job(*options, "--node-rank", 1, path) as b:
        outputs = [a.communicate(timeout=HANG_S)]
        assert a.returncode == 0, outputs  # else the other node would wait for it
        outputs.append(b.communicate(timeout=HANG_S))
    assert b.returncode == 0, outputs
    assert [err for _, err in outputs] == ["", ""]
    ranks = environments("".join(out for out, _ in outputs))
    assert [(env["RANK"], env["NODE_RANK"]) for env in ranks] == [("0", "0"), ("1", "1")]
    assert all("HCCL_NODE_ID" not in env and "HCCL_SECRET" not in env for env in ranks)
    assert {env["MASTER_PORT"] for env in ranks} == {str(port)}


def test_failing_rank_ends_the_job_and_its_error_is_printed_once(script: Script) -> None:
    path = script(f"if rank == 3:\n    raise ValueError('no such image')\n{SLEEP}")
    done = launch(*TWO_BY_TWO, path)
    assert done.returncode == 1
    report = done.stderr.splitlines()[-6:]
    assert report[0] == "hccl-launch: after rank 3 failed: all other ranks were stopped"
    assert re.match(r"hccl-launch: rank 3 of 4 failed \(node 1, local rank 1, pid \d+", report[1])
    assert report[2:] == [
        "Traceback (most recent call last):",
        f'  File "{path}", line 5, in <module>',
        "    raise ValueError('no such image')",
        "ValueError: no such image",
    ]
    assert done.stderr.count("no such image") == 2, "once in the user's line, once in the error"


def test_text_that_is_no_utf8_and_has_no_end_is_reported(script: Script) -> None:
    done = launch(script("raise FileNotFoundError('\\udcff' + 'x' * 9_000_000)"))
    assert done.returncode == 1
    assert "hccl-launch: rank 0 of 1 failed" in done.stderr
    assert "FileNotFoundError: \\udcffxxx" in done.stderr
    assert len(done.stderr) < 1 << 20


def test_module_runs_and_the_exit_code_of_the_failing_rank_is_the_jobs(script: Script) -> None:
    done = launch("-m", "json.tool", "--help")
    assert (done.returncode, done.stdout[:26]) == (0, "usage: python -m json.tool")
    done = launch(*TWO_BY_TWO, script(f"if rank == 1:\n    raise SystemExit(3)\n{SLEEP}"))
    assert done.returncode == 3
    assert "rank 1 of 4 exited with code 3" in done.stderr


def test_exit_code_is_known_where_the_shell_ignores_sigchld(script: Script) -> None:
    program = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    done = run(sys.executable, "-c", program, *COMMAND, "--nproc", 2, script("os._exit(3 * rank)"))
    assert done.returncode == 3, done.stderr


@pytest.mark.parametrize("ending", ["raise ValueError", *by_night("launchers", "os._exit(3)")])
def test_failed_job_leaves_no_folder_unless_logs_were_asked_for(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    path = script(f"if rank == 1:\n    {ending}\n{SLEEP}")
    monkeypatch.setenv("TMPDIR", str(temporary))
    logs = tmp_path / "logs"
    for options, kept in ((), False), (("--redirects", 3, "--log-dir", logs), True):
        assert launch("--nproc-per-node", 2, *options, path).returncode != 0
        assert list(temporary.iterdir()) == []
        assert (logs / "attempt_0" / "rank_1.log").exists() == kept


ENDS = {
    "sys.exit(3)": 3,
    "os._exit(4)": 4,
    "os.kill(os.getpid(), signal.SIGTERM)": 143,
    "os.kill(os.getpid(), signal.SIGINT)": 130,
    "os.kill(os.getpid(), signal.SIGKILL)": 137,
    "os.abort()": 134,
    "raise ValueError('mine')": 1,
    "os.execv('/no/such', ['x'])": 1,
}


@pytest.mark.parametrize(
    ("end", "victim"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "raise"),
        *by_night("launchers", *product(ENDS, ("raise", "os._exit(9)", "os.abort()"))),
    ],
)
def test_rank_that_ends_is_blamed_however_it_and_its_victims_end(
    script: Script, end: str, victim: str
) -> None:
    # The interpreter of a rank may take longer to end than the others need to lose it.
    body = f"""
import atexit, signal, sys, time
import numpy as np
from hccl_py import Communicator
comm = Communicator()
if rank == 1:
    atexit.register(time.sleep, 1)
    {end}
try:
    while True:
        comm.all_reduce(np.ones(4))
except Exception:
    {victim}
"""
    done = launch("--nproc", 3, script(body))
    assert done.returncode == ENDS[end], done.stderr
    assert "\nhccl-launch: rank 1 of 3 " in done.stderr


def test_restart_runs_all_ranks_again_and_shows_the_first_failure(script: Script) -> None:
    body = f"""
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if rank == 1:
        raise RuntimeError("first attempt")
    {SLEEP}
say(f"second attempt {{rank}}")
"""
    done = launch("--nproc-per-node", 2, "--max-restarts", 1, script(body))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["second attempt 0", "second attempt 1"]
    assert "hccl-launch: rank 1 of 2 failed (node 0" in done.stderr
    assert done.stderr.count("Traceback") == 1
    assert done.stderr.endswith(
        "\nRuntimeError: first attempt\nhccl-launch: restart 1 of 1: all ranks start again\n"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_stopped_launcher_leaves_no_process(script: Script, number: signal.Signals) -> None:
    path = script(f"say(rank)\n{SLEEP}")
    with job(*COMMAND, *TWO_BY_TWO, path) as process:  # the orphans are looked for on the way out
        assert process.stdout is not None
        assert sorted(process.stdout.readline() for _ in range(4)) == ["0\n", "1\n", "2\n", "3\n"]
        process.send_signal(number)
        _, err = process.communicate(timeout=HANG_S)
    if number == signal.SIGKILL:
        assert process.returncode == -number
    else:
        assert process.returncode == 128 + number
        assert err.endswith(f"hccl-launch: stopped by {number.name}; all ranks were ended\n")


def test_under_nohup_no_process_of_a_job_minds_sighup(script: Script) -> None:
    with job("nohup", *COMMAND, "--nproc", 2, script(f"say(rank)\n{SLEEP}")) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for pid in (process.pid, agent_of(process), ranks_of(process)[0]):
            status = Path(f"/proc/{pid}/status").read_text()
            (ignored,) = re.findall(r"SigIgn:\s*([0-9a-f]+)", status)
            assert int(ignored, 16) & 1 << signal.SIGHUP - 1
        process.send_signal(signal.SIGTERM)


def test_frozen_agent_goes_on_and_ends_with_its_front(script: Script, tmp_path: Path) -> None:
    go_on = tmp_path / "go on"
    wait = f"import time\nwhile not os.path.exists({str(go_on)!r}):\n    time.sleep(0.01)\n"
    path = script(f"say('ready')\n{wait}say('goes on')\n{SLEEP}")
    with job(*COMMAND, "--nproc", 2, path) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        os.kill(agent_of(process), signal.SIGSTOP)
        go_on.touch()
        assert [process.stdout.readline() for _ in range(2)] == ["goes on\n"] * 2
        for pid in (process.pid, agent_of(process)):
            os.kill(pid, signal.SIGSTOP)
        process.kill()  # the orphans are looked for on the way out


def test_program_that_is_missing_or_not_executable_has_the_shells_exit_code(
    tmp_path: Path,
) -> None:
    path = tmp_path / "program"
    done = launch("--no-python", path)
    assert (done.returncode, done.stderr.count("\n")) == (127, 1)
    path.write_text("#!/bin/sh\n")
    done = launch("--no-python", path)
    assert (done.returncode, done.stderr.count("\n")) == (126, 1)
    path.write_text("#!/no/such/interpreter\n")
    path.chmod(0o755)
    done = launch("--no-python", path)
    assert done.returncode == 127
    assert f"{path}: interpreter /no/such/interpreter: No such file" in done.stderr
    path.write_text("no program")
    done = launch("--nproc", 2, "--no-python", path)
    assert done.returncode == 126
    assert done.stderr == (
        f"hccl-launch: cannot start a rank: {path}: Exec format error; all ranks were ended\n"
    )
    assert launch("--no-python", tmp_path).returncode == 126


@pytest.mark.parametrize(
    ("setup", "expected"),
    [
        ("export TMPDIR=/proc", "cannot make a folder in /proc: No such file or directory; set"),
        (
            "ulimit -n 10",
            "1 rank on a host: hccl-launch needs 35 open files, and this user may open 10",
        ),
        ("export HCCL_STALL_WARNING_S=0.5", "HCCL_STALL_WARNING_S: expected 1 or more seconds, 0"),
        ("mkdir gone && cd gone && rmdir ../gone", "the working directory is gone ("),
    ],
)
def test_broken_surroundings_are_one_line(tmp_path: Path, setup: str, expected: str) -> None:
    command = (*COMMAND, "-m", "this")
    done = run("sh", "-c", f'cd {tmp_path} && {setup} && exec "$@"', "sh", *command)
    assert done.returncode == 2
    assert done.stderr.startswith(f"hccl-launch: error: {expected}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", *by_night("launchers", "<&-", ">&-", "2>&-")])
def test_closed_streams_do_no_harm(script: Script, closed: str) -> None:
    path = script("for fd in range(3): os.fstat(fd)\nopen(f'{__file__}.{rank}', 'w').close()")
    for count in (1, 2):
        command = (*COMMAND, "--nproc", count, path)
        done = run("sh", "-c", f'exec "$@" {closed}', "sh", *command)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert path.with_name(f"script.py.{count - 1}").exists()


_CTRL_C_IN_AN_IMPORT = """
import os, signal, sys
from hccl_py.launcher.main import command
class Finder:
    def find_spec(name, *_):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
command()
"""


@pytest.mark.parametrize("module", ["launch", "parts.dry_run"])
def test_ctrl_c_while_it_imports_is_one_line(module: str) -> None:
    program = _CTRL_C_IN_AN_IMPORT.format(name=f"hccl_py.launcher.{module}")
    done = run(sys.executable, "-c", program, "--dry-run", "-m", "this")
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "hccl-launch: stopped by SIGINT\n"


HANDLES = """
import signal, sys, time
def handle(number, frame):
    say(f"rank {rank} got {signal.Signals(number).name}")
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU):
    signal.signal(number, handle)
say("ready")
"""


def test_warnings_of_schedulers_reach_the_ranks_and_end_nothing(script: Script) -> None:
    path = script(f"if rank < 2:\n    {HANDLES.replace(chr(10), chr(10) + '    ')}\n{SLEEP}")
    with job(*COMMAND, "--nproc", 3, path) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU):
            process.send_signal(number)
            found = sorted(process.stdout.readline() for _ in range(2))
            assert found == [f"rank {rank} got {number.name}\n" for rank in range(2)]
            line = process.stderr.readline()
            assert line.startswith(f"hccl-launch: rank 2 did not get {number.name}"), line
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=HANG_S)
    assert process.returncode == 143


def test_ranks_may_save_after_sigterm_and_a_second_one_changes_nothing(
    script: Script, tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    body = f"""
import signal, sys, time
def save(*_):
    say("saving")
    while not os.path.exists({str(saved)!r}):
        time.sleep(0.01)
    say("saved")
    sys.exit(5)
signal.signal(signal.SIGTERM, save)
say("ready")
{SLEEP}
"""
    with job(*COMMAND, "--nproc", 2, script(body)) as process:
        assert process.stdout is not None
        for expected in ("ready\n", "saving\n"):
            assert [process.stdout.readline() for _ in range(2)] == [expected] * 2
            process.send_signal(signal.SIGTERM)
        saved.touch()
        out, err = process.communicate(timeout=HANG_S)
    assert (process.returncode, out) == (143, "saved\nsaved\n")
    assert err == "hccl-launch: stopped by SIGTERM; all ranks were ended\n"


def test_rank_that_does_not_end_in_time_is_named(script: Script) -> None:
    body = f"import signal\nsignal.signal(signal.SIGTERM, lambda *_: None)\nsay('ready')\n{SLEEP}"
    # On a busy machine the agent needs more than the seconds that its supervisor gives it on top.
    program = (
        "from hccl_py.launcher import main, supervisor\n"
        "supervisor._EXTRA_S = 1000.0\n"
        "main.command()"
    )
    options = ("--prefix", "never", "--nproc", 2, "--shutdown-timeout", 0.2)
    with job(sys.executable, "-c", program, *options, script(body)) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 143
    assert "; ranks 0-1 did not end in time (--shutdown-timeout) and got SIGKILL" in err


def test_frozen_rank_runs_again_to_end(script: Script) -> None:
    body = f"import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit())\n{SLEEP}"
    with job(*COMMAND, "--nproc", 2, script(f"say('ready')\n{body}")) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        os.kill(ranks_of(process)[1], signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=HANG_S)
    assert err == "hccl-launch: stopped by SIGTERM; all ranks were ended\n"


@pytest.mark.parametrize("secret", ["", "x"])
def test_secret_that_can_be_guessed_is_refused_or_warned_of(
    script: Script, monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    monkeypatch.setenv("HCCL_SECRET", secret)
    path = script("say(rank)")
    node = "--node-rank", 0, "--master-port", free_port()  # else 29500, which another job may have
    for options in (("--nproc", 2), ("--hosts", "127.0.0.1:2"), node):
        done = launch(*options, path)
        assert "HCCL_SECRET" in done.stderr
        assert done.returncode == (0 if secret else 2), done.stderr


@pytest.mark.parametrize(
    ("module", "options"),
    [
        ("job.serve", ("--nproc", 2)),
        ("elastic_job", ("--standalone", "--role", "x")),
    ],
)
def test_front_that_is_killed_while_its_agent_starts_leaves_no_folder(
    script: Script,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    options: tuple[object, ...],
) -> None:
    program = f"""
import os, signal, sys
from hccl_py.launcher.main import command
supervisor = os.getpid()
class Finder:
    def find_spec(name, *_):
        if name == "hccl_py.launcher.{module}":
            os.kill(supervisor, signal.SIGKILL)
sys.meta_path.insert(0, Finder)
command()
"""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = run(sys.executable, "-c", program, *options, script(SLEEP))
    assert done.returncode == -signal.SIGKILL
    assert list(tmp_path.glob("hccl_launch_*")) == []
