"""The doubles of an Ascend's operators: every operator that device code calls has one, with MindSpore's arguments."""

import ast
from inspect import signature
from pathlib import Path

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, mint, ops
from mindspore.ops.auto_generate import AdamW, FlashAttentionScore, FlashAttentionScoreGrad, GroupedMatmulV4

from tests.support.ascend import hccl, memory
from tests.support.ascend.stack import DOUBLES, ascend_operators
from tests.support.assets import ROOT

RUNS_ON_A_CPU = {"ops.cast", "ops.cat", "ops.stack", "ops.tile", "ops.transpose", "ops.zeros"}
"""MindSpore operators that device code calls and that need no double, as the replays run their CPU kernels."""

GROUPS_AND_RANKS = {
    "init_process_group", "destroy_process_group", "get_rank", "get_world_size", "P2POp",
}  # fmt: skip
"""Functions of mint.distributed that are MindSpore's own Python down to the manager of groups, which is a mock."""

MINDSPORE = {"ops", "mint", "distributed"}
DEVICE_FILES = [*sorted((ROOT / "pynative/kernels/ascend").glob("*.py")), ROOT / "pynative/collectives/hccl.py"]


def dotted(node: ast.AST) -> str:
    """The dotted name of an attribute, such as `mint.nn.functional.gelu`; "" of any other node."""
    if isinstance(node, ast.Attribute):
        head = dotted(node.value)
        return head and f"{head}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def used(file: Path) -> set[str]:
    """Names of MindSpore that a file uses: attributes of its modules, and imported names."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    inner = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names = {dotted(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node not in inner}
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mindspore.ops")
        for alias in node.names
    }
    return {name for name in names if name.split(".")[0] in MINDSPORE} | imported


def doubled() -> set[str]:
    """MindSpore names that have a double, as device code spells them."""
    modules = {ops: "ops.", mint.nn.functional: "mint.nn.functional."}
    operators = {modules[d.owner] + d.name if d.owner in modules else d.owner.__name__ for d in DOUBLES}
    communication = {name.removesuffix("_v_single") + "_single" if "_v_" in name else name for name in hccl.NAMES}
    allocation = {f"mint.{name}" for name in memory.REPLACED}
    return operators | allocation | {f"distributed.{name}" for name in communication | GROUPS_AND_RANKS}


def test_whatever_device_code_calls_of_mindspore_has_a_double():
    """Every MindSpore function that DEVICE_FILES use has a double, or is among RUNS_ON_A_CPU."""
    calls = set().union(*map(used, DEVICE_FILES))
    assert len(calls) > 20, "the scan found nothing"
    assert calls - doubled() - RUNS_ON_A_CPU == set()


def test_no_double_is_left_over():
    """Every double is called by device code; mint.zeros is by distributed/flat_memory.py, which is not among
    its files."""
    assert doubled() - set().union(*map(used, DEVICE_FILES)) == {"mint.zeros"}


@pytest.mark.parametrize("double", [d for d in DOUBLES if d.name != "gelu"], ids=lambda d: d.function.__name__)
def test_a_double_has_mindspores_arguments(double):
    """A double's arguments have the names, order and defaults of MindSpore's function. gelu's are in C++, so MindSpore
    is asked at each call."""
    theirs, own = double.arguments()
    assert own == theirs


@pytest.mark.parametrize("name", hccl.NAMES)
def test_a_primitive_of_hccl_has_mindspores_arguments(name):
    """The double of each HCCL primitive has the argument names of MindSpore's definition, in its order."""
    assert [*signature(getattr(hccl.Primitives, name)).parameters] == hccl.definition(name)


def x(*shape: int, dtype=mindspore.float32) -> Tensor:
    return Tensor(np.full(shape, 0.5, np.float32)).astype(dtype)


HALF = mindspore.float16
STEP = Tensor([0.0], mindspore.float32)
P = x(8)
SETTINGS = (1e-3, 0.9, 0.95, 0.1, 1e-8, False, False)
HEADS = (16, 2, 64)
Q = x(*HEADS, dtype=HALF)
TRIANGLE = Tensor(~np.tri(2048, dtype=bool))


def flash(q=Q, k=Q, v=Q, heads=4, scale=0.25, layout="SBH", **more):
    return ops.flash_attention_score(q, k, v, heads, scalar_value=scale, input_layout=layout, **more)


def block(q=Q, heads=4, mask=None, **settings):
    kernel = FlashAttentionScore(heads, scale_value=0.25, input_layout="SBH", **settings)
    return kernel(q, Q, Q, None, None, None, mask)


def gradient(dy=Q, statistics=(2, 4, 16, 8), dtype=mindspore.float32, out=Q):
    kernel = FlashAttentionScoreGrad(4, scale_value=0.25, input_layout="SBH")
    rows = x(*statistics, dtype=dtype)
    return kernel(Q, Q, Q, dy, None, None, None, None, rows, rows, None, out)


LEFT, RIGHT = [x(3, 8, dtype=HALF), x(1, 8, dtype=HALF)], [x(8, 4, dtype=HALF)] * 2


