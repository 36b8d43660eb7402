"""Splits the tiers, and prepares what ranks are forked from."""

import gc
import os
import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "harness"))
# For benchmarks/; last, as hccl_py/ of the checkout is a part.
sys.path.append(str(Path(__file__).parents[1]))

import harness_path  # noqa: E402, F401
from quiet_clock import ROOT  # noqa: E402
from tiers import SECTIONS  # noqa: E402

os.environ[ROOT] = str(os.getpid())
os.environ.pop("COLUMNS", None)  # of a worker: what is printed is compared as in a file

pytest_plugins = ["slurm_cluster"]
"""Modules of fixtures for tests of several folders."""

# A script that starts the tests in the background hands them an ignored SIGINT.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--section", choices=SECTIONS, help="only this section of the nightly tier")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run the default tier as a whole on three workers: half its time is waiting."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    is_default = config.getoption("-m") == "not nightly" and not config.getoption("usepdb")
    if is_whole and is_default and config.getoption("numprocesses", 0) is None:
        config.option.numprocesses, config.option.dist = 3, "loadfile"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the section that was asked for."""
    wanted = config.getoption("--section")
    if wanted is not None:
        left_out = [item for item in items if _section(item) != wanted]
        items[:] = [item for item in items if _section(item) == wanted]
        config.hook.pytest_deselected(items=left_out)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests between two hosts where this process may make no namespaces."""
    if _section(item) == "hosts":
        import namespaces

        if reason := namespaces.why_not():
            pytest.skip(reason)


def _section(item: pytest.Item) -> str | None:
    marker = item.get_closest_marker("nightly")
    if marker is None:
        return None
    (section,) = marker.args
    assert section in SECTIONS, f"{item.nodeid}: no section {section} in tiers.py"
    return str(section)


def pytest_collection_finish() -> None:
    """Freeze what stays, which spares 0.3 s a collection; start the server of `ranks.py`."""
    gc.collect()
    gc.freeze()
    if "ranks" in sys.modules:
        sys.modules["ranks"].start_server()
