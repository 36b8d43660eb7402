"""The processes of an agent's ranks: started, watched, and ended with their descendants."""

import ctypes
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hccl_py.launcher.failure import RankFailure
from hccl_py.launcher.job.layout import Attempt, RankProgram, Slot, rank_variables
from hccl_py.launcher.job.loop import JobLoop
from hccl_py.launcher.job.streams import JobOutput
from hccl_py.launcher.machine.processes import freeze, kill_descendants, takes, thaw
from hccl_py.launcher.output.rank_output import LogFile, RankOutput
from hccl_py.launcher.placement.binding import Place, bound_to
from hccl_py.launcher.progress.rank_progress import RankProgress, RankWatch
from hccl_py.launcher.signals import RESUME, SUSPEND

_PR_SET_PDEATHSIG, _PR_SET_PTRACER = 1, 0x59616D61
_KILL_S = 3.0
_prctl = ctypes.CDLL(None).prctl


class _Rank:
    def __init__(
        self, number: int, slot: Slot, process: subprocess.Popen[bytes], error_file: Path
    ) -> None:
        self.number, self.slot, self.process = number, slot, process
        self.error_file = error_file
        self.output: RankOutput | None = None
        file = _progress_file(error_file)
        self.watch = RankWatch(number, process.pid, file, time.monotonic())
        self.last_lines: list[str] = []
        self.stopped_s: float | None = None  # when it was asked to end, seconds since the epoch
        self.was_killed = False
        self.ended = os.pidfd_open(process.pid)
        self.exit_code: int | None = None
        self.at_s = 0.0