def products(left=LEFT, right=RIGHT, **more):
    return GroupedMatmulV4()(left, right, split_item=0, group_type=-1, **more)


GOOD = {
    "grouped matmul": products,
    "grouped matmul: a weight's view": lambda: products(right=[ops.transpose(x(4, 8, dtype=HALF), (1, 0))] * 2),
    "rms_norm": lambda: ops.rms_norm(x(4, 2, 8), x(8), 1e-5),
    "layer_norm": lambda: mint.nn.functional.layer_norm(x(4, 2, 8), (8,), x(8), x(8), 1e-5),
    "gelu": lambda: mint.nn.functional.gelu(x(4, 8), approximate="tanh"),
    "swiglu": lambda: ops.swiglu(x(4, 8), -1),
    "rotary": lambda: ops.rotary_position_embedding(x(4, 2, 2, 8), x(4, 2, 1, 8), x(4, 2, 1, 8), 0),
    "interleaved rotary": lambda: ops.rotary_position_embedding(x(4, 2, 2, 8), x(4, 1, 1, 8), x(4, 1, 1, 8), 1),
    "adamw": lambda: AdamW()(P, P, P, P, P, STEP, *SETTINGS),
    "flash": flash,
    "causal flash": lambda: flash(attn_mask=TRIANGLE, sparse_mode=2),
    "block": block,
    "causal block": lambda: block(mask=TRIANGLE, sparse_mode=2),
    "gradient": gradient,
}
WRONG = {
    "grouped matmul: float32": lambda: products([x(3, 8)] * 2, [x(8, 4)] * 2),
    "grouped matmul: types differ": lambda: products(right=[x(8, 4, dtype=mindspore.bfloat16)] * 2),
    "grouped matmul: lengths differ": lambda: products(right=RIGHT[:1]),
    "grouped matmul: sizes differ": lambda: products(right=[x(7, 4, dtype=HALF)] * 2),
    "grouped matmul: no rows": lambda: products(left=[LEFT[0], x(0, 8, dtype=HALF)]),
    "grouped matmul: a tensor": lambda: products(LEFT[0], RIGHT[0]),
    "grouped matmul: three axes": lambda: products(right=[x(1, 8, 4, dtype=HALF)] * 2),
    "grouped matmul: 129 products": lambda: products(LEFT[:1] * 129, RIGHT[:1] * 129),
    "grouped matmul: a long axis": lambda: products([x(1, 65536, dtype=HALF)], [x(65536, 1, dtype=HALF)]),
    "grouped matmul: a transposed left side": lambda: products([ops.transpose(x(8, 3, dtype=HALF), (1, 0))] * 2),
    "grouped matmul: split into one": lambda: GroupedMatmulV4()(LEFT, RIGHT, split_item=3, group_type=-1),
    "rms_norm: the name of torch": lambda: ops.rms_norm(x(4, 8), x(8), eps=1e-5),
    "rms_norm: weight of another size": lambda: ops.rms_norm(x(4, 8), x(7), 1e-5),
    "rms_norm: weight of another type": lambda: ops.rms_norm(x(4, 8, dtype=HALF), x(8), 1e-5),
    "rms_norm: epsilon is an int": lambda: ops.rms_norm(x(4, 8), x(8), 1),
    "rms_norm: epsilon is 0": lambda: ops.rms_norm(x(4, 8), x(8), 0.0),
    "layer_norm: normalized shape": lambda: mint.nn.functional.layer_norm(x(4, 8), (4,), x(8), x(8), 1e-5),
    "layer_norm: bias of another size": lambda: mint.nn.functional.layer_norm(x(4, 8), (8,), x(8), x(7), 1e-5),
    "layer_norm: types differ": lambda: mint.nn.functional.layer_norm(x(4, 8), (8,), x(8), x(8, dtype=HALF), 1e-5),
    "gelu: another approximation": lambda: mint.nn.functional.gelu(x(4, 8), approximate="erf"),
    "gelu: approximation by position": lambda: mint.nn.functional.gelu(x(4, 8), "tanh"),
    "gelu: integers": lambda: mint.nn.functional.gelu(Tensor([1, 2])),
    "swiglu: odd width": lambda: ops.swiglu(x(4, 7), -1),
    "swiglu: no such axis": lambda: ops.swiglu(x(4, 8), 2),
    "rotary: 3 axes": lambda: ops.rotary_position_embedding(x(4, 2, 8), x(4, 1, 8), x(4, 1, 8), 0),
    "rotary: another type": lambda: ops.rotary_position_embedding(
        x(4, 2, 2, 8, dtype=HALF), x(4, 1, 1, 8), x(4, 1, 1, 8), 0
    ),
    "rotary: odd width": lambda: ops.rotary_position_embedding(x(4, 2, 2, 7), x(4, 1, 1, 7), x(4, 1, 1, 7), 0),
    "rotary: angles of half the width": lambda: ops.rotary_position_embedding(
        x(4, 2, 2, 8), x(4, 1, 1, 4), x(4, 1, 1, 4), 0
    ),
    "rotary: neighbours with a sample's angles": lambda: ops.rotary_position_embedding(
        x(4, 2, 2, 8), x(4, 2, 1, 8), x(4, 2, 1, 8), 1
    ),
    "rotary: no such mode": lambda: ops.rotary_position_embedding(x(4, 2, 2, 8), x(4, 1, 1, 8), x(4, 1, 1, 8), 2),
    "rotary: head too wide": lambda: ops.rotary_position_embedding(x(1, 1, 1, 896), x(1, 1, 1, 896), x(1, 1, 1, 896)),
    "adamw: step is a number": lambda: AdamW()(P, P, P, P, P, Tensor(0.0, mindspore.float32), *SETTINGS),
    "adamw: step before the first": lambda: AdamW()(P, P, P, P, P, Tensor([-1.0], mindspore.float32), *SETTINGS),
    "adamw: step of 32-bit integers": lambda: AdamW()(P, P, P, P, P, Tensor([0], mindspore.int32), *SETTINGS),
    "adamw: gradient of another size": lambda: AdamW()(P, P, P, P, x(7), STEP, *SETTINGS),
    "adamw: bfloat16 weights": lambda: AdamW()(*[x(8, dtype=mindspore.bfloat16)] * 5, STEP, *SETTINGS),
    "adamw: moments of another type": lambda: AdamW()(P, x(8, dtype=HALF), P, P, P, STEP, *SETTINGS),
    "adamw: a gradient of another type": lambda: AdamW()(P, P, P, P, x(8, dtype=HALF), STEP, *SETTINGS),
    "adamw: a beta of 1": lambda: AdamW()(P, P, P, P, P, STEP, 1e-3, 1.0, 0.95, 0.1, 1e-8, False, False),
    "adamw: the rate is an int": lambda: AdamW()(P, P, P, P, P, STEP, 1, 0.9, 0.95, 0.1, 1e-8, False, False),
    "flash: float32": lambda: flash(*[x(*HEADS)] * 3),
    "flash: types differ": lambda: flash(k=x(*HEADS, dtype=mindspore.bfloat16)),
    "flash: heads don't divide": lambda: flash(heads=5),
    "flash: head size 8": lambda: flash(heads=8),
    "flash: head size 528": lambda: flash(*[x(2, 1, 528, dtype=HALF)] * 3, heads=1),
    "flash: groups don't divide heads": lambda: flash(k=x(16, 2, 48, dtype=HALF), v=x(16, 2, 48, dtype=HALF)),
    "flash: keys and values differ": lambda: flash(v=x(16, 2, 32, dtype=HALF)),
    "flash: batches differ": lambda: flash(k=x(16, 1, 64, dtype=HALF), v=x(16, 1, 64, dtype=HALF)),
    "flash: no such layout": lambda: flash(layout="SBND"),
    "flash: axes of another layout": lambda: flash(layout="BSND"),
    "flash: the scale is an int": lambda: flash(scale=1),
    "flash: causal without its mask": lambda: flash(sparse_mode=2),
    "flash: causal with a whole mask": lambda: flash(attn_mask=Tensor(~np.tri(16, dtype=bool)), sparse_mode=2),
    "flash: the lower triangle": lambda: flash(attn_mask=Tensor(np.tri(2048, dtype=bool)), sparse_mode=2),
    "flash: a mask of floats": lambda: flash(attn_mask=x(16, 16)),
    "flash: a mask of three axes": lambda: flash(attn_mask=Tensor(np.zeros((2, 16, 16), bool))),
    "flash: a mask for one of two samples": lambda: flash(attn_mask=Tensor(np.zeros((1, 1, 16, 16), bool))),
    "flash: dropout without a mask": lambda: flash(keep_prob=0.9),
    "block: float32": lambda: block(q=x(*HEADS)),
    "block: causal without its mask": lambda: block(sparse_mode=2),
    "block: a small triangle": lambda: block(mask=Tensor(~np.tri(16, dtype=bool)), sparse_mode=2),
    "gradient: output's gradient in float32": lambda: gradient(dy=x(*HEADS)),
    "gradient: one number a row": lambda: gradient(statistics=(2, 4, 16, 1)),
    "gradient: statistics in 16 bits": lambda: gradient(dtype=HALF),
    "gradient: output in float32": lambda: gradient(out=x(*HEADS)),
}


@pytest.fixture
def ascend():
    with ascend_operators():
        yield


@pytest.mark.parametrize("call", GOOD.values(), ids=GOOD)
def test_a_right_call_is_computed(call, ascend):
    """Each of GOOD, calls that MindSpore accepts, is computed by the double, which returns tensors or None."""
    result = call()
    assert all(isinstance(y, Tensor) or y is None for y in (result if isinstance(result, tuple) else (result,)))


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_a_wrong_call_is_refused(call, ascend):
    """Each of WRONG, calls against MindSpore's definition or the kernel's limits, is an error of the double."""
    with pytest.raises((ValueError, TypeError, RuntimeError, AssertionError)):
        call()
