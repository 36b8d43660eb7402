"""Where the files of the flight recorder go, and where they do not."""

import json
import os
import stat
from pathlib import Path

import pytest

from hccl_py.observe import dump_files

STRANGER = 12345


def test_dump_replaces_links_and_leaves_what_they_lead_to(tmp_path: Path) -> None:
    of_worth = tmp_path / "of_worth"
    of_worth.write_text("kept")
    folder = tmp_path / "dumps"
    folder.mkdir()
    names = ("flight_recorder_rank_3.json", "torch_rank_3")
    for name in names:
        (folder / name).symlink_to(of_worth)
    path = dump_files.write(folder, 3, "asked for", [])
    assert json.loads(path.read_text())["rank"] == 3
    assert sorted(each.name for each in folder.iterdir()) == sorted(names)
    for name in names:
        status = (folder / name).lstat()
        assert stat.S_ISREG(status.st_mode)
        assert stat.S_IMODE(status.st_mode) == 0o600
    assert of_worth.read_text() == "kept"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make another user's link")
def test_dump_of_root_does_not_go_where_another_users_link_leads(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "dumps").symlink_to("precious")
    os.lchown(tmp_path / "dumps", STRANGER, STRANGER)
    with pytest.raises(PermissionError):
        dump_files.write(tmp_path / "dumps", 0, "asked for", [])
    assert not [*(tmp_path / "precious").iterdir()]
