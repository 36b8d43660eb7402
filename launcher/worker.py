"""Runs one rank's script as `python script.py` would, and records the exception that ends it.

The agent starts this file by its path, instead of the script: `worker.py script.py ARGS` or
`worker.py -m module ARGS`. It imports only the standard library, so the script controls what
happens before torch is imported, and a script without torch starts fast. With HCCL_HABANA_SHIM it
also imports that shim, without torch: a script may name Habana's modules first.

The record is the error file of torch.distributed.elastic (TORCHELASTIC_ERROR_FILE), in the format
that its `@record` writes, and the exit code; a script needs no decorator. sys.exit(3) is recorded
without a message.
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

_PR_SET_PDEATHSIG = 1
_SPAWN = os.path.join(os.path.dirname(__file__), "spawn", "rank.py")
_TOO_LARGE = 1 << 63  # for an exit code: the interpreter ends with 255
# Errors of these packages are shown at the user's line, without the packages' frames.
_LIBRARIES = ("torch", "hccl_py", "hccl_py.transport")


def main() -> None:
    """Run the script or module that the command line names, in this process."""
    # The agent stops its ranks when it ends; this covers a killed agent.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    faulthandler.enable()
    del sys.argv[0]
    # hccl-launch's own agent, which reads this file, also prints the record.
    has_agent = "HCCL_PROGRESS_FILE" in os.environ  # hccl_py removes it
    # torch.distributed.run, which starts the ranks of elastic jobs, does not set it.
    os.environ.setdefault("NODE_RANK", os.environ.get("GROUP_RANK", "0"))
    try:
        _run()
    except SystemExit as stop:
        if isinstance(stop.code, int | None):
            # Other ranks may lose this one, and end, before its interpreter has ended.
            code = stop.code or 0
            if code := code & 0xFF if -_TOO_LARGE <= code < _TOO_LARGE else 0xFF:
                _record("SystemExit", "", "", code)
            raise
        # sys.exit("reason") prints the reason in every rank; the launcher prints it once.
        is_recorded = _record("SystemExit", _shown(stop.code), "", 1)
        if not (is_recorded and has_agent):
            raise
        sys.exit(1)
    except BaseException as error:
        # The interpreter sets these for an exception that ends the program. hccl_py reads them at
        # exit and reports the exception to the other ranks.
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        text = _format(error)
        name = type(error).__name__
        is_interrupt = isinstance(error, KeyboardInterrupt)
        code = -signal.SIGINT if is_interrupt else 1
        is_recorded = _record(name, f"{name}: {_shown(error)}", text, code)
        if not (is_recorded and has_agent):
            print(f"rank {os.environ.get('RANK')}: {text}", file=sys.stderr, flush=True)
        if is_interrupt:  # the interpreter then ends by the signal
            sys.excepthook = lambda *_: None
            raise
        sys.exit(1)


def _run() -> None:
    # sys.path[0] is the folder of this file, which the script must not see.
    if sys.argv[0] == "-m":
        del sys.argv[0]
        sys.path[0] = os.getcwd()
        _start_shim()
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.realpath(sys.argv[0]))
        _start_shim()
        runpy.run_path(sys.argv[0], run_name="__main__")


def _start_shim() -> None:
    if os.environ.get("HCCL_HABANA_SHIM"):
        from hccl_py.integrations.habana import start

        start()


def _format(error: BaseException) -> str:
    rendered = traceback.TracebackException(type(error), error, error.__traceback__)
    frames = rendered.stack
    while frames and frames[0].filename in (__file__, _SPAWN, runpy.__file__, "<frozen runpy>"):
        del frames[0]
    if type(error).__module__.partition(".")[0] in _LIBRARIES:
        folders = tuple(
            folder + os.sep
            for name in _LIBRARIES
            for folder in getattr(sys.modules.get(name), "__path__", ())
        )
        while len(frames) > 1 and frames[-1].filename.startswith(folders):
            del frames[-1]
    cause = error.__cause__ or error.__context__
    if cause is not None and _shown(cause) in _shown(error):
        rendered.__cause__ = rendered.__context__ = None
    return "".join(rendered.format())


def _shown(value: object) -> str:
    try:
        return str(value)
    except Exception as error:
        return f"<{type(value).__name__} whose __str__ raises {type(error).__name__}>"


def _record(kind: str, message: str, text: str, exit_code: int) -> bool:
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return False
    stamp = str(int(time.time()))
    details = {"timestamp": stamp, "py_callstack": text, "type": kind, "pid": os.getpid()}
    record = {"message": {"message": message, "extraInfo": {**details, "exit_code": exit_code}}}
    try:
        # The rename is atomic: the agent may read it, or kill this process, at any moment.
        with open(path + ".partial", "w") as file:
            json.dump(record, file)
        os.replace(path + ".partial", path)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
