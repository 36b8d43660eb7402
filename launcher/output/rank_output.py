"""One rank's lines: prefixed on the screen, in its log file, and the last ones for a report."""

import os
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hccl_py.launcher.exit_codes import UsageError
from hccl_py.launcher.output.lines import LineReader
from hccl_py.launcher.output.options import Route
from hccl_py.transport.own_files import create_file, open_folder, open_private_folder

if TYPE_CHECKING:
    from hccl_py.launcher.job.streams import JobOutput
    from hccl_py.launcher.output.screen import Console

_KEPT_LINES = 40
_KEPT_LINE_BYTES = 1000
# A longer line of one stream may be split by lines of the other.
_HELD_BYTES = 1 << 20


@contextmanager
def attempt_folder(folder: Path, attempt: int) -> Iterator[int]:
    """Open the folder of one attempt, which only its owner may read; raise OSError."""
    inner = f"attempt_{attempt}"
    outer = open_folder(folder.absolute())
    try:
        its = open_private_folder(outer, inner)
    except OSError as error:
        error.filename = str(folder / inner)
        raise
    finally:
        os.close(outer)
    try:
        yield its
    finally:
        os.close(its)


def check_folder(log_dir: str | None) -> None:
    """Make the folder of log files; UsageError: files cannot be written there."""
    if log_dir is None:
        return
    folder = Path(log_dir).absolute()
    try:
        with attempt_folder(folder, 0) as its:
            if not os.access(f"/proc/self/fd/{its}", os.W_OK | os.X_OK):
                raise PermissionError(None, "Permission denied")
    except OSError as error:
        raise UsageError(
            f"--log-dir: expected a folder for files, cannot make {folder}/attempt_0 on "
            f"{socket.gethostname()}: {error.strerror}"
        ) from error


class LogFile:
    """The log file of one rank in one attempt, which only its owner may read."""

    def __init__(self, folder: Path, attempt: int, rank: int) -> None:
        """Create `folder/attempt_N/rank_N.log`, empty; raise OSError if that fails."""
        self.path = folder.absolute() / f"attempt_{attempt}" / f"rank_{rank}.log"
        with attempt_folder(folder, attempt) as its:
            try:
                self._descriptor = create_file(its, self.path.name)
            except OSError as error:
                error.filename = str(self.path)
                raise

    def write(self, lines: bytes) -> None:
        """Write lines; raise OSError if the disk is full."""
        while lines:
            lines = lines[os.write(self._descriptor, lines) :]

    def close(self) -> None:
        """Close the file; OSError: data was lost, as on a network disk."""
        os.close(self._descriptor)


class RankOutput:
    """Sends both streams of a rank to their destinations.

    A log file that cannot be written does not end the job; the screen shows the problem once.

    Attributes:
        num_lines: how many lines the rank has printed.
    """

    def __init__(self, streams: "JobOutput", prefix: bytes, log: LogFile | None) -> None:
        """Put `prefix` before each line on the screen; take over the log file."""
        self._streams, self._prefix, self._log = streams, prefix, log
        self.log_path = str(log.path) if log else ""
        self._readers: list[LineReader] = []
        self._screen: Console | None = None
        self._last: deque[bytes] = deque(maxlen=_KEPT_LINES)
        self.num_lines = 0

    def read(self, descriptor: int, route: Route, screen: "Console", *, has_user: bool) -> None:
        """Start to read a stream; the screen shows its prompts if a user may answer."""

        def take(lines: Sequence[bytes]) -> None:
            self.num_lines += len(lines)
            newest = lines[-_KEPT_LINES:]
            self._last.extend(line[:_KEPT_LINE_BYTES].rstrip(b"\n") for line in newest)
            if Route.SCREEN in route:
                screen.write(b"".join(self._prefix + line for line in lines), self)

        held = b""

        def keep(data: bytes) -> None:
            nonlocal held
            held += data
            end = held.rfind(b"\n") + 1 if data and len(held) < _HELD_BYTES else len(held)
            self._write(held[:end])
            held = held[end:]

        self._screen = screen
        reader = LineReader(descriptor, take, keep if Route.FILE in route else lambda _: None)
        self._readers.append(reader)
        self._streams.read(reader)
        if has_user and Route.SCREEN in route:
            self._streams.show_prompts(reader, screen, self._prefix, self)

    def end(self) -> list[str]:
        """Read the rank's remaining output; return its last lines, unfinished ones included.

        Its child processes may still write to the same pipes.
        """
        for reader in self._readers:
            self._streams.forget(reader)
            reader.drain()
            if reader.is_open:
                self._streams.read(reader)
        unfinished = [reader.unfinished[:_KEPT_LINE_BYTES] for reader in self._readers]
        last = [*self._last, *(line for line in unfinished if line)]
        return [line.decode(errors="replace") for line in last[-_KEPT_LINES:]]

    def close(self) -> None:
        """Read the rest of the pipes, and close them and the log file. Idempotent."""
        for reader in self._readers:
            self._streams.forget(reader)
            reader.close()
        self._end_log(None)

    def _write(self, data: bytes) -> None:
        if self._log is not None and data:
            try:
                self._log.write(data)
            except OSError as error:
                self._end_log(error)

    def _end_log(self, problem: OSError | None) -> None:
        """Close the log file, and print its problem on the screen."""
        log, self._log = self._log, None
        if log is None:
            return
        try:
            log.close()
        except OSError as error:
            problem = problem or error
        if problem is not None and self._screen is not None:
            text = f"hccl-launch: {log.path} ends here: {problem.strerror}\n"
            self._screen.write(self._prefix + text.encode(), self)
