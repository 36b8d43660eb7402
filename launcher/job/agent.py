"""The agent of a host: starts its ranks for the coordinator, and reports how they end."""

import errno
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hccl_py.launcher.exit_codes import AGENT_KILLED, CANNOT_RUN, NOT_FOUND
from hccl_py.launcher.job.layout import Attempt, RankProgram
from hccl_py.launcher.job.loop import JobLoop
from hccl_py.launcher.job.rank_input import RankInput
from hccl_py.launcher.job.ranks import HostRanks
from hccl_py.launcher.job.reasons import OutOfMemory
from hccl_py.launcher.job.streams import JobOutput
from hccl_py.launcher.number_ranges import name_ranks
from hccl_py.launcher.placement.binding import place
from hccl_py.launcher.placement.topology import read_machine
from hccl_py.launcher.signals import RESUME, SUSPEND, WARNINGS
from hccl_py.launcher.supervisor import stop_signals
from hccl_py.schedulers.ports import free_port

if TYPE_CHECKING:
    from hccl_py.launcher.preflight.node.responder import CheckResponder


# Limit of a failed rank's texts: two texts per rank, with up to 12 bytes per character, must fit
# into one message.
_MOST_CHARS = 128 << 10
_MOST_SHEBANG_BYTES = 256  # as many as the kernel reads


Send = Callable[[str, Any], None]
"""Takes kind and body of a message to the coordinator, see `JobCoordinator.receive`."""


