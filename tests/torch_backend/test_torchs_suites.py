"""Torch's own suites of backends, with hccl in the place of gloo: unchanged but for the name.

    HCCL_TEST_PYTORCH=~/pytorch pytest -m nightly --section torch

The variable names a checkout of pytorch at the tag of the installed torch; the suite IN_WHEEL needs
none. All need `expecttest`. A test that gloo passes must pass. The suites skip what a backend says
that it cannot; hccl can more than gloo (CAN), and must pass that as well.
"""

import functools
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from hccl_py.torch_backend.groups.backend import IS_SUPPORTED

CHECKOUT = Path(os.environ.get("HCCL_TEST_PYTORCH", "")).expanduser()

IN_WHEEL = "test_distributed"
"""Nearly three hundred tests of all of torch.distributed and of DDP."""

OF_GROUPS = (
    *("test_c10d_collectives", "test_c10d_p2p", "test_c10d_process_group"),
    "test_c10d_fault_tolerance",
)
OF_BACKENDS = (
    *("test_c10d_pybackend", "test_c10d_hooks", "test_c10d_nan_check_hook"),
    "test_c10d_flight_recorder_hook",
)
"""Suites that need hccl as a backend of torch's group, for torch's hooks around its calls."""

CAN = {
    "alone": ("supports_coalescing", "supports_dropped_p2p_work", "supports_gather_single"),
    "backend": ("supports_coalescing", "supports_dropped_p2p_work"),
}
"""By kind of group what the suites' lists say of hccl beside what they say of gloo."""

_OWN_WORDS = "hccl names the missing rank in its own words, and the test wants gloo's"
REMAIN = {
    f"{kind}/{test}": reason
    for kind in CAN
    for test, reason in (
        (
            "test_c10d_collectives.BackendCollectivesTest.test_noncontiguous_all_to_all_error",
            "hccl takes strided tensors, and the test wants an error for them",
        ),
        (
            f"{IN_WHEEL}.BackendTest.test_ddp_logging_data_cpu",
            "DDP logs gloo's settings, and the test wants them for hccl",
        ),
        (f"{IN_WHEEL}.BackendTest.test_monitored_barrier_gloo", _OWN_WORDS),
        (f"{IN_WHEEL}.BackendTest.test_monitored_barrier_gloo_rank_0_timeout", _OWN_WORDS),
        (f"{IN_WHEEL}.BackendTest.test_monitored_barrier_gloo_subgroup", _OWN_WORDS),
    )
}
"""Tests that hccl does not pass, and why: `kind/suite.Class.test`. One that passes is an error."""

_OF_WHEEL = """
import os
from torch.testing._internal.common_distributed import DistTestCases

for backends in (*DistTestCases.backend_feature.values(), *DistTestCases.skip_collective.values()):
    if 'gloo' in backends:  # here the name stays
        backends.add("gloo")
DistTestCases.backend_feature['plugin'].add("gloo")  # those without a check of their own
os.environ.update(BACKEND="gloo", WORLD_SIZE="3")
from distributed_test import DistributedTest, TestDistBackend

class BackendTest(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._spawn_processes()

del DistributedTest, TestDistBackend
"""

_ABILITIES = """
import dataclasses
_FIELDS = {field.name for field in dataclasses.fields(BackendConfig)}
C10D_BACKENDS = tuple(
    dataclasses.replace(one, **dict.fromkeys(_FIELDS.intersection(%r), True))
    if one.name == "hccl" else one
    for one in C10D_BACKENDS
)
"""

_CONFTEST = """
import os
import torch.multiprocessing
from torch.testing._internal.common_distributed import MultiProcessTestCase

context = torch.multiprocessing.get_context("forkserver")
context.set_forkserver_preload([%r, "hccl_py.torch_backend.groups.lifecycle"])


def call(environment, target, *arguments, **named):
    os.environ.update(environment)
    target(*arguments, **named)


def process(target, args, **named):
    return context.Process(target=call, args=(dict(os.environ), target, *args), **named)


MultiProcessTestCase._spawn_processes = lambda self: self._start_processes(process)
"""
"""Ranks are forked from a process that has imported all; else most of the time goes there."""

_LIMIT_S = 3600


