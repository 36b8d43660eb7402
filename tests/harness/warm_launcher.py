"""A process that has imported torch's launcher once, and forks a hccl-launch for each job.

To import it takes longer than a small job. What is forked is the command from its `main` on, with
the environment and output of its own; `launching.py` asks for it, one job at a time.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
import tempfile
import time
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36
_GONE_S = 5.0


def _be_the_command(job: dict[str, Any]) -> None:
    """Become a hccl-launch that was just started; returns never."""
    os.environ.clear()
    os.environ.update(job["env"])
    tempfile.tempdir = None  # TMPDIR may be another one
    for descriptor, path in ((1, job["stdout"]), (2, job["stderr"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    from hccl_py.launcher.main import main

    sys.argv = ["hccl-launch", *job["arguments"]]
    sys.exit(main())


def _end(pid: int) -> tuple[int, int]:
    """Wait for a job; return its exit code and how many of its processes went on for too long."""
    _, status = os.waitpid(pid, 0)
    deadline_s = time.monotonic() + _GONE_S
    orphans = 1
    while orphans and time.monotonic() < deadline_s:
        try:
            # Whoever loses its parent becomes this process's child.
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(0.01)
        except ChildProcessError:
            orphans = 0
    return os.waitstatus_to_exitcode(status), orphans


def _serve() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # no thread before the fork
    import torch.distributed.run  # noqa: F401

    import hccl_py.launcher.job  # noqa: F401

    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    for line in requests:
        pid = os.fork()
        if pid == 0:
            gc.freeze()  # to go through torch's objects again takes 0.1 s, at every collection
            signal.signal(signal.SIGINT, signal.default_int_handler)
            _be_the_command(json.loads(line))
        print(json.dumps(_end(pid)), file=answers, flush=True)


if __name__ == "__main__":
    _serve()
