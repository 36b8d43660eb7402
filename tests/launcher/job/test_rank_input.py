"""What rank 0 reads from its standard input, and when its questions are shown."""

import base64
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from launching import COMMAND, run
from quiet_clock import HANG_S
from tiers import by_night

from hccl_py.launcher.job import rank_input
from hccl_py.launcher.job.loop import JobLoop

Script = Callable[[str], Path]


def test_single_rank_gets_the_terminal_itself(script: Script) -> None:
    path = script("import sys\nsay([os.isatty(fd) for fd in range(3)])\nsay(input())")
    ours, theirs = os.openpty()
    with subprocess.Popen([*COMMAND[:3], str(path)], stdin=theirs, stdout=theirs, stderr=theirs):
        os.close(theirs)
        os.write(ours, b"typed\n")
        printed = b""
        while chunk := _read(ours):
            printed += chunk
    os.close(ours)
    lines = printed.decode().splitlines()
    assert lines.count("typed") == 2, "once by the terminal, once by the rank"
    assert "[True, True, True]" in lines


def _read(terminal: int) -> bytes:
    """Read from a terminal; empty once nobody has its other end."""
    try:
        return os.read(terminal, 1024)
    except OSError:
        return b""


def test_question_of_rank_0_is_seen_on_the_terminal_before_it_is_answered(script: Script) -> None:
    path = script("import sys\nif rank == 0: say('hello ' + input('your name? '))")
    ours, theirs = os.openpty()
    command = [*COMMAND, "--nproc", "2", str(path)]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs):
        os.close(theirs)
        printed = b""
        while not printed.endswith(b"your name? "):
            assert (chunk := _read(ours)), printed
            printed += chunk
        os.write(ours, b"Ada\n")
        while chunk := _read(ours):
            printed += chunk
    os.close(ours)
    # The status line of a slow start is erased again: this is what stays on the terminal.
    shown = re.sub(rb"[^\n]*\r\x1b\[K", b"", printed.replace(b"\r\n", b"\n"))
    assert shown == b"your name? Ada\nhello Ada\n"


ASKS = """
import sys
if os.environ["RANK"] == "0":
    print("menu")
    say("hello " + input("your name? "))
    import pdb; pdb.set_trace()
    say("end")
"""


def test_prompts_of_rank_0_are_seen_by_a_program_before_it_answers(script: Script) -> None:
    command = [*COMMAND, "--nproc", "2", str(script(ASKS))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        answer(process, b"menu\nyour name? ", b"Ada\n")
        answer(process, b"(Pdb) ", b"p 6 * 7\n")
        answer(process, b"42\n(Pdb) ", b"c\n")
        out, _ = process.communicate(timeout=HANG_S)
    assert (process.returncode, out) == (0, b"end\n")


def answer(process: subprocess.Popen[bytes], question: bytes, text: bytes) -> None:
    """Read up to a question, and answer it."""
    assert process.stdin is not None
    assert process.stdout is not None
    printed = b""
    while not printed.endswith(question):
        assert (chunk := os.read(process.stdout.fileno(), 1024)), printed
        printed += chunk
    process.stdin.write(text)
    process.stdin.flush()


READS = "import sys\nfor line in sys.stdin: say(f'{rank} read {line.strip()}')\nsay(f'{rank} end')"


@pytest.mark.parametrize("source", ["pipe", "file"])
def test_rank_0_reads_standard_input_and_the_others_have_none(
    script: Script, tmp_path: Path, source: str
) -> None:
    path, data = script(READS), tmp_path / "data"
    data.write_text("one\ntwo\n")
    redirect = {"pipe": f'cat {data} | "$@"', "file": f'"$@" < {data}'}[source]
    done = run("sh", "-c", redirect, "sh", *COMMAND, "--nproc", 2, path)
    assert sorted(done.stdout.splitlines()) == ["0 end", "0 read one", "0 read two", "1 end"]


def test_what_is_typed_for_the_shell_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    in_background, received, loop = [True, True, False], [], JobLoop()
    monkeypatch.setattr(rank_input, "_STDIN", reader)
    monkeypatch.setattr(rank_input, "_CHECK_AGAIN_S", 0.0)
    monkeypatch.setattr(rank_input, "is_in_background", lambda _: in_background.pop(0))

    def receive(text: str) -> None:
        received.append(base64.b64decode(text))
        loop.stop()

    user_input = rank_input.UserInput(loop, receive)
    os.write(writer, b"typed\n")
    user_input.want()
    loop.run()
    assert (received, in_background) == ([b"typed\n"], [])
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize(
    "options",
    ["--nproc 2", *by_night("launchers", "", "--hosts 127.0.0.1:2", "--role x --nproc 2")],
)
def test_ctrl_z_stops_the_ranks_and_leaves_the_terminal_to_the_shell(
    script: Script, options: str
) -> None:
    path = script("if rank == 0: say('hello ' + input('your ' + 'name? '))")
    pid, ours = pty.fork()
    if pid == 0:
        os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
    printed = b""

    def answer_to(question: bytes, text: bytes) -> None:
        nonlocal printed
        while question not in printed:
            assert (chunk := _read(ours)), printed
            printed += chunk
        printed = printed.partition(question)[2]
        os.write(ours, text)

    command = f"{' '.join(COMMAND[:3])} {options} {path}\n"
    os.write(ours, command.encode())
    answer_to(b"your name? ", b"\x1a")
    answer_to(b"Stopped", b"echo shell $((6 * 7))\n")
    answer_to(b"shell 42", b"fg\n")
    answer_to(b"launcher.main", b"Ada\n")
    answer_to(b"hello Ada", b"exit $?\n")
    while _read(ours):
        pass
    assert os.waitpid(pid, 0)[1] == 0
    os.close(ours)


_JOB_CONTROL = """
import os, signal, sys, time
from hccl_py.launcher.machine.processes import is_in_background
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
found = [is_in_background(os.getpid())]
child = os.fork()
if child == 0:
    time.sleep(1000)
os.setpgid(child, child)
os.tcsetpgrp(0, child)
found += [is_in_background(os.getpid()), is_in_background(child)]
os.dup2(os.open("/dev/tty", os.O_RDWR), 0)
found.append(is_in_background(os.getpid()))
os.dup2(os.open("/dev/null", os.O_RDWR), 0)
found.append(is_in_background(os.getpid()))
os.kill(child, signal.SIGKILL)
os.write(1, f"{found}\\n".encode())
"""


def test_terminal_belongs_to_the_group_that_the_shell_names() -> None:
    pid, ours = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", _JOB_CONTROL])
    printed = b""
    while chunk := _read(ours):
        printed += chunk
    os.waitpid(pid, 0)
    os.close(ours)
    assert printed.split(b"\r\n")[0] == b"[False, True, False, True, False]"
