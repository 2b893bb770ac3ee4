"""compare_with_megatron.py as users run it: on a folder that it has never seen, under msrun, with one line of JSON as
its result."""

import json
import shutil

from tests.parity import replay
from tests.support import warm
from tests.support.goldens import golden

FIGURES = {
    "case",
    "world",
    "flags",
    "skipped_equal",
    "max_abs_loss_scale",
    "max_abs_lm_loss",
    "max_rel_lm_loss",
    "max_rel_grad_norm",
    "max_abs_final_weight",
    "max_rel_grad_step1",
    "steps",
    "seconds",
}


def test_a_case_of_ones_own(tmp_path):
    """A folder without the optional arrays, replayed under msrun on tp2 for three steps: one line of JSON with all
    figures, those of missing arrays null."""
    case = tmp_path / "my run"
    case.mkdir()
    for name in ("config.json", "weights.npz", "tokens.npy", "curve.json"):
        shutil.copy(golden("llama") / name, case)
    command = [replay.__file__, case, "--nproc", "2", "--tensor-model-parallel-size", "2", "--exit-interval", "3"]
    done = warm.run(command, environment=warm.programs_first())
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = done.stdout.splitlines()
    figures = json.loads(line)
    assert set(figures) == FIGURES
    assert (figures["case"], figures["world"], figures["steps"]) == ("my run", 2, 3)
    assert figures["max_rel_lm_loss"] < 1e-5
    assert figures["max_rel_grad_step1"] is None and figures["max_abs_final_weight"] is None


def test_a_folder_that_is_no_case(tmp_path):
    """The replay names the file that is missing, before anything is launched."""
    done = warm.run([replay.__file__, tmp_path])
    assert done.returncode != 0 and "config.json does not exist" in done.stderr
