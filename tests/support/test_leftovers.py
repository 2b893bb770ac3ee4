"""tests.support.leftovers: finding the files that a test leaves behind."""

from tests.support.leftovers import contents


def test_files_and_folders_are_found_and_caches_are_not(tmp_path):
    """`contents` finds a new folder and its file, and neither __pycache__ nor .pytest_cache."""
    (tmp_path / "kept").touch()
    before = contents(tmp_path)
    for folder in ("output", "__pycache__", ".pytest_cache"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").touch()
    assert before == {"kept"} and contents(tmp_path) - before == {"output", "output/file"}
