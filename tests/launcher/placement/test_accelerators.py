"""Accelerators are found by their device files, and frameworks are told where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from hccl_py.launcher.placement import accelerators
from hccl_py.launcher.placement.accelerators import framework_variables, has_accelerator


def machine(root: Path, *devices: str, driver: str = "") -> Path:
    for device in devices:
        path = root / "dev" / device
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        if driver:
            node = root / "sys/class/drm" / path.name / "device"
            node.mkdir(parents=True)
            (node / "driver").symlink_to(root / "sys/bus/pci/drivers" / driver)
    return root


@pytest.mark.parametrize("device", ["nvidia0", "nvidiactl", "dxg", "kfd", "accel/accel0"])
def test_device_file_is_an_accelerator(tmp_path: Path, device: str) -> None:
    assert has_accelerator(machine(tmp_path, device))


@pytest.mark.parametrize(("driver", "found"), [("xe", True), ("i915", True), ("ast", False)])
def test_render_node_is_one_of_an_xpu_driver(tmp_path: Path, driver: str, found: bool) -> None:
    assert has_accelerator(machine(tmp_path, "dri/renderD128", driver=driver)) is found


def test_others_are_none(tmp_path: Path) -> None:
    assert not has_accelerator(machine(tmp_path, "null", "nvram", "dri/card0"))


def test_setting_of_the_user_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerators, "has_accelerator", lambda: False)
    assert framework_variables({}) == {"ACCELERATE_USE_CPU": "true"}
    assert framework_variables({"ACCELERATE_USE_CPU": "false"}) == {}
    monkeypatch.setattr(accelerators, "has_accelerator", lambda: True)
    assert framework_variables({}) == {}
