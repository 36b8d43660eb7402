"""Hints name a command that works where the package came from."""

import json
import shlex
from importlib import metadata
from pathlib import Path

import pytest

from hccl_py import installation

REQUIRES = [
    "numpy>=1.26",
    'matplotlib>=3.8; extra == "bench"',
    'rich>=13; python_version < "4" and extra == "bench"',
    'hccl-py[bench,tls]; extra == "test"',
    "pytest>=8; extra == 'test'",
    'cryptography>=42; extra == "tls"',
]
BY_NAME = "pip install 'matplotlib>=3.8' 'rich>=13'"


class Installed:
    def __init__(self, recorded: object) -> None:
        self.recorded = recorded

    def read_text(self, _name: str) -> str | None:
        return None if self.recorded is None else json.dumps(self.recorded)


@pytest.fixture(autouse=True)
def checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(metadata, "requires", lambda _name: REQUIRES)
    folder = tmp_path / "a checkout"
    folder.mkdir()
    return folder


def came_from(monkeypatch: pytest.MonkeyPatch, recorded: object) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda _name: Installed(recorded))


def test_checkout_is_named_as_dot_from_inside_and_by_its_path_from_elsewhere(
    monkeypatch: pytest.MonkeyPatch, checkout: Path
) -> None:
    came_from(monkeypatch, {"url": checkout.as_uri(), "dir_info": {}})
    assert installation.pip_install("bench") == f"pip install '{checkout}[bench]'"
    monkeypatch.chdir(checkout)
    assert installation.pip_install("bench") == "pip install '.[bench]'"


def test_checkout_that_is_used_in_place_stays_so(
    monkeypatch: pytest.MonkeyPatch, checkout: Path
) -> None:
    came_from(monkeypatch, {"url": checkout.as_uri(), "dir_info": {"editable": True}})
    monkeypatch.chdir(checkout)
    assert installation.pip_install("bench") == "pip install -e '.[bench]'"


@pytest.mark.parametrize(
    "recorded",
    [
        None,
        {"url": "file:///was/removed", "dir_info": {}},
        {"url": "https://host/hccl-py", "vcs_info": {"vcs": "git", "commit_id": "1"}},
    ],
)
def test_packages_of_the_extra_are_named_where_no_folder_has_ours(
    monkeypatch: pytest.MonkeyPatch, recorded: object
) -> None:
    came_from(monkeypatch, recorded)
    assert installation.pip_install("bench") == BY_NAME
    nested = {"matplotlib>=3.8", "rich>=13", "cryptography>=42", "pytest>=8"}
    assert {*shlex.split(installation.pip_install("test"))} == {"pip", "install", *nested}


def test_another_host_gets_a_copy_of_the_checkout_or_the_same_version(
    monkeypatch: pytest.MonkeyPatch, checkout: Path
) -> None:
    came_from(monkeypatch, {"url": checkout.as_uri(), "dir_info": {}})
    assert f"copy {checkout} there" in installation.install_elsewhere("python3")
    came_from(monkeypatch, None)
    monkeypatch.setattr(metadata, "version", lambda _name: "1.2")
    assert "python3 -m pip install hccl-py==1.2" in installation.install_elsewhere("python3")


def test_version_of_what_is_missing_says_so() -> None:
    assert installation.version_of("no-such-package-of-ours") == "not installed"
