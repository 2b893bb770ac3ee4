"""The files of a run that is not finished: what was saved of them is kept when it is stopped, and the next one goes on
from there.

They lie in a hidden folder beside the data set. `manifest.json` says how many bytes of each are complete and from which
input they were made; the next run cuts off the bytes behind the complete ones.
"""

import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from parallel_core.data.indexed_dataset import Index, bin_path, idx_path
from parallel_core.data.preprocess.encoding import Part
from parallel_core.data.tokenizers import TokenizerOptions
from parallel_core.system.files import parse_json, replacing

_SAVED_EVERY = 30.0
"""Seconds after which the next addition is saved."""
_STREAM = {"bin": np.uint8, "lengths": np.int32, "sequences": np.int32}
"""Ending of a file of a stream of documents -> type of its entries: tokens (bytes), the number of tokens of each
sequence, the number of sequences of each document."""

_MANIFEST = {"made_from": dict, "is_complete": bool, "progress": dict, "sizes": list}
"""Name of an entry of `manifest.json` -> its type."""


class Unfinished:
    """The growing files of the data sets of a run: each data set has `partitions` streams of documents, which
    `complete` joins."""

    def __init__(self, folder: Path, prefixes: Sequence[str], partitions: int, made_from: dict[str, Any]) -> None:
        self.folder, self.prefixes, self.partitions, self._made_from = folder, prefixes, partitions, made_from
        self.progress: dict[str, Any] = {}
        """The caller's state of the parts that are complete, as JSON has it."""
        self._sizes: list[int] = []
        """Bytes of each file that are complete."""
        self.is_resumed, self.is_complete = False, False
        self._files: list[BinaryIO] = []
        self._saved = time.monotonic()

    @property
    def _manifest(self) -> Path:
        return self.folder / "manifest.json"

    def _path(self, data_set: int, partition: int, ending: str) -> Path:
        return self.folder / f"{data_set}.{partition}.{ending}"

    def _paths(self) -> list[Path]:
        streams = [(which, rest) for which in range(len(self.prefixes)) for rest in range(self.partitions)]
        return [self._path(which, rest, ending) for which, rest in streams for ending in _STREAM]

    def open(self) -> None:
        """Open the files, with all that an earlier run has added and saved; none where that run lacked only `publish`
        (`is_complete`). Raises ValueError if that run had other input or flags, its manifest is damaged, or a file is
        shorter than the manifest says."""
        if self._manifest.is_file():
            found = self._read_manifest()
            self._check(found["made_from"])
            self.progress, self._sizes, self.is_resumed = found["progress"], found["sizes"], True
            self.is_complete = found["is_complete"]
        for path, size in zip(self._paths(), self._sizes or [0] * len(self._paths()), strict=True):
            if self.is_complete:
                break
            file = path.open("a+b")
            self._files.append(file)
            if file.tell() < size:
                raise ValueError(f"{path} has {file.tell()} bytes, had {size}; begin anew with --restart")
            file.truncate(size)

    def _read_manifest(self) -> dict[str, Any]:
        found = parse_json(self._manifest.read_bytes(), self._manifest)
        if not isinstance(found, dict) or not all(isinstance(found.get(name), of) for name, of in _MANIFEST.items()):
            raise ValueError(f"{self._manifest}: is no manifest of a run that was stopped; begin anew with --restart")
        return found

    def _check(self, old: dict[str, Any]) -> None:
        new = self._made_from
        other = ", ".join(name for name in {**old, **new} if old.get(name) != new.get(name))
        if other:
            raise ValueError(
                f"{self.folder} is of a run that was stopped, with other {other}; give what was given then, or begin "
                "anew with --restart"
            )

    def add(self, parts: Sequence[Part], progress: dict[str, Any]) -> None:
        """Append each of `parts`, one for each stream of the first data set, then of the next, to its stream's files,
        and save them if more than 30 s have passed since the last save or the start. progress: the caller's state after
        it, as JSON data."""
        for number, content in enumerate(_contents(parts)):
            self._files[number].write(content)
        self.progress, self._sizes = progress, [file.tell() for file in self._files]
        if time.monotonic() - self._saved > _SAVED_EVERY:
            self.save()

    def save(self) -> None:
        """Make sure that all that was added stays when the process is killed."""
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())
        with replacing(self._manifest) as file:
            content = {"made_from": self._made_from, "is_complete": self.is_complete}
            file.write(json.dumps(content | {"progress": self.progress, "sizes": self._sizes}).encode())
        self._saved = time.monotonic()

    def close(self) -> None:
        """Close the files; they stay if there is a manifest, else the folder is removed."""
        for file in self._files:
            file.close()
        if not self._manifest.is_file():
            shutil.rmtree(self.folder)

    def complete(self, token_type: type[np.number[Any]]) -> None:
        """Join each data set's streams in the file of the first, and write its index; nothing may be added afterwards.
        token_type: the type of the tokens."""
        self.save()
        for which in range(len(self.prefixes)):
            self._joined(which, token_type).write(self.folder / f"{which}.idx")
        self.is_complete = True
        self.save()

    def publish(self) -> None:
        """Give the complete data sets their names, and remove the manifest. The .idx comes last: an older one must
        never be read with a newer .bin."""
        for which, prefix in enumerate(self.prefixes):
            index, tokens = self.folder / f"{which}.idx", self._path(which, 0, "bin")
            if index.is_file():
                if tokens.is_file():
                    idx_path(prefix).unlink(missing_ok=True)
                    os.replace(tokens, bin_path(prefix))
                os.replace(index, idx_path(prefix))
        self.forget()

    def forget(self) -> None:
        """Remove the manifest of the unfinished run, so that `close` removes its folder with all files unless a `save`
        comes before."""
        self._manifest.unlink(missing_ok=True)

    def documents(self, which: int) -> list[list[list[int]]]:
        """The documents of data set `which`, of int32 and one stream, each a list of sequences of ids."""
        for file in self._files:
            file.flush()
        tokens, lengths, sequences = (np.fromfile(self._path(which, 0, ending), np.int32) for ending in _STREAM)
        ids = iter(tokens.tolist())
        parts = iter([list(islice(ids, length)) for length in lengths.tolist()])
        return [list(islice(parts, count)) for count in sequences.tolist()]

    def _joined(self, which: int, token_type: type[np.number[Any]]) -> Index:
        """The index of a data set's streams one after the other; their tokens are joined in the file of the first."""
        with self._path(which, 0, "bin").open("ab") as tokens:
            for rest in range(1, self.partitions):
                with self._path(which, rest, "bin").open("rb") as more:
                    shutil.copyfileobj(more, tokens, 1 << 20)
            tokens.flush()
            os.fsync(tokens.fileno())
        lengths, sequences = (
            np.concatenate([np.fromfile(self._path(which, rest, name), np.int32) for rest in range(self.partitions)])
            for name in ("lengths", "sequences")
        )
        return Index.from_lengths(lengths, [0, *np.cumsum(sequences, dtype=np.int64)], token_type)


