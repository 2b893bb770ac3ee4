"""Models of a family that `transformers` recorded (tests/assets/families): loaded, run and trained inside a rank of a
test's pool."""

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from parallel_core.checkpoint.convert import formats
from parallel_core.checkpoint.convert.huggingface.config import family_of
from parallel_core.checkpoint.convert.huggingface.read import split
from parallel_core.checkpoint.convert.model import Model
from parallel_core.checkpoint.lazy import of_array
from tests.parity.samples import sampled
from tests.support.assets import asset
from tests.support.engine import job
from tests.support.generation import continued
from tests.support.layouts import train

CASES = sorted(folder.name for folder in asset("families").iterdir())

ADAMW = "--adam-beta1 0.9 --adam-beta2 0.95 --adam-eps 1e-8 --weight-decay 0 --lr 1e-3 --min-lr 1e-3"
"""Flags of the recorded steps' optimizer."""
QUIET = (
    f"{ADAMW} --lr-decay-style constant --attention-dropout 0 --hidden-dropout 0 --eval-iters 0 --finetune "
    "--use-checkpoint-args --tokenizer-type NullTokenizer --moe-router-bias-update-rate 0 --calculate-per-token-loss"
)
LOGITS, CURVE, CURVE_NORMS, LOSS, GRADIENT = 1e-4, 1e-4, 1e-3, 1e-5, 1e-5
"""Tolerances: of logits absolute; of losses and norms (of 20 steps; of one batch) relative; of gradients relative to
each parameter's largest entry."""

OF_DELTA_NETS = 2.5e-5
"""Tolerance of gradients where a norm stands behind a recurrence whose first results are nearly zero, and multiplies
their rounding. Recorded are transformers' own gradients in float64, from which its float32 ones are off by up to 2.0e-5
and ours by up to 2.0e-5."""


STEPS = {"glm_moe_dsa": 2}
"""Case -> number of recorded steps that are compared, where not all 20: in the third, keys whose score is exactly 0,
because no head's product is positive, compete for a query's last place. Here the first of them wins; in torch it
depends on how a selection happened to swap them."""


def tolerated(case: str) -> float:
    """The tolerance of a case's gradients, relative to each parameter's largest entry."""
    return OF_DELTA_NETS if case.startswith(("qwen3_next", "qwen3_5")) else GRADIENT


def folder_of(case: str) -> Path:
    """The folder of a case's HuggingFace checkpoint."""
    return asset(f"families/{case}/checkpoint")


@cache
def recorded(case: str) -> dict[str, Any]:
    """The record of a case: losses and gradient norms of 20 steps, loss of the batch, greedy continuations, flags by
    tool."""
    found: dict[str, Any] = json.loads(asset(f"families/{case}/recorded.json").read_text(encoding="utf-8"))
    return found


@cache
def arrays(case: str) -> dict[str, np.ndarray]:
    """Recorded arrays: `input_ids`, `labels`, `loss_mask` [2, s] and `logits` of every fourth position; samples of
    gradients; the steps' tokens."""
    return dict(np.load(asset(f"families/{case}/recorded.npz")))


class Samples:
    """A dataset of rows of tokens."""

    def __init__(self, inputs: np.ndarray, labels: np.ndarray, mask: np.ndarray) -> None:
        self.columns = {"tokens": inputs, "labels": labels, "loss_mask": mask.astype(np.float32)}

    def __len__(self) -> int:
        return len(self.columns["tokens"])

    def __getitem__(self, i: int) -> dict[str, np.ndarray]:
        row = {name: column[i] for name, column in self.columns.items()}
        return {**row, "position_ids": np.arange(len(row["tokens"]), dtype=np.int32)}


def of_batch(case: str) -> Samples:
    """A dataset of the rows whose loss and gradients were recorded."""
    found = arrays(case)
    return Samples(found["input_ids"], found["labels"], found["loss_mask"])


def of_curve(case: str) -> Samples:
    """A dataset of the rows of the recorded steps."""
    tokens = arrays(case)["tokens"]
    return Samples(tokens[:, :-1], tokens[:, 1:], np.ones(tokens[:, 1:].shape))


def flags_of(case: str, rows: int, steps: int) -> str:
    """Flags that load a case and train so many steps of so many rows, in two micro-batches whose tokens count alike."""
    length = arrays(case)["tokens"].shape[1] - 1
    batch = f"--micro-batch-size {rows // 2} --global-batch-size {rows} --train-iters {steps} --seq-length {length}"
    return f"--load {folder_of(case)} {QUIET} {batch}"


class Trained(NamedTuple):
    """Losses and gradient norms of a run's steps; gradients of the first step by the file's names, on rank 0 alone."""

    losses: list[float]
    norms: list[float]
    gradients: dict[str, np.ndarray] | None


