"""Arrays that take long to compute, kept on disk from one run to the next."""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.numerics.dtypes import Array
from parallel_core.system.files import replacing

Arrays = dict[str, Array]


def fingerprint(parts: dict[str, Any]) -> str:
    """A hash of names and values of `parts`, in their order, 32 hexadecimal digits: arrays count by their bytes,
    anything else by its representation."""
    digest = sha256()
    for name, value in parts.items():
        digest.update(f"{name}:".encode())
        digest.update(np.ascontiguousarray(value).data if isinstance(value, np.ndarray) else repr(value).encode())
    return digest.hexdigest()[:32]


def cached(folder: str | Path | None, stem: str, names: tuple[str, ...], build: Callable[[], Arrays]) -> Arrays:
    """Name -> array: mapped, read-only, from `folder/stem-NAME.npy` if all are there; else first built by `build`, and
    kept there.

    `stem` must hold the fingerprint of all that the arrays depend on. Files appear whole, so any number of ranks may do
    this at once: they write the same bytes. Without a folder nothing is kept, and the result is that of `build`. Raises
    ValueError for a file that is damaged or cannot be read.
    """
    if folder is None:
        return build()
    paths = {name: Path(folder) / f"{stem}-{name}.npy" for name in names}
    if not all(path.is_file() for path in paths.values()):
        built = build()
        for name, path in paths.items():
            with replacing(path) as file:
                np.save(file, built[name], allow_pickle=False)
    return {name: _load(path) for name, path in paths.items()}


def _load(path: Path) -> Array:
    try:
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"{path}, an index in --data-cache-path, is damaged ({error}); delete it") from error