def _contents(parts: Sequence[Part]) -> Iterator[bytes]:
    for part in parts:
        yield from (part.tokens, part.lengths.tobytes(), part.sequences.tobytes())


def stamps(files: Sequence[Path]) -> list[list[object]]:
    """Path, size in bytes and time of the last change, in nanoseconds, of each file."""
    return [[str(file), (found := file.stat()).st_size, found.st_mtime_ns] for file in files]


def tokenizer_stamps(options: TokenizerOptions) -> dict[str, object]:
    """The tokenizer flags, and the stamps of the files that they name (but within --tokenizer-kwargs), or that are
    right in a folder that they name, by itself or by its tokenizer.json, as JSON data."""
    flags = asdict(options)
    named = [Path(value) for value in flags.values() if isinstance(value, str) and Path(value).exists()]
    folders = [path.parent if path.name == "tokenizer.json" else path for path in named]
    files = [file for path in folders for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
    listed = {name: list(value) if isinstance(value, tuple) else value for name, value in flags.items()}
    return {"tokenizer flags": listed, "tokenizer": stamps(files)}


@contextmanager
def unfinished(
    prefix: Path, prefixes: Sequence[str], partitions: int, made_from: dict[str, Any], restart: bool
) -> Iterator[Unfinished]:
    """A context manager that gives the files of a run, and closes them at its end. All that was added stays when the
    body of the `with` is interrupted (Ctrl-C); after another error what `save` has saved.

    prefix: the output's, to which one run at a time may write. prefixes: those of the data sets; partitions: streams of
    each. made_from: JSON data that must be the same where a run goes on. restart: begin anew, whatever an earlier run
    left. Raises ValueError if another run is at work, and without `restart` as `Unfinished.open`.
    """
    folder = prefix.with_name(f".{prefix.name}.unfinished")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ValueError(f"--output-prefix {prefix}: another run is writing it; wait for it, or stop it") from error
        run = Unfinished(folder, prefixes, partitions, made_from)
        if restart:
            run.forget()
        try:
            run.open()
            yield run
        except KeyboardInterrupt:
            if run.progress:
                run.save()
            raise
        finally:
            run.close()
