"""Our TensorBoard files against those that the real Megatron's `training_log` wrote while it trained the same cases."""

import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.parity.test_goldens import OF_FP16, script, train
from tests.support.distributed import run
from tests.support.goldens import golden

ALL = "--log-params-norm --log-num-zeros-in-grad --log-world-size-to-tensorboard"
CASES = ("llama", "mixtral", "gpt2_fp16", "mtp")
ROUNDED = {"num-zeros": 2.0}
"""Tag -> absolute tolerance of its values: whether a gradient's element is zero or tiny is rounding."""
IN_FP16 = {"lm loss": OF_FP16.lm_loss, "grad-norm": OF_FP16.grad_norm, "params-norm": 1e-2, "num-zeros": 64.0}
"""Tag -> absolute tolerance of its values in the float16 case, whose losses and norms have these limits in
test_goldens."""
EXACT = 1e-5


def curves(folder: Path) -> dict[str, list[list[float]]]:
    """Tag -> [step, value] of each of its points, as `tensorboard` reads them."""
    read = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    read.Reload()
    return {tag: [[event.step, event.value] for event in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


@pytest.mark.parametrize("case", CASES)
def test_tags_steps_and_values_are_megatrons(case, tmp_path):
    """Tags, steps and values are those of Megatron's own files: dense, experts with each layer's loss, a loss scale
    with skipped steps, multi-token prediction."""
    layers = "--moe-per-layer-logging" if case == "mixtral" else ""
    ranks, layout = (2, "--pipeline-model-parallel-size 2") if case == "llama" else (1, "")
    steps = 30 if case == "gpt2_fp16" else 6
    flags = f"{ALL} --exit-interval {steps} {layers} {layout} --tensorboard-dir {tmp_path / 'curves'}".split()
    folder = golden(case)
    run(ranks, train, str(folder), str(tmp_path), [*script().case_flags(folder), *flags])
    ours, theirs = curves(tmp_path / "curves"), json.loads((folder / "tensorboard.json").read_text())
    theirs = {tag: points[:steps] for tag, points in theirs.items()}
    if ranks > 1:
        theirs = {tag: [[step, ranks] if "world" in tag else [step, y] for step, y in xy] for tag, xy in theirs.items()}
    assert set(ours) == set(theirs)
    for tag, points in theirs.items():
        assert [step for step, _ in ours[tag]] == [step for step, _ in points], tag
        limits = IN_FP16 if "fp16" in case else ROUNDED
        near = pytest.approx([value for _, value in points], EXACT, limits.get(tag.removesuffix(" vs samples"), 1e-7))
        assert [value for _, value in ours[tag]] == near, tag
