"""--no-drop-remainder: the last, smaller batch of the data is trained on, averaged by its tokens."""

import numpy as np
import pytest

from tests.support.distributed import run
from tests.support.engine import TINY
from tests.support.layouts import Rows, check_layout, train

FLAGS = f"{TINY} --global-batch-size 4 --train-iters 5"
KEEP = "--no-drop-remainder"
PER_TOKEN = "--calculate-per-token-loss"


class Few(Rows):
    """Six samples: a step of four, and a second one with two."""

    def __len__(self) -> int:
        return 6


def train_on_few(backend, flags: str) -> tuple:
    return train(backend, flags, dataset=Few())


def steps(*numbers: list[int]) -> list[dict[str, np.ndarray]]:
    """Batches of these sample numbers, one for each step."""
    rows = Few()
    return [{name: np.stack([rows[i][name] for i in step]) for name in rows[0]} for step in numbers]


def train_on_steps(backend, flags: str, given: list[dict[str, np.ndarray]]) -> tuple:
    return train(backend, flags, train_data_loader=given)


@pytest.mark.parametrize(
    ("world", "layout"),
    [
        (2, ""),
        (2, "--pipeline-model-parallel-size 2"),
        (2, "--tensor-model-parallel-size 2"),
        (2, "--context-parallel-size 2"),
    ],
    ids=["dp2", "pp2", "tp2", "cp2"],
)
def test_layouts(world, layout):
    """One process's results with a last step of two samples: of two replicas one has no row then, and on one rank a
    micro-batch has none."""
    check_layout(f"{TINY} --global-batch-size 4 {KEEP}", world, layout, how=train_on_few)


def test_every_sample_counts_by_its_tokens():
    """A short step equals one filled up with rows without a counting token, and the next pass begins behind it. Without
    the flag these two samples are never seen."""
    (found,) = run(1, train_on_few, f"{FLAGS} {KEEP}")
    full, rest = steps([0, 1, 2, 3], [4, 5])
    padded = {name: np.concatenate([part, full[name][:2]]) for name, part in rest.items()}
    padded["loss_mask"][2:] = 0
    (expected,) = run(1, train_on_steps, f"{FLAGS} {PER_TOKEN}", [full, padded])
    assert found.losses == pytest.approx(expected.losses, rel=1e-6) and len(found.losses) == 5
    assert found.gradient_norms == pytest.approx(expected.gradient_norms, rel=1e-5)
    (dropped,) = run(1, train_on_few, f"{FLAGS} {PER_TOKEN}")
    (again,) = run(1, train_on_steps, f"{FLAGS} {PER_TOKEN}", [full])
    assert dropped.losses == again.losses and abs(dropped.losses[1] - found.losses[1]) > 1e-3


def test_a_loader_may_give_fewer_rows():
    """--no-drop-remainder: a script's loader may give a last batch of fewer rows, without a loss mask too; without the
    flag it is an error."""
    full, rest = steps([0, 1, 2, 3], [4, 5])
    (of_dataset,) = run(1, train_on_few, f"{FLAGS} {KEEP}")
    (of_loader,) = run(1, train_on_steps, f"{FLAGS} {KEEP}", [full, rest])
    assert of_loader.losses == of_dataset.losses
    unmasked = [{name: array for name, array in step.items() if name != "loss_mask"} for step in (full, rest)]
    ones = [step | {"loss_mask": np.ones(step["labels"].shape, np.float32)} for step in unmasked]
    without, explicit = (run(1, train_on_steps, f"{FLAGS} {KEEP}", given)[0] for given in (unmasked, ones))
    assert without.losses == pytest.approx(explicit.losses, rel=1e-6)
    with pytest.raises(ValueError, match="tokens has 2 rows, 4 are due"):
        run(1, train_on_steps, FLAGS, [full, rest])


@pytest.mark.parametrize("flags", [KEEP, ""])
def test_a_later_pass_goes_on_where_it_stopped(tmp_path, flags):
    """A run resumed in the middle of any pass over the data reads what the uninterrupted run reads."""
    (whole,) = run(1, train_on_few, f"{FLAGS} {flags}")
    run(1, train_on_few, f"{FLAGS} {flags} --train-iters 3 --lr-decay-iters 5 --save {tmp_path} --save-interval 100")
    (resumed,) = run(1, train_on_few, f"{FLAGS} {flags} --load {tmp_path}")
    assert resumed.losses == whole.losses[3:]
