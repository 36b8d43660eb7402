"""The check of libhccl's C ABI, `.ci/abi`: what it passes, and what it does not."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "hccl_py" / "capi" / "csrc"
LIMIT_S = 250.0

pytestmark = [
    pytest.mark.nightly("calls"),
    pytest.mark.skipif(shutil.which("abidiff") is None, reason="there is no abidiff"),
]


def compared(sources: Path) -> subprocess.CompletedProcess[str]:
    words = [ROOT / ".ci" / "abi", sources]
    return subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S)


def test_abi_is_that_of_the_last_release() -> None:
    done = compared(SOURCES)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("file", "pattern", "changed", "named"),
    [
        ("include/hccl/hccl.h", r"double timeout_s;", "float timeout_s;", "timeout_s"),
        ("include/hccl/hccl.h", r"hcclMin = 2,", "hcclMin = 6,", "hcclMin"),
        ("libhccl/hccl.map", r"HCCL_2\.6", "HCCL_2.7", "hcclAllReduce@@HCCL_2.6"),
        ("libhccl/hccl.map", r"hccl\*;", "hcclComm*; hcclGet*;", "hcclAllReduce"),
    ],
    ids=["field", "value", "version", "function"],
)
def test_change_that_breaks_programs_is_found(
    file: str, pattern: str, changed: str, named: str, tmp_path: Path
) -> None:
    copy = tmp_path / "csrc"
    shutil.copytree(SOURCES, copy)
    text, count = re.subn(pattern, changed, (copy / file).read_text())
    assert count == 1
    (copy / file).write_text(text)
    done = compared(copy)
    assert done.returncode != 0 and named in done.stdout, done.stdout + done.stderr
