"""The log lines that describe a run before its first step."""

from parallel_core.planner import Plan
from parallel_core.start_lines import ParameterCount, start_lines
from tests.support.engine import TINY, config_of

COUNT = ParameterCount(1_000_000, 600_000, 5_000)


def lines(flags: str, world_size: int = 4, source: str = "", is_planned: bool = True) -> list[str]:
    """The start lines of rank 1 for TINY's model with these flags."""
    return [*start_lines(Plan.of_run(config_of(f"{TINY} {flags}", world_size)), 1, 0, COUNT, source, is_planned)]


def test_a_line_for_each_matter():
    """The lines about layout, parameters, data and precision, by their text."""
    flags = "--tensor-model-parallel-size 2 --data-path 0.3 a 0.7 b --split 90,10,0 --global-batch-size 8"
    assert lines(flags)[:4] == [
        "Layout: rank 1 of 4 = tensor 2 x pipeline 1 x context 1 x data 2; a step has 8 samples, micro-batches on each "
        "data rank: 2 of 2",
        "Parameters: 1,000,000 in all, 600,000 of this rank, 5,000 of these are trained",
        "Data: 0.3 a 0.7 b --split 90,10,0, sequences of 16; tokenizer NullTokenizer, 61 ids, padded to 64",
        "Precision: parameters float32, layers float32, gradients float32, no loss scale",
    ]


def test_memory_is_that_of_explain():
    """The predicted memory in the last line is that of `explain`: all that a rank of the stage keeps."""
    from mapping.memory import memory_of_stages

    flags = "--tensor-model-parallel-size 2 --bf16"
    needed = memory_of_stages(config_of(f"{TINY} {flags}", 4))[0]
    *_, line = lines(flags)
    assert line.startswith(f"Memory predicted: {needed.total / 2**20:,.1f} MiB (weights ")


def test_a_model_of_the_scripts_own_has_no_prediction():
    """A run of a script's own model has no line about memory, since the config does not describe it."""
    assert not any("Memory" in line for line in lines("", is_planned=False))


def test_pipelines_experts_growing_batches_and_scales_are_named():
    """The lines name experts, schedule, growing batches, the script's own data source and the loss scale."""
    flags = (
        "--pipeline-model-parallel-size 2 --num-experts 4 --expert-model-parallel-size 2 --fp16 --loss-scale 128 "
        "--global-batch-size 8 --rampup-batch-size 4 4 8 --train-samples 40"
    ).replace("--train-iters 2", "")
    tiny = TINY.replace("--train-iters 2 ", "")
    layout, _, data, precision, _ = start_lines(
        Plan.of_run(config_of(f"{tiny} {flags}", 4)), 0, 1, COUNT, "a loader", True
    )
    assert "x data 2, experts over 2 (each over 1), schedule 1f1b; a step grows to 8 samples" in layout
    assert data.startswith("Data: a loader, sequences of 16")
    assert precision == "Precision: parameters float16, layers float16, gradients float16, loss scale 128"


def test_steps_that_are_spikes_are_said():
    """A run with spike detection says by which rules a step is a spike and what is then done; one without has no such
    line."""
    assert not any(line.startswith("Spikes") for line in lines(""))
    flags = "--check-for-spiky-loss --loss-spike-deviations 6 --loss-spike-action skip"
    (line,) = (line for line in lines(flags) if line.startswith("Spikes"))
    assert line == (
        "Spikes: a loss ten times as high as any of the first 100 steps, a loss 6.0 deviations above the mean; skip"
    )
