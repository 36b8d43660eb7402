"""A call makes as many Python frames as docs/torch.md says; of a small one they are most."""

import frames


def test_calls_make_no_more_frames_than_documented() -> None:
    version, documented = frames.documented()
    counted = frames.counted()
    assert counted.keys() == documented.keys(), "run python tests/distributed/frames.py"
    if version == frames.torch_version():
        assert counted == documented, "run python tests/distributed/frames.py, if it has to be"
    # Of another torch only ours is known.
    assert {name: one.ours for name, one in counted.items()} == {
        name: one.ours for name, one in documented.items()
    }
