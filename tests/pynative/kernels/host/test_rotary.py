"""Gradients of heads that `host` copies as bytes."""

import numpy as np
import pytest
from mindspore import from_numpy

from pynative.dtypes import BFLOAT16
from pynative.kernels.host.rotary import _merged
from tests.support.kernels import normal


def test_gradients_of_several_types_are_refused():
    """Merging gradients of queries, keys and values of different types is a TypeError: copied as bytes, the wider ones
    would be cut."""
    gradients = [from_numpy(normal(3, 1, 2, 4).astype(dtype)) for dtype in (BFLOAT16, np.float32, BFLOAT16)]
    with pytest.raises(TypeError, match="Cannot cast"):
        _merged(*gradients, layout=(2, 1, 4), shape=(3, 1, 24))
