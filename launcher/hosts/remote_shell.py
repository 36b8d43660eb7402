"""The shell commands on another host before the agent starts, and their errors.

ssh's command line is constant, so no path needs quotes for a login shell, which may be bash, csh or
fish. `sh` reads one line from stdin and runs it. That line checks the working directory, the Python
and its hccl-py, writes `BEGINS` to stderr and becomes the agent.
"""

import posixpath
import shlex
from collections.abc import Mapping

from hccl_py.installation import PACKAGE, install_elsewhere, version_of
from hccl_py.launcher.exit_codes import UsageError

COMMAND = "exec sh -c 'IFS= read -r line && eval \"$line\"'"
"""The command for ssh. `read` reads single bytes from a pipe, so the agent gets the rest."""

BEGINS = b"hccl-launch: the agent begins\n"
"""Separates the output of ssh and the shell on stderr from the agent's."""

_NO_FOLDER, _NO_PYTHON, _NO_PACKAGE, _OTHER_VERSION = 91, 92, 93, 94
_VERSION = "import hccl_py.launcher, importlib.metadata as m; print(m.version('hccl-py'))"
# Python itself needs these before it can read the others.
_FOR_PYTHON = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME")


def script(working_directory: str, python: str, module: str, environment: Mapping[str, str]) -> str:
    """Return the line for the shell.

    Raises:
        UsageError: a word contains a line break.
    """
    if "/" in python:
        python = posixpath.join(working_directory, python)
    folder, interpreter = shlex.quote(working_directory), shlex.quote(python)
    exports = [f"{x}={shlex.quote(environment[x])}" for x in _FOR_PYTHON if x in environment]
    steps = [
        f"cd -- {folder} || exit {_NO_FOLDER}",
        # A folder hccl_py of the working directory must not hide the installed package.
        "cd /",
        *([f"export {' '.join(exports)}"] if exports else []),
        f"command -v {interpreter} >/dev/null || exit {_NO_PYTHON}",
        f"found=$({interpreter} -c {shlex.quote(_VERSION)} </dev/null) || exit {_NO_PACKAGE}",
        f'test "$found" = {shlex.quote(version_of(PACKAGE))} || '
        f'{{ echo "$found" >&2; exit {_OTHER_VERSION}; }}',
        f"echo {shlex.quote(BEGINS.decode().rstrip())} >&2",
        f"exec {interpreter} -m {shlex.quote(module)}",
    ]
    line = "; ".join(steps)
    if "\n" in line:
        raise UsageError("expected no line breaks in the working directory, Python and its paths")
    return line


def explain(code: int, last_line: str, working_directory: str, python: str) -> str | None:
    """Return what a host lacks, by its shell's exit code; None: it ended for another reason."""
    install = install_elsewhere(python)
    return {
        _NO_FOLDER: f"cannot enter the working directory {working_directory}; make it there, or "
        "name another one",
        _NO_PYTHON: f"no Python {python}; make the same virtual environment there, or name another "
        "Python",
        _NO_PACKAGE: f"{python} cannot import hccl-py ({last_line}); {install}",
        _OTHER_VERSION: f"{python} has hccl-py {last_line}, not {version_of(PACKAGE)}; {install}",
    }.get(code)
