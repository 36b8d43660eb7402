"""Lets torchrun report the rank that failed first.

torchrun looks for ended ranks every 0.1 s and stops the others when one has failed. It reports the
failure with the earliest time, in whole seconds: that of the rank's error file, or of the look. Of
equal times it reports the rank that it found first, and of one look the lowest rank. A rank that
ends because another one failed therefore waits until torchrun has seen the other's end, and dates
its error file after that. torchrun on another host sees only its own ranks: their error files name
the rank that failed first.
"""

import contextlib
import json
import os
import signal
import time
import traceback
from pathlib import Path
from typing import Any

from hccl_py.diagnosis.errors import AFTER_ERROR
from hccl_py.diagnosis.exceptions import describe_error, last_exception
from hccl_py.observe.flight_recorder import Membership
from hccl_py.transport.errors import CollectiveTimeoutError, CommunicatorError
from hccl_py.transport.process_lifecycle import LifecycleStage, register

_LONGEST_S = 5.0
"""How long a rank waits for the end of the rank that failed first, which may hang."""
_TURN_S = 0.01
# hccl-launch, which also sets HCCL_PROGRESS_FILE, reads in that file which rank failed first.
_FILE = "" if "HCCL_PROGRESS_FILE" in os.environ else os.environ.get("TORCHELASTIC_ERROR_FILE", "")

_failed_first: set[int] = set()
"""Processes of this host that errors have named."""


def _note_error(error: CommunicatorError, member: Membership) -> None:
    # A late rank may never end.
    is_here = error.host == member.processes[member.rank][0]
    if error.pid and is_here and not isinstance(error, CollectiveTimeoutError):
        _failed_first.add(error.pid)


def _record_exception() -> None:
    """Write the exception that ends this rank, as torch's `@record` does in decorated programs."""
    error = last_exception()
    is_rank = os.getsid(0) == os.getpid()  # not a process that a rank has started
    if not isinstance(error, Exception) or not is_rank or os.path.exists(_FILE):
        return
    details = {
        "py_callstack": "".join(traceback.format_exception(error)),
        "timestamp": str(int(time.time())),
    }
    _write({"message": {"message": describe_error(error), "extraInfo": details}})


def _await_first_failure() -> None:
    """Wait until torchrun has seen the end of the ranks that failed first, or for `_LONGEST_S`."""
    awaited = [pid for pid in _failed_first if _is_sibling(pid)]
    if (
        not awaited
        or os.getpid() in _failed_first
        or isinstance(last_exception(), KeyboardInterrupt)
    ):
        return
    stopped: list[int] = []
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        # torchrun sends it now. It must not keep this rank from writing its last lines.
        signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    deadline = time.monotonic() + _LONGEST_S
    try:
        while not stopped and any(map(_is_sibling, awaited)) and time.monotonic() < deadline:
            time.sleep(_TURN_S)
    except KeyboardInterrupt:  # the rank ends at once
        pass
    finally:
        _postdate()


def _is_sibling(pid: int) -> bool:
    """Return whether torchrun, the parent, has not seen the end of this other rank."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return int(fields[1]) == os.getppid()


def _postdate() -> None:
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):  # a format of the user's
        record = json.loads(Path(_FILE).read_text())
        record["message"]["extraInfo"]["timestamp"] = str(int(time.time()))
        _write(record)


def _write(record: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # optional for the job
        partial = Path(f"{_FILE}.partial")
        partial.write_text(json.dumps(record))
        os.replace(partial, _FILE)  # at once: this process may be killed


if _FILE:
    AFTER_ERROR.append(_note_error)
    register(LifecycleStage.EXCEPTION, at_exit=_record_exception)
    register(LifecycleStage.LAUNCHER_STORES, at_exit=_await_first_failure)