def trained(backend, case: str, layout: str) -> Trained:
    """One step on the recorded batch under a layout, without clipping."""
    found = train(backend, f"{flags_of(case, 2, 1)} --clip-grad 0 {layout}", dataset=of_batch(case))
    gradients = None if found.gradients is None else by_their_names(case, found.gradients)
    return Trained(found.losses, found.gradient_norms, gradients)


def curve(backend, case: str, layout: str = "") -> Trained:
    """The recorded steps, or the first of them (STEPS), under a layout."""
    steps = STEPS.get(case, 20)
    found = train(backend, f"{flags_of(case, 4, steps)} --clip-grad 1 {layout}", dataset=of_curve(case))
    return Trained(found.losses, found.gradient_norms, None)


def by_their_names(case: str, ours: Any) -> dict[str, np.ndarray]:
    """The file's parameter names -> whole arrays, of whole arrays by our global names."""
    settings = formats.read(folder_of(case), "hf").settings
    model = Model({name: of_array(values.astype(np.float32)) for name, values in ours.items()}, settings)
    family = family_of(json.loads((folder_of(case) / "config.json").read_text(encoding="utf-8")))
    return {name: tensor.read() for name, tensor in split(model, family).items()}


def logits_of(backend, case: str, ids: np.ndarray) -> np.ndarray:
    """A case's logits of these ids [b, s], in float32."""
    from pynative.generation import checkpoint_logits

    folder = folder_of(case)
    with job(backend, checkpoint_logits.config_in_float32(folder)):
        return checkpoint_logits.logits_of(folder, ids)


def logits(backend, case: str) -> np.ndarray:
    """A case's logits of the recorded batch, at every fourth position."""
    return logits_of(backend, case, arrays(case)["input_ids"])[:, 3::4]


def texts(backend, case: str) -> list[list[list[int]]]:
    """[continuations of the recorded prompts with a cache, the same without]."""
    said = recorded(case)
    asked = {"max_new_tokens": len(said["new_tokens"][0])}
    found = continued(backend, folder_of(case), said["prompts"], [asked, asked | {"use_cache": False}])
    return [[list(new) for new, _ in way] for way in found]


def gradient_errors(case: str, found: dict[str, np.ndarray]) -> dict[str, float]:
    """Parameter -> error of its gradient in multiples of the tolerance, where that is above 1 or the gradient is
    missing."""
    said = arrays(case)
    expected = dict(zip(said["gradient_names"].tolist(), said["gradients"], strict=True))
    errors = {name: float("inf") for name in expected.keys() - found.keys() if np.any(expected[name][:1] > 0)}
    for name, values in found.items():
        ours, theirs = sampled(values, values), expected[name]
        norm, largest = (
            theirs[:2] if not _cancels(name) else np.max([expected[n][:2] for n in filter(_cancels, found)], 0)
        )
        allowed = tolerated(case) * max(largest, 1e-6) + 1e-9
        far = np.nanmax(np.abs(ours[1:] - theirs[1:])) / allowed
        of_norm = abs(ours[0] - theirs[0]) / (tolerated(case) * max(norm, 1e-6) + 1e-9)
        if not max(far, of_norm) <= 1:
            errors[name] = float(max(far, of_norm))
    return errors


def _cancels(name: str) -> bool:
    """Whether a parameter is a few numbers for all tokens: its gradient is a sum of terms that cancel, and may be small
    beside the rounding of those. It is held to the largest of its kind."""
    return "hc_" in name and name.endswith(("_base", "_scale"))


def problems(case: str, found: Trained) -> dict[str, Any]:
    """Figures of a step on the recorded batch that are not as recorded, by name; empty if all are."""
    wrong: dict[str, Any] = {}
    loss = recorded(case)["mean_loss"]
    if not abs(found.losses[0] - loss) <= LOSS * loss:
        wrong["loss"] = found.losses[0], loss
    if found.gradients is not None:
        wrong |= gradient_errors(case, found.gradients)
    return wrong


def curve_problems(case: str, found: Trained) -> dict[str, Any]:
    """Step -> its loss or gradient norm that is not the recorded one; empty if all are."""
    said = recorded(case)
    pairs = [("loss", CURVE, found.losses, said["loss"]), ("norm", CURVE_NORMS, found.norms, said["grad_norm"])]
    return {
        f"{kind} {step}": (ours, theirs)
        for kind, limit, own, their in pairs
        for step, (ours, theirs) in enumerate(zip(own, their, strict=False))
        if not abs(ours - theirs) <= limit * abs(theirs)
    }
