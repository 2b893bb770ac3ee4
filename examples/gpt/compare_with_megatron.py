"""Is our curve the same as your Megatron's? Give weights, tokens and the curve of a run of yours.

    python examples/gpt/compare_with_megatron.py CASE_DIR [--nproc N] [flags, such as --tensor-model-parallel-size 2]

CASE_DIR holds, under Megatron-Core's parameter names and layouts:

    config.json        "megatron_cli": the run's flags, a list; "padded_vocab_size"
    weights.npz        initial weights, whole arrays
    tokens.npy         int [iterations x global batch, sequence + 1], in the order in which they are consumed
    loss_mask.npy      optional, [same rows, sequence], 1 = counts
    curve.json         per iteration "lm_loss" and "grad_norm" (before clipping); with a loss scale "skipped" and
                       "loss_scale", the one that was used; where they apply "load_balancing_loss",
                       "seq_load_balancing_loss", "z_loss", "mtp_1_loss" ..., as Megatron logs them
    grads_step1.npz    optional: gradients of iteration 1, averaged, before clipping
    weights_final.npz  optional

The case runs through msrun and `pretrain()`. One line of JSON tells how far the two runs are apart.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from parallel_core.system.command_line import command_line

ROOT = Path(__file__).resolve().parents[2]

OUR_CURVE, OUR_GRADIENTS, OUR_WEIGHTS = "curve.json", "grads_step1.npz", "weights_final.npz"

OF_EVERY_RUN = ("lm_loss", "grad_norm", "skipped", "loss_scale")
"""Columns that every curve has; other ones are figures that layers report."""


def case_flags(case: Path) -> list[str]:
    """The flags of the recorded run, and its padded vocabulary, which the layout would change otherwise."""
    config = json.loads((case / "config.json").read_text())
    flags = [str(flag) for flag in config["megatron_cli"]]
    return [*flags, "--padded-vocab-size", str(config["padded_vocab_size"])]


# One of the launched processes ----------------------------------------------------------------------------------------


class Rows:
    """The case's token rows as a data set of samples (tokens, labels, loss_mask, position_ids)."""

    def __init__(self, case: Path) -> None:
        self.tokens = np.load(case / "tokens.npy").astype(np.int32)
        mask = case / "loss_mask.npy"
        self.mask = np.load(mask) if mask.exists() else np.ones_like(self.tokens[:, 1:])

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, row: int) -> dict[str, np.ndarray]:
        tokens = self.tokens[row]
        return {
            "tokens": tokens[:-1],
            "labels": tokens[1:],
            "loss_mask": self.mask[row].astype(np.float32),
            "position_ids": np.arange(len(tokens) - 1, dtype=np.int32),
        }


def run_case(case: Path, out: Path, all_config) -> None:
    """Train the case as one of the launched processes; rank 0 writes curve, gradients and weights into `out`."""
    from parallel_core.step_figures import logged
    from pynative import parallel_state
    from pynative.checkpointing import gather_gradients, gather_weights, load_weights
    from pynative.training.callbacks import Callback
    from pynative.training.training import pretrain
    from pynative.transformer.gpt_model import GPTModel

    class Recorder(Callback):
        """A callback that loads the case's weights, and keeps curve, first gradients and final weights."""

        def on_train_begin(self, state) -> None:
            load_weights(state.model, dict(np.load(case / "weights.npz")))
            self.curve = []

        def on_gradients(self, state, gradient_scale) -> None:
            if state.iteration == 0:
                gradients = gather_gradients(state.step_cell.buffers)
                if parallel_state.get_global_rank() == 0:
                    np.savez(out / OUR_GRADIENTS, **{name: g * gradient_scale for name, g in gradients.items()})

        def on_step_end(self, state) -> None:
            result = state.result
            row = {"lm_loss": result.loss, "skipped": result.skipped, "loss_scale": result.loss_scale}
            row |= logged(state.config.model_config, result.figures)
            self.curve.append({**row, "grad_norm": None if result.skipped else result.gradient_norm})

        def on_train_end(self, state) -> None:
            weights = gather_weights(state.model)
            if parallel_state.get_global_rank() == 0:
                np.savez(out / OUR_WEIGHTS, **weights)
                (out / OUR_CURVE).write_text(json.dumps(self.curve))

    rows = Rows(case)
    pretrain(
        lambda samples: (rows, None, None),
        lambda pre_process=True, post_process=True: GPTModel(
            all_config.model_config, pre_process=pre_process, post_process=post_process
        ),
        all_config=all_config,
        callbacks=[Recorder()],
    )


# The process that the user started ------------------------------------------------------------------------------------


