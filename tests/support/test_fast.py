"""The rules of `-m fast`: which tests are fast, and what they must not do."""

import pytest

from tests.support import fast
from tests.support.assets import ROOT


@pytest.mark.parametrize(
    ("event", "arguments"), [("subprocess.Popen", ("python", [])), ("os.fork", ()), ("import", ("mindspore", None))]
)
def test_what_takes_seconds_is_refused(event, arguments):
    """`refuse` raises NotFast, which names the slow marker, for a new process, a fork and an import of MindSpore."""
    with pytest.raises(fast.NotFast, match=r"pytest\.mark\.slow"):
        fast.refuse(event, arguments)


def test_plans_are_read_and_written():
    """`refuse` lets every audit event pass but those of REFUSED and the import of MindSpore."""
    fast.refuse("open", ("file", "r", 0))
    fast.refuse("import", ("json", None))


def test_folders_on_the_way_are_collected_and_others_are_not():
    """`concerns` is true of FOLDERS, of folders above them and of files in them, and false of other tests."""
    tests = ROOT / "tests"
    assert all(fast.concerns(path) for path in (ROOT, tests, *fast.FOLDERS, tests / "mapping" / "test_checks.py"))
    assert not any(fast.concerns(tests / name) for name in ("pynative", "parity", "test_architecture.py"))


def test_tests_know_whether_they_are_fast(request):
    """This test lies in none of the fast folders, and so has no `fast` marker."""
    assert not fast.is_fast(request.node) and request.node.get_closest_marker("fast") is None
