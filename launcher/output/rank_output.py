"""One rank's lines: prefixed on the screen, in its log file, and the last ones for a report."""

import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from hccl_py.launcher.output.lines import LineReader
from hccl_py.launcher.output.routes import Route
from hccl_py.transport.own_files import create_file, open_folder, open_private_folder

_KEPT_LINES = 40
_KEPT_LINE_BYTES = 1000


class LogFile:
    """The log file of one rank in one attempt, which only its owner may read."""

    def __init__(self, folder: Path, attempt: int, rank: int) -> None:
        """Create `folder/attempt_N/rank_N.log`, empty; raise OSError if that fails."""
        inner = f"attempt_{attempt}"
        self.path = folder / inner / f"rank_{rank}.log"
        with ExitStack() as opened:
            outer = open_folder(folder)
            opened.callback(os.close, outer)
            try:
                its = open_private_folder(outer, inner)
                opened.callback(os.close, its)
                self._descriptor = create_file(its, self.path.name)
            except OSError as error:
                error.filename = str(self.path)
                raise

    def write(self, lines: bytes) -> None:
        """Write lines; raise OSError if the disk is full."""
        while lines:
            lines = lines[os.write(self._descriptor, lines) :]

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):
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
            if Route.FILE in route and self._log is not None:
                try:
                    self._log.write(b"".join(lines))
                except OSError as error:
                    text = f"hccl-launch: {self._log.path} ends here: {error.strerror}\n"
                    show(self._prefix + text.encode())
                    self._log.close()
                    self._log = None

        reader = LineReader(descriptor, take)
        self._readers.append(reader)
        return reader

    def last_lines(self) -> list[str]:
        """Return the last lines of both streams, and what there is of unfinished ones."""
        unfinished = [reader.unfinished[:_KEPT_LINE_BYTES] for reader in self._readers]
        last = [*self._last, *(line for line in unfinished if line)]
        return [line.decode(errors="replace") for line in last[-_KEPT_LINES:]]

    def close(self) -> None:
        """Read what the pipes still hold, and close them and the log file."""
        for reader in self._readers:
            reader.close()
        if self._log is not None:
            self._log.close()
            self._log = None