class Agent:
    """The ranks of one host, attempt after attempt; a service of a loop.

    Attributes:
        exit_code: of this agent's process; None: the job continues.
        last_line: why the job ended, in a line.
    """

    def __init__(self, loop: JobLoop, program: RankProgram, send: Send, streams: JobOutput) -> None:
        """Wait for the first message; `send` answers, and `streams` prints the ranks' output."""
        self._streams = streams
        machine = read_machine()
        self._placement = place(machine, len(program.slots), program.bind)
        self._out_of_memory = OutOfMemory(machine)
        self.exit_code: int | None = None
        self.last_line = ""
        self._loop, self._program, self._send = loop, program, send
        self._responder: CheckResponder | None = None
        self._attempt: Attempt | None = None
        self._ranks: HostRanks | None = None
        self._input: RankInput | None = None
        self._kill_at_s = self._sample_at_s = float("inf")

    def receive(self, kind: str, body: Any) -> None:
        """Handle a message of the coordinator, see `coordinator`."""
        if kind == "ask":
            self._answer(*body)
        elif kind == "start":
            self._start(body)
        elif kind == "dump":
            self._dump(*body)
        elif kind == "warn":
            self.warn_ranks(body)
        elif kind == "stdin" and self._input is not None:
            self._input.take(body)
        elif kind == "stop":
            self.stop_ranks()
        elif kind == "end":
            self.end(*body)

    def warn_ranks(self, number: int) -> None:
        """Forward a signal to the ranks that handle it."""
        spared = self._ranks.warn(number) if self._ranks is not None else []
        if spared:
            self._streams.say(
                f"hccl-launch: {name_ranks(spared)} did not get {signal.Signals(number).name}: "
                "without a handler it would end them"
            )

    def stop_ranks(self) -> None:
        """Ask all ranks to end; kill the others after their time limit."""
        if self._ranks is None or self._kill_at_s < float("inf"):
            return
        self._kill_at_s = time.monotonic() + self._program.stop_s
        self._ranks.stop()

    def end(self, exit_code: int, last_line: str) -> None:
        """End all remaining processes; the agent is then done."""
        self._end_check()
        if self._ranks is not None:
            self._ranks.end()
        if self.exit_code is None:
            self.exit_code, self.last_line = exit_code, last_line

    def next_s(self) -> float:
        """See `loop.Service`."""
        return min(self._kill_at_s, self._sample_at_s)

    def turn(self) -> None:
        """See `loop.Service`."""
        now_s = time.monotonic()
        if now_s >= self._kill_at_s and self._ranks is not None:
            self._kill_at_s = float("inf")
            self._ranks.end()
        if now_s >= self._sample_at_s and self._ranks is not None and self._attempt is not None:
            self._sample_at_s = now_s + self._attempt.sample_s
            self._send("progress", [self._attempt.number, self._ranks.sample()])

    def _start(self, attempt: Attempt) -> None:
        program = self._program
        self._end_check()
        self._attempt, self._kill_at_s = attempt, float("inf")
        self._ranks = HostRanks(self._loop, program, self._streams, attempt, self._on_end)
        if self._placement.note and attempt.number == 0:
            self._streams.say(f"hccl-launch: {self._placement.note}")
        if self._input is not None:
            self._input.close()
            self._input = None
        if attempt.first_rank == 0 and not program.has_stdin:
            self._input = RankInput(self._loop, lambda: self._send("stdin", None))
        try:
            stdin = None if self._input is None else self._input.reader
            self._ranks.start(self._placement.places, stdin)
        except OSError as error:
            where = f" on {socket.gethostname()}" * (len(attempt.node_sizes) > 1)
            what, exit_code = why_not_run(error, program.command[0])
            self._send("stop", [f"cannot start a rank{where}: {what}", exit_code])
            if not self._ranks.running:
                self._send("ended", [attempt.number, (), free_port()])
        if self._input is not None:
            self._input.begin()
        # A rank that owns the terminal may wait for its user.
        if attempt.sample_s and not program.is_alone:
            self._sample_at_s = time.monotonic() + attempt.sample_s

    def _dump(self, number: int, rank: int) -> None:
        """Send the stack of a rank; this takes some time."""
        pid = self._ranks.pid(rank) if self._ranks is not None else None
        if pid is None:
            return
        from hccl_py.launcher.progress.rank_progress import stack_of

        def dump() -> None:
            text = stack_of(pid)
            self._loop.post(lambda: self._send("stack", [number, rank, text]))

        threading.Thread(target=dump, daemon=True).start()

    def _answer(self, number: int, question: dict[str, Any]) -> None:
        """Answer a question of preflight on a thread, because it takes seconds."""
        from hccl_py.launcher.preflight.node.responder import CheckResponder

        self._responder = responder = self._responder or CheckResponder(self._program.environment)

        def answer() -> None:
            found = responder.answer(question)
            self._loop.post(lambda: self._send("answer", [number, found]))

        threading.Thread(target=answer, daemon=True).start()

    def _end_check(self) -> None:
        if self._responder is not None:
            self._responder.close()
            self._responder = None

    def _on_end(self, rank: int, exit_code: int) -> None:
        assert self._attempt is not None
        assert self._ranks is not None
        if exit_code and self._kill_at_s == float("inf"):
            self._send("failed", [self._attempt.number, rank, exit_code])
        if not self._ranks.running:
            # A rank's leftover processes would keep its port, or write into the next attempt.
            self._ranks.end()
            self._kill_at_s = self._sample_at_s = float("inf")
            now_s, reason = time.time(), self._out_of_memory.likely_reason
            # Clocks of hosts differ, so the coordinator gets each end's age.
            found = self._ranks.ends(reason)
            ends = [
                each.cut(_MOST_CHARS // len(found))._replace(at_s=each.at_s - now_s)
                for each in found
            ]
            self._send("ended", [self._attempt.number, tuple(ends), free_port()])


def why_not_run(error: OSError, program: str) -> tuple[str, int]:
    """Return why the kernel does not run a program, in words, and a shell's exit code for it."""
    from shutil import which  # slow to import

    what = error.filename or program
    is_missing = error.errno == errno.ENOENT and what == program
    hint = " (ulimit -n)" * (error.errno == errno.EMFILE)
    code = NOT_FOUND if is_missing else CANNOT_RUN
    if what == program and (found := which(program)):  # the program's interpreter is the cause
        with suppress(OSError), open(found, "rb") as file:
            line = file.readline(_MOST_SHEBANG_BYTES).decode(errors="replace")
            if line.startswith("#!"):
                what += f": interpreter {line[2:].strip()}"
            elif is_missing:
                what += ": its loader (readelf -l names it)"
    return f"{what}: {error.strerror}{hint}", code


def watch_signals(
    loop: JobLoop, on_stop: Callable[[str, int], None], on_warning: Callable[[int], None]
) -> None:
    """Have the loop handle signals that stop this process, as in `stopped_by`.

    `on_warning` gets the numbers of signals for the ranks.
    """
    readable, writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    for number in (*stop_signals(), *WARNINGS, SUSPEND, RESUME):
        signal.signal(number, lambda *_: None)
    supervisor = os.getppid()

    def take() -> None:
        for number in os.read(readable, 64):
            if number in (*WARNINGS, SUSPEND, RESUME):
                on_warning(number)
                if number == SUSPEND:  # no rank reads the terminal any more
                    os.kill(supervisor, signal.SIGTSTP)
            elif os.getppid() != supervisor:
                on_stop("killed", AGENT_KILLED)
            elif number in stop_signals():
                on_stop(*stopped_by(number))

    loop.watch(readable, take)


def stopped_by(number: int) -> tuple[str, int]:
    """Return a signal's effect in words, and the exit code of a job that it ends."""
    return f"stopped by {signal.Signals(number).name}", 128 + number
