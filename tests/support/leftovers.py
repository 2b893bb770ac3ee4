"""Files that tests leave in a folder that is not theirs."""

import os
from pathlib import Path


def contents(root: Path) -> set[str]:
    """Relative paths of all files and folders below `root`, except caches and names that begin with a dot."""
    found = set[str]()
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name != "__pycache__" and not name.startswith(".")]
        found |= {os.path.relpath(os.path.join(folder, name), root) for name in (*folders, *files)}
    return found