def largest_difference(ours: Path, theirs: Path, relative: bool) -> float | None:
    """The largest absolute difference of an entry over all parameters of two .npz files, with `relative` divided by the
    largest absolute entry of the parameter in `theirs` (by float32's smallest normal number at least); NaN may go
    unnoticed. None if `theirs` is not there. Raises ValueError if the names differ."""
    if not theirs.exists():
        return None
    mine, reference = np.load(ours), np.load(theirs)
    if set(mine.files) != set(reference.files):
        raise ValueError(f"{theirs}: parameters differ from ours: {sorted(set(mine.files) ^ set(reference.files))}")

    def difference(name: str) -> float:
        largest = float(np.abs(reference[name]).max()) if relative else 1.0
        return float(np.abs(mine[name] - reference[name]).max()) / max(largest, np.finfo(np.float32).tiny)

    return max(difference(name) for name in mine.files)


def compare(case: Path, out: Path) -> dict[str, float | int | None]:
    """Name -> largest difference of our run (files in `out`) from the recorded one (`case`). Curves are compared over
    the steps that both have, whose number is "steps", gradient norms over those of them where both are finite;
    "skipped_equal": whether both skipped the same of these steps. Of final weights and the first step's gradients the
    difference is None where the case has no such file. Raises ValueError where no norm can be compared,
    and as `largest_difference`; IndexError for a curve without steps."""
    ours, theirs = json.loads((out / OUR_CURVE).read_text()), json.loads((case / "curve.json").read_text())
    steps = min(len(ours), len(theirs))

    def column(rows: list[dict], name: str, default: float | None = None) -> np.ndarray:
        return np.array([row.get(name, default) for row in rows[:steps]], np.float64)

    loss, reference = column(ours, "lm_loss"), column(theirs, "lm_loss")
    norm, norm_reference = column(ours, "grad_norm"), column(theirs, "grad_norm")
    skipped, scale = column(ours, "skipped"), column(ours, "loss_scale")
    figures = [name for name in ours[0] if name in theirs[0] and name not in OF_EVERY_RUN]
    updated = np.isfinite(norm) & np.isfinite(norm_reference)
    return {
        "skipped_equal": bool((skipped == column(theirs, "skipped", False)).all()),
        "max_abs_loss_scale": float(np.abs(scale - column(theirs, "loss_scale", 1.0)).max()),
        "max_abs_lm_loss": float(np.abs(loss - reference).max()),
        "max_rel_lm_loss": float((np.abs(loss - reference) / np.abs(reference)).max()),
        **{f"max_abs_{name}": float(np.abs(column(ours, name) - column(theirs, name)).max()) for name in figures},
        "max_rel_grad_norm": float((np.abs(norm - norm_reference) / norm_reference)[updated].max()),
        "max_abs_final_weight": largest_difference(out / OUR_WEIGHTS, case / OUR_WEIGHTS, relative=False),
        "max_rel_grad_step1": largest_difference(out / OUR_GRADIENTS, case / OUR_GRADIENTS, relative=True),
        "steps": steps,
    }


def launch(case: Path, processes: int, flags: list[str]) -> dict:
    """Run the case in `processes` processes with further flags, and return the figures of `compare`, with the case's
    name, the number of processes ("world"), the flags and the seconds. case: an absolute path. Raises SystemExit if a
    file that a case must have is missing, or the run fails, and as `compare`."""
    from pynative.startup.launch import msrun_command, quiet_environment

    for name in ("config.json", "weights.npz", "tokens.npy", "curve.json"):
        if not (case / name).exists():
            raise SystemExit(f"error: {case / name} does not exist; {case} is no case folder (see --help)")
    started = time.time()
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch)
        (out / "flags.json").write_text(json.dumps([*case_flags(case), *flags]))
        command = msrun_command(__file__, ["--as-rank", str(case), "--out", scratch], processes, out / "log")
        done = subprocess.run(command, capture_output=True, text=True, env=quiet_environment(), cwd=scratch)
        if done.returncode:
            sys.stderr.write(done.stdout[-20000:] + done.stderr[-20000:])
            raise SystemExit(f"error: the run of {case.name} failed with exit code {done.returncode}")
        figures = compare(case, out)
    run = {"case": case.name, "world": processes, "flags": " ".join(flags)}
    return {**run, **figures, "seconds": round(time.time() - started, 1)}


def main(argv: list[str] | None = None) -> None:
    """Run the command and print the figures as JSON; in a launched process (--as-rank) train the case instead."""
    parser = command_line(__doc__)
    parser.add_argument("case", type=Path, help="the folder with the recorded run")
    parser.add_argument("--nproc", type=int, default=1, help="number of processes")
    parser.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options, flags = parser.parse_known_args(argv)
    if options.as_rank:
        from mapping import init_configs_from_args, initialize_megatron

        args = initialize_megatron(argv=json.loads((options.out / "flags.json").read_text()))
        run_case(options.case, options.out, init_configs_from_args(args))
    else:
        print(json.dumps(launch(options.case.resolve(), options.nproc, flags)))


if __name__ == "__main__":
    main()
