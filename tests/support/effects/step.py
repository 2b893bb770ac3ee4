"""The figures of a run of a step or two, with everything that a user sees of it."""

import re
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.support.corpus import write_corpus
from tests.support.engine import config_of, job
from tests.support.gathering import digests
from tests.support.pretraining import listening

MEASURED = re.compile(
    r"(Tokens/s|Tokens/s/device|TFLOP/s|MFU|Memory|ETA|Time): [\d.:]+( MB| ms|%)?"
    r"|[\d.]+(%| (s|ms)\b| TFLOP/s, measured)"
    r"|\bmeasured +[\d,.]+|, (within|outside)\b"
)


_EVENTS = re.compile(r"(?<=events\.out\.tfevents)\..*")


def _curves(path: Path) -> list[tuple[str, list[int]]]:
    """Tags of a TensorBoard file, with the steps of their points."""
    read = EventAccumulator(str(path), size_guidance={"scalars": 0}).Reload()
    return [(tag, [event.step for event in read.Scalars(tag)]) for tag in sorted(read.Tags()["scalars"])]


def write_corpora(folder: str) -> None:
    """Two, with prefixes of these names."""
    for seed, name in enumerate(("corpus", "corpus-2")):
        write_corpus(Path(folder, name), [20] * 60, 61, seed)


def figures(backend, lines: Sequence[Sequence[str]], shared: str) -> list[dict[str, str]]:
    """Figures of each command line's run, by name, or the error that ends it; ranks share an empty folder."""
    folder, corpus = Path(shared), f"{shared}/corpus"
    return [_run(backend, line, corpus, folder / f"{number:03}") for number, line in enumerate(lines)]


def _run(backend, line: Sequence[str], corpus: str, folder: Path) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    words = [word.replace("DATA", corpus).replace("SAVE", str(folder)) for word in line]
    with listening() as said, chdir(folder):
        found: dict[str, Any] = {"lines": said}
        try:
            found |= _trained(backend, words)
        except Exception as error:
            found["error"] = f"{type(error).__name__}: {error}"
    found["lines"] = [MEASURED.sub("", text) for text in said]
    files = [path for path in folder.rglob("*") if path.is_file()]
    found["files"] = sorted((_EVENTS.sub("", str(path.relative_to(folder))), _size(path)) for path in files)
    found["curves"] = [(tag, steps) for path in files if _EVENTS.search(path.name) for tag, steps in _curves(path)]
    return {name: _plain(value, folder) for name, value in found.items()}


def _size(path: Path) -> int:
    """In bytes; 0 of what repeats the configuration, or holds times."""
    return path.stat().st_size if path.suffix == ".safetensors" else 0


def _plain(value: Any, folder: Path) -> str:
    return str(value).replace(str(folder), "SAVE")


def _trained(backend, words: Sequence[str]) -> dict[str, Any]:
    from parallel_core.data.blended import build_train_valid_test_datasets
    from parallel_core.data.from_config import gpt_dataset_config
    from pynative.training.training import pretrain
    from pynative.transformer.gpt_model import GPTModel

    config = config_of(words, backend.world_size)
    data = gpt_dataset_config(config)
    backend.trace.reset()
    with job(backend, config):
        state = pretrain(
            lambda samples: build_train_valid_test_datasets(data, samples),
            lambda **stage: GPTModel(config.model_config, **stage),
            all_config=config,
        )
        counts = {key: (count.calls, count.bytes) for key, count in backend.trace.counts.items()}
        return {"digests": digests(state), "collectives": counts}
