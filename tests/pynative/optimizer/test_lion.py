"""Lion in a whole training; its arithmetic is tested in `test_updates.py`."""

from tests.support.engine import TINY
from tests.support.layouts import check_layout


def test_the_distributed_optimizer_trains_as_one_process():
    """Losses, updates and Lion's average, which two ranks share out, are one process's."""
    check_layout(f"{TINY} --global-batch-size 4 --optimizer lion", 2, "--use-distributed-optimizer")