def sources(suite: str, abilities: Sequence[str]) -> dict[str, str]:
    """Return the text of a suite's files by their names."""
    if suite == IN_WHEEL:
        tests = Path(torch.__file__).parent / "testing/_internal/distributed/distributed_test.py"
        return {tests.name: tests.read_text(), f"{suite}.py": _OF_WHEEL}
    folder = CHECKOUT / "test/distributed"
    files = [folder / f"{suite}.py", folder / "c10d_backend_common.py"]
    texts = {file.name: file.read_text() for file in files}
    if abilities:
        texts[files[1].name] += _ABILITIES % (abilities,)
    return texts


def ends(suite: str, backend: str, kind: str, abilities: Sequence[str] = ()) -> dict[str, str]:
    """Run a copy of the suite for `backend`; return how each test ended."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in sources(suite, abilities).items():
            Path(folder, name).write_text(text.replace('"gloo"', f'"{backend}"'))
        Path(folder, "conftest.py").write_text(_CONFTEST % suite)
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{suite}.py"]
        environment = {**os.environ, "HCCL_NATIVE_BACKEND": str(int(kind == "backend"))}
        subprocess.run(
            [*command, f"--junitxml={report}"], cwd=folder, env=environment, timeout=_LIMIT_S
        )
        cases = list(ElementTree.parse(report).iter("testcase"))
    found = {}
    for case in cases:
        name = f"{case.get('classname')}.{case.get('name')}"
        marks = {part.tag for part in case} & {"failure", "error", "skipped"}
        found[name.replace(backend.title(), "Backend", 1)] = min(marks, default="passed")
    return found


ends_of_gloo = functools.cache(functools.partial(ends, backend="gloo", kind="alone"))


def is_of_this_torch() -> bool:
    version = (CHECKOUT / "version.txt").read_text()
    return version.split(".")[:2] == torch.__version__.split(".")[:2]


_NEEDS_BACKENDS = pytest.mark.skipif(not IS_SUPPORTED, reason="this torch has no such backends")
_NEEDS_CHECKOUT = pytest.mark.skipif(
    not CHECKOUT.name, reason="HCCL_TEST_PYTORCH names no checkout of pytorch"
)


@pytest.mark.nightly("torch")
@pytest.mark.timeout(2 * _LIMIT_S)
@pytest.mark.parametrize(
    ("kind", "suite"),
    [
        ("alone", IN_WHEEL),
        pytest.param("backend", IN_WHEEL, marks=_NEEDS_BACKENDS),
        *(
            pytest.param(kind, suite, marks=(_NEEDS_BACKENDS, _NEEDS_CHECKOUT))
            for kind, suites in (("alone", OF_GROUPS), ("backend", OF_GROUPS + OF_BACKENDS))
            for suite in suites
        ),
    ],
)
def test_torchs_suite_passes_as_on_gloo(kind: str, suite: str) -> None:
    pytest.importorskip("expecttest")
    if suite != IN_WHEEL and not is_of_this_torch():
        pytest.skip(f"{CHECKOUT} is of another version than torch {torch.__version__}")
    expected, found = ends_of_gloo(suite), ends(suite, "hccl", kind, CAN[kind])
    assert "passed" in expected.values(), "no test ran"
    lost = {
        f"{kind}/{name}": found.get(name)
        for name, end in expected.items()
        if (end == "passed" and found.get(name) != "passed")
        or (end == "skipped" and found.get(name) in ("failure", "error"))
    }
    assert lost.keys() == {name for name in REMAIN if name.startswith(f"{kind}/{suite}.")}, lost


def test_page_names_every_suite_and_what_remains() -> None:
    page = Path(__file__).parents[2] / "docs/api/torch.md"
    _, _, section = page.read_text().partition("## Torch's own suites\n")
    rows = section.partition("\n\n| test |")[0]
    for suite in (IN_WHEEL, *OF_GROUPS, *OF_BACKENDS):
        lost = [sum(name.startswith(f"{kind}/{suite}.") for name in REMAIN) for kind in CAN]
        alone, backend = (f"all but {count}" if count else "all" for count in lost)
        name = "`DistributedTest`, in the wheel" if suite == IN_WHEEL else f"`{suite}.py`"
        row = rf"\| {name} \| .* \| {'–' if suite in OF_BACKENDS else alone} \| {backend} \|"
        assert re.search(row, rows), suite
    for name, reason in REMAIN.items():
        assert f"`{name.rpartition('.test_')[2]}` | {reason} |" in section
