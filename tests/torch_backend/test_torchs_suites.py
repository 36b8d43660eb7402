"""Torch's own suites of backends, with hccl in the place of gloo: unchanged but for the name.

    HCCL_TEST_PYTORCH=~/pytorch pytest -m nightly --section torch

The variable names a checkout of pytorch at the tag of the installed torch, which has `expecttest`.
A test that gloo passes must pass.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from hccl_py.torch_backend.backend import IS_SUPPORTED

CHECKOUT = os.environ.get("HCCL_TEST_PYTORCH", "")
SUITES = (
    *("test_c10d_pybackend.py", "test_c10d_fault_tolerance.py", "test_c10d_collectives.py"),
    *("test_c10d_p2p.py", "test_c10d_process_group.py", "test_c10d_nan_check_hook.py"),
)
_LIMIT_S = 3600


def passed(suite: str, backend: str, folder: Path) -> set[str]:
    """Run a copy of the suite for `backend`; return the names of the tests that passed."""
    source = Path(CHECKOUT).expanduser() / "test/distributed"
    for name in (suite, "c10d_backend_common.py"):
        if (source / name).exists():
            text = (source / name).read_text()
            (folder / name).write_text(text.replace('"gloo"', f'"{backend}"'))
    report = folder / "report.xml"
    # Torch's hooks, which some of the tests attach, need hccl as a backend of torch's group.
    environment = {**os.environ, "HCCL_NATIVE_BACKEND": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", suite]
    subprocess.run(
        [*command, f"--junitxml={report}"], cwd=folder, env=environment, timeout=_LIMIT_S
    )
    cases = ElementTree.parse(report).iter("testcase")
    ends = {"failure", "error", "skipped"}
    names = (
        f"{case.get('classname')}.{case.get('name')}"
        for case in cases
        if not ends & {part.tag for part in case}
    )
    return {name.replace(backend.title(), "Backend", 1) for name in names}


@pytest.mark.nightly("torch")
@pytest.mark.timeout(2 * _LIMIT_S)
@pytest.mark.skipif(not CHECKOUT, reason="HCCL_TEST_PYTORCH names no checkout of pytorch")
@pytest.mark.skipif(not IS_SUPPORTED, reason="this torch has no such suites")
@pytest.mark.parametrize("suite", SUITES)
def test_torchs_suite_passes_as_on_gloo(suite: str, tmp_path: Path) -> None:
    if not (Path(CHECKOUT).expanduser() / "test/distributed" / suite).exists():
        pytest.skip("this torch lacks it")
    folders = {name: tmp_path / name for name in ("gloo", "hccl")}
    found = {}
    for backend, folder in folders.items():
        folder.mkdir()
        found[backend] = passed(suite, backend, folder)
        shutil.rmtree(folder)
    assert found["gloo"], "no test ran"
    assert found["gloo"] - found["hccl"] == set(), "gloo passes these"
