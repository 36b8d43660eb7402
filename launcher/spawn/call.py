"""`hccl_py.spawn`: runs a function as ranks on this machine, also from a notebook.

The ranks are new processes of hccl-launch, never forks: a notebook's process has threads, of torch
and others, that a fork would lose. The function travels as a pickle, by cloudpickle if it is not in
an importable module.
"""

import codecs
import json
import linecache
import os
import pickle
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hccl_py.installation import pip_install
from hccl_py.launcher.failure import RankFailure, title
from hccl_py.transport.arguments import seconds, whole_number, wrong
from hccl_py.transport.errors import HcclError, InvalidArgumentError, RankFailedError

CALL, FAILURE = "call", "failure"
"""Files in the folder of a job: what the ranks call, and the first failure."""
_JOB = "hccl_py.launcher.spawn.job"
_MOST_RANKS = 4096
_READ_BYTES = 64 << 10


class _RankTraceback(Exception):  # noqa: N818  # it shows a traceback of another process
    """The traceback of the rank that failed first."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def spawn(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    nproc: int,
    timeout_s: float | None = None,
    env: Mapping[str, str] | None = None,
) -> list[Any]:
    """Call `function(*args, **kwargs)` in `nproc` new processes, the ranks of a job.

    Each rank finds RANK, WORLD_SIZE and the rest in its environment, so `Communicator()` and
    `init_process_group("hccl")` need no arguments. What ranks print appears here. The first rank
    that fails ends the others, as does Ctrl-C.

    Args:
        function: may be defined in a notebook or script, which needs the package cloudpickle.
        args, kwargs: of the function; must pickle.
        nproc: number of ranks.
        timeout_s: for everything, the start included; None: no limit.
        env: variables of the ranks, besides this process's.

    Returns:
        What each rank returned, by rank; it must pickle.

    Raises:
        RankFailedError: a rank raised or died; its traceback is the cause.
        TimeoutError: a rank was still running after `timeout_s`.
        InvalidArgumentError: an argument is wrong, or cannot be pickled.
    """
    __tracebackhide__ = True  # by IPython: the cell and the cause are what matters
    if not callable(function):
        raise wrong("function", "a function", function)
    nproc = whole_number("nproc", nproc, "1 or more", range(1, _MOST_RANKS + 1))
    limit_s = None if timeout_s is None else seconds("timeout_s", timeout_s, above_zero=True)
    with tempfile.TemporaryDirectory(prefix="hccl-spawn-") as name:
        folder = Path(name)
        (folder / CALL).write_bytes(_packed_call(function, tuple(args), dict(kwargs or {})))
        command = [sys.executable, "-m", _JOB, name, str(nproc), str(os.getpid())]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            env={**os.environ, **(env or {})},
            start_new_session=True,  # Ctrl-C reaches this process, which forwards it
        )
        with process:
            try:
                in_time = _follow(process, limit_s)
            finally:
                process.kill()  # without effect once it has ended
        missing = [rank for rank in range(nproc) if not result_file(folder, rank).exists()]
        if not in_time:
            raise TimeoutError(f"spawn: of {nproc} ranks, {missing} were running after {limit_s} s")
        if (folder / FAILURE).exists():
            failure = RankFailure(**json.loads((folder / FAILURE).read_text()))
            raise _error(failure, nproc) from _cause(failure)
        if missing or process.returncode:
            raise HcclError(
                f"spawn: no result of the ranks {missing}, and exit code {process.returncode}; "
                "what hccl-launch printed says why"
            )
        return [pickle.loads(result_file(folder, rank).read_bytes()) for rank in range(nproc)]


def result_file(folder: Path, rank: int) -> Path:
    """Return the file with what a rank returned."""
    return folder / f"result_{rank}"


def packed(value: Any) -> bytes:
    """Return a pickle, with functions and classes of the main program by value if possible."""
    if find_spec("cloudpickle") is not None:
        from hccl_py.launcher.spawn.pickler import dumps

        return dumps(value)
    made = pickle.dumps(value)
    if b"__main__" in made:
        raise pickle.PicklingError(
            "what is defined in a notebook or script needs the package cloudpickle: "
            f"{pip_install('notebook')}"
        )
    return made


def _packed_call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> bytes:
    try:
        call = packed((function, args, kwargs))
    except Exception as error:  # of any __reduce__
        raise InvalidArgumentError(
            f"function, args and kwargs: expected what can be pickled: {error}"
        ) from error
    # Lines of cells, which are in no file, for tracebacks.
    cells = {name: entry for name, entry in linecache.cache.items() if entry[1:2] == (None,)}
    return pickle.dumps((sys.path, cells)) + call


def _follow(process: "subprocess.Popen[bytes]", limit_s: float | None) -> bool:
    """Print what the ranks print until their end; return whether that came in time.

    Ctrl-C ends the ranks; a second one kills them.
    """
    end_s = None if limit_s is None else time.monotonic() + limit_s
    in_time, interrupt = True, False
    with selectors.DefaultSelector() as selector:
        decoders = {process.stdout: sys.stdout, process.stderr: sys.stderr}
        for pipe, screen in decoders.items():
            assert pipe is not None
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            selector.register(pipe, selectors.EVENT_READ, (decoder, screen))
        while selector.get_map():
            try:
                left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
                for ready, _ in selector.select(left_s):
                    _print_some(selector, ready)
                if end_s is not None and time.monotonic() >= end_s:
                    in_time, end_s = False, None
                    process.send_signal(signal.SIGTERM)
            except KeyboardInterrupt:
                interrupt = True
                process.send_signal(signal.SIGINT)
    process.wait()
    if interrupt:
        raise KeyboardInterrupt
    return in_time


def _print_some(selector: selectors.BaseSelector, ready: selectors.SelectorKey) -> None:
    decoder, screen = ready.data
    data = os.read(ready.fd, _READ_BYTES)
    screen.write(decoder.decode(data, final=not data))
    screen.flush()
    if not data:
        selector.unregister(ready.fileobj)


def _error(failure: RankFailure, nproc: int) -> RankFailedError:
    how = title(failure, nproc).removeprefix("hccl-launch: ")
    message = failure.message or failure.reason
    made = RankFailedError(f"{how}: {message}" if message else how)
    made.rank, made.kind, made.exit_code = failure.rank, failure.kind, failure.exit_code
    return made


def _cause(failure: RankFailure) -> _RankTraceback | None:
    return _RankTraceback(failure.traceback.rstrip()) if failure.traceback else None
