"""Frameworks are adapted as they are imported: here made-up ones, in the place of the wheels."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch  # noqa: F401  # loads hccl_py, which listens to imports from then on

from hccl_py import _autoload

STRATEGIES = """
class StrategyRegistry(dict):
    def register(self, name, strategy, description, **options): self[name] = strategy, options
StrategyRegistry, DDPStrategy, ModelParallelStrategy = StrategyRegistry(), object, object
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a package in the place of pytorch_lightning."""
    for name in [each for each in sys.modules if each.startswith("pytorch_lightning")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "pytorch_lightning"
    folder.mkdir()
    (folder / "__init__.py").touch()
    return folder


def test_framework_is_adapted_by_its_import(package: Path) -> None:
    (package / "strategies.py").write_text(STRATEGIES)
    module = importlib.import_module("pytorch_lightning.strategies")
    assert list(module.StrategyRegistry) == ["hccl", "hccl_fsdp2"]


def test_framework_that_does_not_fit_is_imported_with_a_warning(package: Path) -> None:
    (package / "strategies.py").write_text("AT = 1")
    with pytest.warns(UserWarning, match="hccl_py does not fit this version of lightning: Attr"):
        assert importlib.import_module("pytorch_lightning.strategies").AT == 1


def test_search_for_a_module_leaves_it_unimported(package: Path) -> None:
    (package / "strategies.py").write_text(STRATEGIES)
    assert importlib.util.find_spec("pytorch_lightning.strategies") is not None
    assert "pytorch_lightning.strategies" not in sys.modules
    assert importlib.util.find_spec("pytorch_lightning.nothing") is None


def test_each_adapter_exists() -> None:
    for name in set(_autoload.ADAPTERS.values()):
        assert callable(importlib.import_module(f"hccl_py.integrations.{name}").adapt)
