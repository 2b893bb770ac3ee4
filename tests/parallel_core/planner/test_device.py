"""Device files: each shipped one can be read, and all mistakes in a file are reported at once."""

from __future__ import annotations

import pytest

from parallel_core.findings import ConfigError
from parallel_core.planner import find_device
from parallel_core.planner.device import known_devices


def test_every_device_is_complete():
    """Each known name gives a device whose calibration shares are in (0, 1] and whose reserved bytes are below its
    memory."""
    for name in known_devices():
        device = find_device(name)
        calibration = device.calibration
        assert 0 < calibration.products <= 1 and 0 < calibration.elementwise <= 1, name
        assert 0 < device.reserved_bytes < device.memory_bytes
        assert calibration.ranges.memory < 1 and calibration.ranges.time < 1
    assert {"a100", "h100", "b200", "ascend-910b", "ascend-910c"} <= set(known_devices())


def test_a_file_changes_some_keys_of_another(tmp_path):
    """`like: A100` takes the keys that a file lacks from A100, inside tables too."""
    path = tmp_path / "mine.yaml"
    path.write_text("names: [Mine]\nlike: A100\nmemory_bytes: 40.0e+9\ncalibration: {products: 0.5}\n")
    mine, a100 = find_device(str(path)), find_device("A100")
    assert (mine.memory_bytes, mine.calibration.products) == (40e9, 0.5)
    assert (mine.bandwidth, mine.calibration.launch) == (a100.bandwidth, a100.calibration.launch)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("names: [X]\nlike: A100\nbandwidth: fast\n", "bandwidth fast: must be a number"),
        ("names: [X]\nlike: A100\nbandwith: 1\n", "bandwith: is no key of a device"),
        ("names: [X]\nlike: A100\nengine: other\n", "engine other: is no engine"),
        ("names: [X]\nlike: A100\ncalibration: {products: 0}\n", "calibration.products 0: must be above 0"),
        (
            "names: [X]\nlike: A100\nlaunch_flops: {attention: false}\n",
            "launch_flops.attention False: must be a number",
        ),
        ("names: [X]\nlike: A100\nlaunch_flops: {attention: 1}\n", "launch_flops.attention 1: needs by_size.attention"),
        ("names: [X]\nlike: A100\nby_size: 3\nlaunch_flops: {attention: 1}\n", "needs by_size.attention"),
        ("names: [X]\nlike: A100\nby_size: {norm: [[1, 1]]}\nlaunch_flops: {norm: 1}\n", "must be of attention"),
        ("names: [X]\nlike: A100\nbandwidth: .inf\n", "bandwidth inf: must be above 0"),
        ("names: [X]\nlike: CPU\ncalibration: {waking: .inf}\n", "calibration.waking inf: must be a number"),
        ("names: [X]\n", "memory_bytes: is missing"),
        ("names: [X]\nlike: Nobody\n", "no such device"),
        ("[1, 2", "cannot be read"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path, text, words):
    """A wrong key or value in a device file is an error with key, value and rule."""
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        find_device(str(path))
    assert words in str(caught.value)


def test_an_unknown_device_names_the_known_ones():
    """An unknown device is an error that lists the first name of each known one."""
    with pytest.raises(ConfigError, match="choose A100-PCIe-80GB, A100-SXM, A100-SXM-40GB"):
        find_device("abacus")
