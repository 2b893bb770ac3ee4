"""What MindSpore's import leaves out is there for whoever touches it, and nothing else about that import changes."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pynative import deferred_imports

ROOT = Path(__file__).resolve().parents[2]

USES = """
import atexit, sys
heavy = {"PIL", "mindspore.dataset", "mindspore.profiler", "scipy", "mindspore._c_dataengine"}
there = lambda: sorted(heavy & set(sys.modules))
atexit.register(lambda: print("at the end", there()))  # run after MindSpore's own handlers
%s
print("after the import", there())
if sys.argv[1:] == ["touch"]:
    import numpy, mindspore
    from mindspore import FileWriter, Profiler, dataset, nn, train
    import mindspore.dataset as ds
    import scipy.linalg
    assert mindspore.dataset is dataset is ds is sys.modules["mindspore.dataset"]
    assert isinstance(Profiler, type) and Profiler is mindspore.profiler.Profiler is mindspore.Profiler
    assert not hasattr(mindspore, "no_such_name")
    assert train.model.get_debug_mode() is False and train.dataset_helper.dataset_config.get_seed() >= 0
    rows = ds.NumpySlicesDataset(numpy.arange(4), shuffle=False)
    assert isinstance(rows, mindspore.onnx.onnx_export.Dataset)
    assert not isinstance(3, mindspore.onnx.onnx_export.Dataset)
    assert [int(row["column_0"].asnumpy()) for row in rows.create_dict_iterator()] == [0, 1, 2, 3]
    assert train.callback._landscape.linalg.norm([3.0, 4.0]) == scipy.linalg.norm([3.0, 4.0]) == 5.0
    distance = nn.HausdorffDistance()
    distance.update(*[numpy.eye(3)] * 2, 1)
    assert distance.eval() == 0
"""
ALL = ["PIL", "mindspore._c_dataengine", "mindspore.dataset", "mindspore.profiler", "scipy"]


def lines_of(imports: str, *arguments: str, **environment: str) -> list[str]:
    """What a process prints that imports and does what `USES` says."""
    command = [sys.executable, "-c", USES % imports, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    return done.stdout.splitlines()


def test_training_imports_nothing_of_it():
    """The whole training side of the package needs none of it; and MindSpore's end does not load it either."""
    lines = lines_of("import pynative.training.training, pynative.transformer.gpt_model")
    assert lines == ["after the import []", "at the end []"]


def test_a_script_that_uses_it():
    """Data pipeline, profiler's class, metric and scipy are there."""
    assert lines_of("import pynative, mindspore", "touch") == ["after the import []", f"at the end {ALL}"]


def test_where_mindspore_is_there_already_nothing_is_done(monkeypatch):
    """A script that imports it first has all of it."""
    monkeypatch.setitem(sys.modules, "mindspore", sys)
    before = list(sys.meta_path)
    deferred_imports.install()
    assert sys.meta_path == before


def test_what_is_there_or_wanted_is_not_deferred():
    """A package that somebody imported before, and the profiler if MindSpore's variable starts it at the import."""
    (after, _) = lines_of("import scipy, pynative, mindspore", MS_PROFILER_OPTIONS='{"start": false}')
    assert after == f"after the import {['mindspore._c_dataengine', 'mindspore.profiler', 'scipy']}"


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """`heavy`, to be deferred, and `user`, which imports it as MindSpore's modules do."""
    for name, text in {
        "heavy/__init__.py": "from heavy.parts import Part, double\nnumber = 7\n",
        "heavy/parts.py": "__all__ = ['Part', 'double']\nclass Part: pass\ndef double(x): return 2 * x\n",
        "user.py": "import heavy, heavy.parts as parts\nfrom heavy import number, parts as again\n"
        "from heavy.parts import Part, double\ndef use(x): return double(x)\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("heavy", "heavy.parts", "user"):
        sys.modules.pop(name, None)


def test_stand_ins(packages):
    """They are gone when their block ends, are used like the real things, and a package forgets its own."""
    before = list(sys.meta_path)
    with deferred_imports.stand_ins(["heavy"]):
        user = importlib.import_module("user")
    assert sys.meta_path == before and "heavy" not in sys.modules and "heavy.parts" not in sys.modules
    assert user.use(4) == 8 and user.double(4) == 8
    heavy = sys.modules["heavy"]
    assert user.heavy.number == 7 and user.parts.Part is user.again.Part is heavy.Part
    assert isinstance(heavy.Part(), user.Part) and not isinstance(3, user.Part)

    class Own(user.Part):
        pass

    assert issubclass(Own, heavy.Part) and issubclass(Own, user.Part) and not issubclass(int, user.Part)
    deferred_imports.look_up_when_asked(user)
    assert user.Part is heavy.Part and user.parts is sys.modules["heavy.parts"] and user.number == 7
    with pytest.raises(AttributeError, match="no_such"):
        _ = user.no_such


@pytest.mark.parametrize(
    "text",
    [
        "from heavy.parts import Part\nclass Own(Part): pass",
        "from heavy import parts\nassert parts.double(4) == 8",
        "import heavy.parts\nassert heavy.parts.double(4) == 8",
        "from heavy.parts import *\nassert Part and double(4) == 8",
        "import heavy.parts as parts, heavy\nassert parts.__all__ == ['Part', 'double'] and heavy.number == 7",
    ],
)
def test_what_is_used_at_once_is_loaded_at_once(packages, tmp_path, text):
    """By a version of MindSpore that does so, or by another thread: the import goes on as an ordinary one."""
    (tmp_path / "user.py").write_text(text)
    with deferred_imports.stand_ins(["heavy", "no_such_package"]):
        importlib.import_module("user")
        assert sys.modules["heavy"].number == 7 and sys.modules["heavy.parts"].double(4) == 8


def test_what_is_not_installed_is_not_there():
    """A stand-in for a package that is missing would turn its ImportError into a later one."""
    with deferred_imports.stand_ins(["no_such_package"]), pytest.raises(ModuleNotFoundError):
        importlib.import_module("no_such_package")
