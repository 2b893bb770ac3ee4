"""Heads that are copied whole."""

import numpy as np
import pytest
from mindspore import from_numpy

from pynative.dtypes import BFLOAT16
from pynative.kernels.host.rotary import _merged
from tests.support.kernels import normal


def test_gradients_of_several_types_are_refused():
    """Copied as bytes, the wider ones would be cut without a word."""
    gradients = [from_numpy(normal(3, 1, 2, 4).astype(dtype)) for dtype in (BFLOAT16, np.float32, BFLOAT16)]
    with pytest.raises(TypeError, match="Cannot cast"):
        _merged(*gradients, layout=(2, 1, 4), shape=(3, 1, 24))
