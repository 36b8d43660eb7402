"""One rank's lines: prefixed on the screen, in its log file, and the last ones for a report."""

import errno
import os
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from hccl_py.launcher.output.lines import LineReader
from hccl_py.launcher.output.routes import Route
from hccl_py.transport.own_files import create_file, open_folder, open_private_folder

_KEPT_LINES = 40
_KEPT_LINE_BYTES = 1000
# A line of one stream that is longer may be parted by lines of the other one.
_HELD_BYTES = 1 << 20


class LogFile:
    """The log file of one rank in one attempt, which only its owner may read."""

    def __init__(self, folder: Path, attempt: int, rank: int) -> None:
        """Create `folder/attempt_N/rank_N.log`, empty; raise OSError if that fails."""
        self.path = folder / f"attempt_{attempt}" / f"rank_{rank}.log"
        its = self._open(folder, attempt)
        try:
            self._descriptor = create_file(its, self.path.name)
        except OSError as error:
            error.filename = str(self.path)
            raise
        finally:
            os.close(its)

    @classmethod
    def make_folder(cls, folder: Path, attempt: int) -> None:
        """Make the folder of one attempt; raise OSError."""
        its = cls._open(folder, attempt)
        try:
            if not os.access(f"/proc/self/fd/{its}", os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
        finally:
            os.close(its)

    @staticmethod
    def _open(folder: Path, attempt: int) -> int:
        inner = f"attempt_{attempt}"
        outer = open_folder(folder)
        try:
            return open_private_folder(outer, inner)
        except OSError as error:
            error.filename = str(folder / inner)
            raise
        finally:
            os.close(outer)

    def write(self, lines: bytes) -> None:
        """Write lines; raise OSError if the disk is full."""
        while lines:
            lines = lines[os.write(self._descriptor, lines) :]

    def close(self) -> None:
        """Close the file; raise OSError if it lost something, as on a network's disk."""
        os.close(self._descriptor)


class RankOutput:
    """Takes both streams of a rank where they go.

    A log file that cannot be written does not end the job: the screen says so once.
    """

    def __init__(self, prefix: bytes, log: LogFile | None) -> None:
        """Put `prefix` before each line on the screen; take over the log file."""
        self._prefix = prefix
        self._log = log
        self._readers: list[LineReader] = []
        self._show: Callable[[bytes], None] = lambda _: None
        self._last: deque[bytes] = deque(maxlen=_KEPT_LINES)
        self.num_lines = 0

    def reader(self, descriptor: int, route: Route, show: Callable[[bytes], None]) -> LineReader:
        """Return the reader of one stream; `show` gets its lines for the screen, prefixed."""

        def take(lines: Sequence[bytes]) -> None:
            self.num_lines += len(lines)
            newest = lines[-_KEPT_LINES:]
            self._last.extend(line[:_KEPT_LINE_BYTES].rstrip(b"\n") for line in newest)
            if Route.SCREEN in route:
                show(b"".join(self._prefix + line for line in lines))

        held = b""

        def keep(data: bytes) -> None:
            nonlocal held
            held += data
            end = held.rfind(b"\n") + 1 if data and len(held) < _HELD_BYTES else len(held)
            self._write(held[:end])
            held = held[end:]

        self._show = show
        reader = LineReader(descriptor, take, keep if Route.FILE in route else lambda _: None)
        self._readers.append(reader)
        return reader

    def drain(self) -> None:
        """Read what the pipes hold now."""
        for reader in self._readers:
            reader.drain()

    def last_lines(self) -> list[str]:
        """Return the last lines of both streams, and what there is of unfinished ones."""
        unfinished = [reader.unfinished[:_KEPT_LINE_BYTES] for reader in self._readers]
        last = [*self._last, *(line for line in unfinished if line)]
        return [line.decode(errors="replace") for line in last[-_KEPT_LINES:]]

    def close(self) -> None:
        """Read what the pipes still hold, and close them and the log file."""
        for reader in self._readers:
            reader.close()
        self._end_log(None)

    def _write(self, data: bytes) -> None:
        if self._log is not None and data:
            try:
                self._log.write(data)
            except OSError as error:
                self._end_log(error)

    def _end_log(self, problem: OSError | None) -> None:
        """Close the log file, and say on the screen what is wrong with it."""
        log, self._log = self._log, None
        if log is None:
            return
        try:
            log.close()
        except OSError as error:
            problem = problem or error
        if problem is not None:
            text = f"hccl-launch: {log.path} ends here: {problem.strerror}\n"
            self._show(self._prefix + text.encode())
