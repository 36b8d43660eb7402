"""The C programs under valgrind: only reports of Python and the loader are left out."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from programs import HERE, compiled, run_ranks

PROGRAMS = (("errors",), ("communicators",), ("synapse",), ("collectives", "3"))
"""With arguments: a few counts of elements, since every call is made of every type."""

LIMIT_S = 900.0

pytestmark = [
    pytest.mark.nightly("calls"),
    pytest.mark.timeout(1000),
    pytest.mark.skipif(shutil.which("valgrind") is None, reason="there is no valgrind"),
]


@pytest.mark.parametrize("words", PROGRAMS, ids=lambda words: words[0])
def test_valgrind_finds_no_error(words: Sequence[str], tmp_path: Path) -> None:
    program = compiled(HERE / f"{words[0]}.c", tmp_path)
    # The search for leaks would read all of registered memory, which then needs its pages.
    quiet = "--quiet", "--leak-check=no", "--error-exitcode=9"
    # Python's own allocator hides from valgrind what is freed.
    own = {"PYTHONMALLOC": "malloc"}
    known = f"--suppressions={HERE / 'python.supp'}"
    command = ["valgrind", *quiet, known, program, *words[1:]]
    ended = run_ranks(command, 2, tmp_path, own, limit_s=LIMIT_S)
    assert all(code == 0 and "is right" in output for code, output in ended), ended
