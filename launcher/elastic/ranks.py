"""The ranks of this node: torch's agent says when they start and stop.

The agent of all jobs starts and watches them, so their lines, failures and progress are those of a
job of fixed size. It takes `LocalRanks` for its head.
"""

import math
import signal
import threading
import time
from typing import Any

from hccl_py.launcher.failure import Failure
from hccl_py.launcher.job.agent import Agent
from hccl_py.launcher.job.layout import Attempt
from hccl_py.launcher.job.loop import JobLoop
from hccl_py.launcher.job.program import Program
from hccl_py.launcher.job.streams import Streams
from hccl_py.launcher.progress.job_progress import JobProgress, Outlets, look_s

# Ranks that lose a peer raise a moment later, and say in what call: that belongs to the report.
_SETTLE_S = 0.3
_STOP_EXTRA_S = 5.0


class CannotStartError(Exception):
    """A rank could not be started; the message says why."""

    def __init__(self, why: str, exit_code: int) -> None:
        """Take the exit code of the job as well."""
        super().__init__(why)
        self.exit_code = exit_code


class LocalRanks:
    """The ranks of this node, start after start; a service of the loop of the main thread.

    Attributes:
        has_failed: whether a rank failed since the last start; the others are being stopped.
        failures: of the last start, when none of its ranks runs any more.
        exit_code: of this process; None: the job goes on.
    """

    def __init__(self, loop: JobLoop, program: Program, stall_s: float) -> None:
        """Start nothing yet; a rank without progress is named after `stall_s`."""
        self._loop, self._stop_s, self._stall_s = loop, program.stop_s, stall_s
        self._streams = Streams(loop)
        self._agent = Agent(loop, program, self, self._streams)
        self._progress: JobProgress | None = None
        self._number = 0  # of the last start
        self._problem: tuple[str, int] | None = None
        self._stop_at_s = math.inf
        self._by_user: tuple[str, int] | None = None
        self._ended = threading.Event()
        self._ended.set()
        self.has_failed = False
        self.failures: tuple[Failure, ...] = ()
        self.exit_code: int | None = None
        for service in (self._agent, self):
            loop.add(service)

    # The thread of torch's agent.

    @property
    def are_running(self) -> bool:
        """Whether a rank runs."""
        return not self._ended.is_set()

    def start(self, attempt: Attempt) -> None:
        """Start all ranks; raise CannotStartError."""
        self._loop.call(lambda: self._start(attempt))

    def stop(self) -> None:
        """Have all ranks end, and wait until they have."""
        self._loop.post(self._stop)
        self.wait()

    def wait(self) -> None:
        """Wait until ranks that are being stopped have ended; raise TimeoutError."""
        limit_s = _SETTLE_S + self._stop_s + _STOP_EXTRA_S
        if not self._ended.wait(limit_s) and not self._by_user:
            raise TimeoutError(f"a rank did not end within {limit_s:.0f} s of being killed")

    def say(self, text: str) -> None:
        """Print a line of the launcher's own."""
        self._loop.post(lambda: self._streams.say(f"hccl-launch: {text}"))

    def conclude(self, exit_code: int, text: str) -> None:
        """End this node's part of the job with a text, which may be empty."""
        self._loop.post(lambda: self._conclude(exit_code, text))

    # The main thread.

    def end_for(self, why: str, exit_code: int) -> None:
        """Stop this node for a signal or problem of its own; to the other nodes it has left."""
        if self.exit_code is not None:
            self._streams.give_up()
        if self._by_user is not None:
            return
        self._by_user = why, exit_code
        if self.are_running:
            self._stop()
        else:
            self._conclude_for_user()

    def warn(self, number: int) -> None:
        """Pass a signal on to the ranks of this node."""
        self._agent.warn_ranks(number)

    def close(self) -> None:
        """Print what is left."""
        self._streams.close()

    def next_s(self) -> float:
        """See `loop.Service`."""
        return self._stop_at_s

    def turn(self) -> None:
        """See `loop.Service`."""
        if time.monotonic() >= self._stop_at_s:
            self._stop()
        if self._streams.is_lost:
            why = f"it cannot print any more ({self._streams.why_lost})"
            self.end_for(why, 128 + signal.SIGPIPE)
        if self.exit_code is not None and self._streams.is_drained:
            self._loop.stop()

    def send(self, kind: str, body: Any) -> None:
        """Take a message of the agent, see `head.Head.receive`."""
        if kind == "failed":
            if not self.has_failed:
                self.has_failed, self._stop_at_s = True, time.monotonic() + _SETTLE_S
        elif kind == "ended":
            self._on_end(body[1])
        elif kind == "stop":
            self._problem = body[0], body[1]
        elif self._progress is not None and body[0] == self._number and not self.has_failed:
            if kind == "progress":
                self._progress.take(0, body[1], time.monotonic())
            elif kind == "stack":
                self._progress.take_stack(*body[1:])

    def _start(self, attempt: Attempt) -> None:
        can_show = self._streams.can_show
        attempt = attempt._replace(look_s=look_s(self._stall_s, can_show))
        outlets = Outlets(
            self._streams.say,
            self._streams.show if can_show else None,
            lambda _, rank: self._agent.receive("dump", [attempt.number, rank]),
        )
        here = range(attempt.first_rank, attempt.first_rank + len(attempt.slots))
        self._progress = JobProgress(outlets, self._stall_s, attempt.look_s, here)
        self.has_failed, self.failures, self._problem = False, (), None
        self._number = attempt.number
        self._ended.clear()
        self._agent.receive("start", attempt)
        if self._problem is not None:
            self._agent.stop_ranks()
            raise CannotStartError(*self._problem)

    def _stop(self) -> None:
        self._stop_at_s = math.inf
        if self.are_running:
            self._agent.stop_ranks()

    def _on_end(self, failures: tuple[Failure, ...]) -> None:
        now_s = time.time()
        self.failures = tuple(each._replace(at_s=now_s + each.at_s) for each in failures)
        self._stop_at_s = math.inf
        if self._progress is not None:
            self._progress.close()
            self._progress = None
        if self._by_user is None:
            self._ended.set()
        else:
            self._loop.post(self._conclude_for_user)

    def _conclude_for_user(self) -> None:
        assert self._by_user is not None
        why, exit_code = self._by_user
        self._conclude(exit_code, f"hccl-launch: {why}; all ranks were ended")

    def _conclude(self, exit_code: int, text: str) -> None:
        if self.exit_code is not None:
            return
        self.exit_code = exit_code
        self._agent.end(exit_code, "")
        if text:
            self._streams.say(text)
