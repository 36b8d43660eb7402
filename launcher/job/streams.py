"""The output of this process: lines of its ranks, of agents on other hosts, and its own."""

import os
import selectors
import time

from hccl_py.launcher.job.loop import JobLoop
from hccl_py.launcher.output.lines import LineReader
from hccl_py.launcher.output.screen import Console, open_screens

PRINT_S = 4.0
"""Time for remaining output after a stop, besides the ranks' time; `supervisor` waits longer."""
_FLUSH_S = 1.0
_PROMPT_S = 0.2


class JobOutput:
    """Standard output and error of this process; a service of the loop.

    While they have no reader, ranks are not read either, and wait in their next print. The owner of
    the loop ends it when all is printed (`is_drained`), or nothing more can be (`give_up`).
    """

    def __init__(self, loop: JobLoop) -> None:
        """Open both."""
        self._loop = loop
        self.out, self.err = open_screens()
        self._readers: list[LineReader] = []
        self._watched: set[LineReader] = set()
        self._writable: set[Console] = set()
        self._prompting: list[tuple[LineReader, Console, bytes, object]] = []
        loop.add(self)

    @property
    def is_lost(self) -> bool:
        """Whether the reader of standard output or error is gone."""
        return self.out.is_lost or self.err.is_lost

    @property
    def why_lost(self) -> str:
        """The kernel's error of a write to it."""
        problem = self.out.problem or self.err.problem
        return os.strerror(problem.errno or 0) if problem else ""

    @property
    def is_full(self) -> bool:
        """Whether pipes are not read because too much output is waiting."""
        return self.out.is_full or self.err.is_full

    @property
    def has_readers(self) -> bool:
        """Whether a pipe that may have more output is open."""
        return any(reader.is_open for reader in self._readers)

    @property
    def is_drained(self) -> bool:
        """Whether no pipe is open, and everything is printed."""
        return not (self.has_readers or self.out.is_waiting or self.err.is_waiting)

    def give_up(self) -> None:
        """Stop printing, and report how much was lost."""
        count = sum(screen.drop() for screen in {self.out, self.err})
        more = ", and what other hosts have not sent yet" if self.has_readers else ""
        for reader in tuple(self._readers):
            self.forget(reader)
        if count or more:
            self.say(f"\nhccl-launch: {count} bytes of output were not printed{more}")

    def say(self, text: str) -> None:
        """Print a line of the launcher's own."""
        # An exception may quote a file name that is not UTF-8.
        screen = self.out if self.err.is_lost else self.err
        screen.write(f"{text}\n".encode(errors="backslashreplace"))

    @property
    def can_show(self) -> bool:
        """Whether `show` works, and no pipe's reader writes to the same terminal."""
        return self.err.is_terminal and not self.out.is_pipe

    def show(self, status: str) -> None:
        """Show a line below all others, which replaces the previous one; empty: none."""
        self.err.show(status)

    def read(self, reader: LineReader) -> None:
        """Start to read from a pipe."""
        self._readers.append(reader)
        self._watch(reader)

    def show_prompts(
        self, reader: LineReader, screen: Console, prefix: bytes, source: object
    ) -> None:
        """Show unfinished lines that pause for a moment, after a prefix.

        `source` writes the reader's whole lines to the screen.
        """
        self._prompting.append((reader, screen, prefix, source))

    def close(self) -> None:
        """Wait a moment until everything is printed."""
        for screen in (self.out, self.err):
            screen.flush(_FLUSH_S)

    def next_s(self) -> float:
        """See `loop.Service`."""
        # Services with a later turn have also printed.
        is_new = any(one.is_waiting and one not in self._writable for one in (self.out, self.err))
        waiting = [reader.read_s + _PROMPT_S for reader, *_ in self._prompts()]
        return 0.0 if is_new else min(waiting, default=float("inf"))

    def turn(self) -> None:
        """See `loop.Service`."""
        now_s = time.monotonic()
        for prompted, screen, prefix, source in self._prompts():
            if now_s >= prompted.read_s + _PROMPT_S:
                screen.prompt(prefix, prompted.take_unfinished(), source)
        for screen in {self.out, self.err}:
            self._wait_to_write(screen)
        for reader in tuple(self._readers):
            if not reader.is_open:
                self.forget(reader)
            elif self.is_full:
                self._unwatch(reader)
            else:
                self._watch(reader)

    def forget(self, reader: LineReader) -> None:
        """Stop reading from a pipe; call it before the pipe is closed."""
        self._unwatch(reader)
        if reader in self._readers:
            self._readers.remove(reader)

    def _prompts(self) -> list[tuple[LineReader, Console, bytes, object]]:
        """Return the readers with an unfinished line."""
        self._prompting = [one for one in self._prompting if one[0].is_open]
        return [one for one in self._prompting if one[0].prompt]

    def _watch(self, reader: LineReader) -> None:
        if reader not in self._watched:
            self._watched.add(reader)
            self._loop.watch(reader.fileno(), lambda: self._on_readable(reader))

    def _on_readable(self, reader: LineReader) -> None:
        # It may reach its end and close.
        self._unwatch(reader)
        reader.on_readable()
        if reader.is_open:
            self._watch(reader)

    def _unwatch(self, reader: LineReader) -> None:
        if reader in self._watched:
            self._watched.remove(reader)
            self._loop.selector.unregister(reader.fileno())

    def _wait_to_write(self, screen: Console) -> None:
        if screen.is_waiting and screen not in self._writable:
            self._writable.add(screen)
            self._loop.selector.register(screen, selectors.EVENT_WRITE, screen.on_writable)
        elif not screen.is_waiting and screen in self._writable:
            self._writable.remove(screen)
            self._loop.selector.unregister(screen)
