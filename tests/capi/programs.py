"""Compiles programs in C with the installed headers, and runs them as ranks."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hccl_py.capi.config import folder

HERE = Path(__file__).parent
LIMIT_S = 200.0
FAILURES = "mismatch", "mismatch-on-stream", "killed", "polled", "ended", "abort", "deadline"
"""The cases of failures.c; the last of three ranks is killed in some."""
PREFIX = Path(os.environ.get("HCCL_TEST_C_PREFIX", folder()))
INCLUDE, LIB = PREFIX / "include", PREFIX / "lib"
FLAGS = (f"-I{INCLUDE}", f"-I{INCLUDE / 'hccl'}", *os.environ.get("HCCL_TEST_C_FLAGS", "").split())
LINK = (f"-L{LIB}", "-lSynapse", "-lhccl", "-lpthread", f"-Wl,-rpath,{LIB}")
STRICT = ("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror")


def compiler(name: str = "cc") -> str:
    found = shutil.which(name)
    assert found, f"there is no {name}, which also compiled the engine"
    return found


def compiled(source: Path, to: Path, *, flags: Sequence[str] = STRICT, name: str = "cc") -> Path:
    program = to / source.stem
    words = [compiler(name), *flags, *FLAGS, str(source), *LINK, "-o", str(program)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    return program


def run_ranks(
    command: Sequence[object],
    num_ranks: int,
    at: Path,
    extra: Mapping[str, str] | None = None,
    limit_s: float = LIMIT_S,
) -> list[tuple[int, str]]:
    """Run ranks to their ends; return the exit code and the output of each."""
    environ = {**os.environ, "TEST_FOLDER": str(at), "WORLD_SIZE": str(num_ranks), **(extra or {})}
    for name in ("HCCL_COMM_ID", "MASTER_ADDR", "MASTER_PORT"):
        if name not in (extra or {}):
            environ.pop(name, None)
    environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
    running = []
    for rank in range(num_ranks):
        output = (at / f"output-{rank}").open("w+")
        words = [str(word) for word in command]
        env = {**environ, "RANK": str(rank)}
        running.append(
            (subprocess.Popen(words, env=env, stdout=output, stderr=subprocess.STDOUT), output)
        )
    ended = []
    for process, output in running:
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        output.seek(0)
        ended.append((process.returncode, output.read()))
        output.close()
    return ended
