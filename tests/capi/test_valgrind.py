"""The C programs under valgrind: only reports of Python and the loader are left out."""

import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from programs import FAILURES, HERE, compiled, run_ranks

PROGRAMS = (("errors",), ("communicators",), ("synapse",), ("collectives", "3"))
"""With arguments: a few counts of elements, since every call is made of every type."""

LIMIT_S = 900.0

pytestmark = [
    pytest.mark.nightly("calls"),
    pytest.mark.timeout(1000),
    pytest.mark.skipif(shutil.which("valgrind") is None, reason="there is no valgrind"),
]


def under_valgrind(words: Sequence[str], num_ranks: int, at: Path) -> list[tuple[int, str]]:
    program = compiled(HERE / f"{words[0]}.c", at)
    # The search for leaks would read all of registered memory, which then needs its pages.
    quiet = "--quiet", "--leak-check=no", "--error-exitcode=9"
    known = f"--suppressions={HERE / 'python.supp'}"
    # Python's own allocator hides from valgrind what is freed.
    own = {"PYTHONMALLOC": "malloc"}
    command = ["valgrind", *quiet, known, program, *words[1:]]
    return run_ranks(command, num_ranks, at, own, limit_s=LIMIT_S)


@pytest.mark.parametrize("words", PROGRAMS, ids=lambda words: words[0])
def test_valgrind_finds_no_error(words: Sequence[str], tmp_path: Path) -> None:
    ended = under_valgrind(words, 2, tmp_path)
    assert all(code == 0 and "is right" in output for code, output in ended), ended


@pytest.mark.parametrize("case", FAILURES)
def test_valgrind_finds_no_error_in_a_failure(case: str, tmp_path: Path) -> None:
    """On two cores that little else uses: the program has limits of seconds."""
    *others, (code, output) = under_valgrind(("failures", case), 3, tmp_path)
    assert all(code == 0 and "is right" in output for code, output in others), others
    assert code == (-signal.SIGKILL if case in ("killed", "polled") else 0), output