class HostRanks:
    """The ranks of one attempt on this host."""

    def __init__(
        self,
        loop: JobLoop,
        program: RankProgram,
        streams: JobOutput,
        attempt: Attempt,
        on_end: Callable[[int, int], None],
    ) -> None:
        """Start nothing yet; `on_end` gets each rank and its exit code."""
        self._loop, self._program, self._streams = loop, program, streams
        self._attempt, self._on_end = attempt, on_end
        self._ranks: list[_Rank] = []

    @property
    def running(self) -> int:
        """How many ranks have not ended."""
        return sum(rank.exit_code is None for rank in self._ranks)

    def start(self, places: Sequence[Place], stdin: int | None) -> None:
        """Start all ranks.

        Args:
            places: of the ranks.
            stdin: of rank 0, if it is among them; None: this process's.

        Raises:
            OSError: the program cannot be run, or a log file not be written; started ranks
                continue.
        """
        program, attempt = self._program, self._attempt
        for index, (slot, place) in enumerate(zip(attempt.slots, places, strict=True)):
            number = attempt.first_rank + index
            record = program.folder / f"rank_{number}.json"
            files = {
                "TORCHELASTIC_ERROR_FILE": record,
                "HCCL_PROGRESS_FILE": _progress_file(record),
            }
            for file in files.values():
                file.unlink(missing_ok=True)
            output = None if program.is_alone else subprocess.PIPE
            with bound_to(place):
                process = subprocess.Popen(
                    program.command,
                    env={
                        **program.environment,
                        **place.environment(program.environment),
                        **rank_variables(program, attempt, index),
                        **{name: str(file) for name, file in files.items()},
                    },
                    stdin=subprocess.DEVNULL if number else stdin,
                    stdout=output,
                    stderr=output,
                    preexec_fn=_in_rank,
                )
            rank = _Rank(number, slot, process, record)
            if not program.is_alone:
                try:
                    rank.output = self._read_output(rank)
                except OSError:
                    process.kill()
                    process.wait()
                    raise
            self._ranks.append(rank)
            self._loop.watch(rank.ended, lambda rank=rank: self._note_end(rank))  # type: ignore[misc]

    def sample(self) -> tuple[RankProgress, ...]:
        """Return the progress of running ranks whose lines are read."""
        now_s = time.monotonic()
        return tuple(
            rank.watch.sample(rank.output.num_lines, now_s)
            for rank in self._ranks
            if rank.exit_code is None and rank.output is not None
        )

    def pid(self, rank: int) -> int | None:
        """Return the process of a rank of the job; None: it has ended."""
        pids = (
            each.process.pid
            for each in self._ranks
            if each.number == rank and each.exit_code is None
        )
        return next(pids, None)

    def warn(self, number: int) -> list[int]:
        """Send a signal to the ranks that handle it; return the other ranks.

        SUSPEND stops all ranks, and RESUME continues them.
        """
        running = [rank for rank in self._ranks if rank.exit_code is None]
        if number in (SUSPEND, RESUME):
            (freeze if number == SUSPEND else thaw)([rank.process.pid for rank in running])
            return []
        spared = [rank for rank in running if not takes(rank.process.pid, number)]
        for rank in running:
            if rank not in spared:
                rank.process.send_signal(number)
        return [rank.number for rank in spared]

    def stop(self) -> None:
        """Ask all running ranks and their process groups to end."""
        for rank in self._ranks:
            if rank.process.poll() is not None:
                self._note_end(rank)  # it ended by itself
            else:
                rank.stopped_s = time.time()
                # A frozen rank must run in order to end.
                for number in (signal.SIGTERM, signal.SIGCONT):
                    _signal_group(rank, number)

    def end(self) -> None:
        """Kill the remaining ranks and their descendants, also in other sessions.

        Connections to other hosts are also child processes.
        """
        for rank in self._ranks:
            if rank.process.poll() is not None:
                self._note_end(rank)
            else:
                _signal_group(rank, signal.SIGKILL)
        for rank in self._ranks:
            if rank.exit_code is None:
                rank.was_killed = True
                rank.process.wait()
                self._note_end(rank)
        kill_descendants(_KILL_S, self._loop.spared)
        for rank in self._ranks:
            if rank.output is not None:
                rank.output.close()

    def ends(self, reason: Callable[[int], str]) -> tuple[RankFailure, ...]:
        """Return how all ranks ended; `reason` says what an exit code may mean.

        A rank that recorded an exception failed, even if it was stopped before its process ended:
        the ranks that lost it may end first.
        """
        return tuple(
            self._end_of(rank, _read_record(rank.error_file), reason) for rank in self._ranks
        )

    def _read_output(self, rank: _Rank) -> RankOutput:
        """Read from both pipes of a rank; raise OSError if there can be no log."""
        options, streams, attempt = self._program.output, self._streams, self._attempt
        log = None
        if options.log_dir is not None:
            log = LogFile(Path(options.log_dir), attempt.number, rank.number)
        prefix = options.prefix_of(socket.gethostname(), rank.number, attempt.world_size)
        output = RankOutput(streams, prefix, log)
        has_user = self._program.has_user and rank.number == 0
        pipes, screens = (rank.process.stdout, rank.process.stderr), (streams.out, streams.err)
        for stream, (pipe, screen) in enumerate(zip(pipes, screens, strict=True), start=1):
            assert pipe is not None
            route = options.route(rank.slot.local_rank, stream)
            with pipe:
                output.read(os.dup(pipe.fileno()), route, screen, has_user=has_user)
        return output

    def _note_end(self, rank: _Rank) -> None:
        if rank.exit_code is not None:
            return
        rank.exit_code, rank.at_s = rank.process.wait(), time.time()
        self._loop.selector.unregister(rank.ended)
        os.close(rank.ended)
        if rank.output is not None:
            rank.last_lines = rank.output.end()
        self._on_end(rank.number, rank.exit_code)

    def _why_killed(self, rank: _Rank) -> str:
        by_signal = rank.exit_code in (-signal.SIGKILL, 128 + signal.SIGKILL)
        return self._loop.why_killed(rank.number) if by_signal else ""

    def _end_of(
        self, rank: _Rank, record: Mapping[str, Any], reason: Callable[[int], str]
    ) -> RankFailure:
        code, at_s = rank.exit_code or 0, record.get("at_s", rank.at_s)
        has_raised = bool(record.get("message"))
        was_stopped = rank.stopped_s is not None and at_s >= rank.stopped_s
        return RankFailure(
            rank=rank.number,
            node=rank.slot.node,
            local_rank=rank.slot.local_rank,
            host=socket.gethostname(),
            pid=rank.process.pid,
            # It may have been stopped after its exception.
            exit_code=(record.get("exit_code") or max(code, 1)) if record else code,
            kind=record.get("type", ""),
            message=record.get("message", ""),
            traceback=record.get("py_callstack", ""),
            at_s=at_s,
            log=rank.output.log_path if rank.output is not None else "",
            last_lines=() if has_raised else tuple(rank.last_lines),
            reason="" if record else self._why_killed(rank) or reason(code),
            was_stopped=was_stopped,
            was_killed=was_stopped and rank.was_killed,
            blames=rank.watch.last_report().get("blames"),
        )


def _in_rank() -> None:
    """Between fork and exec: make a process group, and end with the agent."""
    os.setpgid(0, 0)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Yama lets only ancestors read this process's memory; py-spy is the agent's child.
    _prctl(_PR_SET_PTRACER, os.getppid())


def _signal_group(rank: _Rank, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(rank.process.pid, number)


def _progress_file(record: Path) -> Path:
    return record.with_suffix(".progress")


def _read_record(path: Path) -> dict[str, Any]:
    """Read the record of an exception by `worker.py` or torch's `record`; empty: none."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        record = json.loads(path.read_text())["message"]
        if isinstance(record, str):
            record = {"message": record, "extraInfo": {}}
        # The record's time has whole seconds; the file's time shows which rank was first.
        at_s = path.stat().st_mtime
        return {**record["extraInfo"], "message": str(record["message"]), "at_s": at_s}
    return {}
