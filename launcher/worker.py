"""Runs one rank's script as `python script.py` would, and records the exception that ends it.

The agent starts this file by its path, in place of the script: `worker.py script.py ARGS` or
`worker.py -m module ARGS`. It imports the standard library alone, so that a script still decides
what happens before torch is imported, and a script without torch starts at once.

The record is the error file of torch.distributed.elastic (TORCHELASTIC_ERROR_FILE), in the format
that its `@record` writes; a script needs no decorator.
"""

import ctypes
import faulthandler
import json
import os
import runpy
import signal
import sys
import time
import traceback
from types import TracebackType

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run the script or module that the command line names, in this process."""
    # The agent stops its ranks when it ends; this covers an agent that was killed itself.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    faulthandler.enable()
    del sys.argv[0]
    try:
        _run()
    except SystemExit as stop:
        told = stop.code not in (None, 0) and _record(f"SystemExit: {stop.code}", "")
        if told and not isinstance(stop.code, int):
            # sys.exit("reason") would print the reason, once per rank; the launcher does it once.
            sys.exit(1)
        raise
    except BaseException as error:
        # As the interpreter does with what nobody catches: at exit others are told what it was.
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        text = _format(error)
        recorded = _record(f"{type(error).__name__}: {error}", text)
        if not recorded:  # else the launcher tells, once for all ranks
            print(f"rank {os.environ.get('RANK')}: {text}", file=sys.stderr, flush=True)
        sys.exit(1)


def _run() -> None:
    # sys.path[0] is this file's folder, for which no script has asked.
    if sys.argv[0] == "-m":
        del sys.argv[0]
        sys.path[0] = os.getcwd()
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.realpath(sys.argv[0]))
        runpy.run_path(sys.argv[0], run_name="__main__")


def _format(error: BaseException) -> str:
    """Render the traceback as the script's own: without the frames of this file and of runpy."""
    frames: TracebackType | None = error.__traceback__
    while frames is not None and _is_ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


def _is_ours(filename: str) -> bool:
    return filename in (__file__, runpy.__file__, "<frozen runpy>")


def _record(message: str, text: str) -> bool:
    """Write elastic's error file; return False where that was not possible."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return False
    details = {"timestamp": str(int(time.time()))} | ({"py_callstack": text} if text else {})
    record = {"message": {"message": message, "extraInfo": details}}
    try:
        # Renamed into place: the agent may read it, or kill this process, at any moment.
        with open(path + ".partial", "w") as file:
            json.dump(record, file)
        os.replace(path + ".partial", path)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
