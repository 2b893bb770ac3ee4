"""Readers of values that are more than a number or a word. The first line of a reader's docstring says what it reads,
behind "must be" in messages (`mapping.readers.command_line.kind`).

A reader raises ValueError for a text that it cannot read; `layer_frequency` also SyntaxError and TypeError,
`attention_window` also TypeError, `whole` and `batch_sizes` also OverflowError.
"""

import ast
import re
from collections.abc import Sequence
from math import prod
from typing import Any

from parallel_core.numerics.dtypes import FLOATS
from parallel_core.schedules.actions import Placement


def literal(text: str) -> Any:
    """A Python literal: number, list, dictionary.

    Returns its value. Raises ValueError for any other text.
    """
    try:
        return ast.literal_eval(text)
    except (SyntaxError, TypeError, RecursionError, MemoryError) as error:  # the last two: it is nested too deeply
        raise ValueError(text) from error


def integers(text: str) -> list[int]:
    """`1,2,3`.

    Returns the numbers of such a text; empty parts are skipped. Raises ValueError for a part that is no whole number.
    """
    return [int(part) for part in text.split(",") if part.strip()]


def layer_list(text: str) -> list[Any]:
    """`4,4,4,2` or `[[4,4],[4,2]]`.

    Returns the list of such a text. One that begins with a bracket is read as by `literal`, and its entries are not
    checked. Raises ValueError for any other text.
    """
    if text.lstrip().startswith("["):
        return list(literal(text))
    return integers(text)


def dtype(given: Any) -> str:
    """`float32`, `float16` or `bfloat16`, also written as `fp16`, `half` or `torch.bfloat16`.

    Returns `float32`, `float16` or `bfloat16` for one of these names, `fp32`, `fp16`, `half` or `bf16`, perhaps behind
    `torch.`, and for an object that prints so, such as torch's types. Raises ValueError for anything else.
    """
    short = {"fp32": "float32", "fp16": "float16", "half": "float16", "bf16": "bfloat16"}
    name = str(given).removeprefix("torch.")
    name = short.get(name, name)
    if name not in FLOATS:
        raise ValueError(given)
    return name


MOST_LAYERS = 10_000
"""A bound on the numbers in a pattern of layers: more are a slip, and would only fill the memory."""


def layer_frequency(text: str) -> int | list[int]:
    """`2`, or an expression of lists of 0 and 1 such as `([0]*1+[1]*3)*2`.

    Returns the number or the list; that its entries are 0 and 1, and as many as there are layers, is not checked.
    Raises ValueError for other parts, lists in lists, and more than MOST_LAYERS; SyntaxError or TypeError for what
    Python cannot compute.
    """
    try:
        result = _computed(ast.parse(text, mode="eval").body)
    except (MemoryError, RecursionError) as error:
        raise ValueError(text) from error
    if isinstance(result, list) and not all(isinstance(entry, int) for entry in result):
        raise ValueError(text)
    if (len(result) if isinstance(result, list) else abs(result)) > MOST_LAYERS:
        raise ValueError(text)
    return result


def _computed(node: ast.expr) -> Any:
    """The value of an expression of whole numbers and lists with -, + and *. Raises ValueError for other expressions,
    and before a sum or product is above MOST_LAYERS, or a list of more entries."""
    match node:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return number
        case ast.List(elts=entries):
            return [_computed(entry) for entry in entries]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_computed(operand)
        case ast.BinOp(left=left, op=ast.Add() | ast.Mult() as sign, right=right):
            both = _computed(left), _computed(right)
            sizes = [len(part) if isinstance(part, list) else part for part in both]
            total = sum(sizes) if isinstance(sign, ast.Add) else prod(sizes)
            if total > MOST_LAYERS:
                raise ValueError(node)
            return both[0] + both[1] if isinstance(sign, ast.Add) else both[0] * both[1]
    raise ValueError(node)


def attention_window(given: str | Sequence[Any]) -> int | None:
    """`4096,0`, `(4096, 0)` or a list, tokens before and after a query's own, as how many before; -1 before: none.

    Returns the number of tokens before; None, no window, for -1. Raises ValueError or TypeError unless there are two
    whole numbers, the first at least -1, the second 0 or -1.
    """
    text = given if isinstance(given, str) else str(tuple(given))
    before, after = literal(text if text.lstrip().startswith("(") else f"({text})")
    if not isinstance(before, int) or before < -1 or after not in (0, -1):
        raise ValueError(text)
    return None if before == -1 else before


def numbers(text: str) -> list[float]:
    """Numbers with commas.

    Returns the numbers; empty parts are skipped. Raises ValueError for a part that is no number.
    """
    return [float(part) for part in text.split(",") if part.strip()]


def whole(text: str) -> int:
    """A whole number, perhaps written as 8192.0.

    Returns it, exact up to 2^53. Raises ValueError for any other text, OverflowError for an infinite number.
    """
    number = float(text)
    if number != int(number):
        raise ValueError(text)
    return int(number)


def parts(value: Any) -> list[Any]:
    """The values of a flag that takes one or several, as a list: `value` itself if it is one, else [value]."""
    return value if isinstance(value, list) else [value]


def boolean(text: str) -> bool:
    """True or false.

    Returns the truth value of `true`, `1`, `false` or `0`, in capitals or not. Raises ValueError for any other text.
    """
    known = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in known:
        raise ValueError(text)
    return known[text.lower()]


_THOUSANDS = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def batch_sizes(text: str) -> list[list[int]]:
    """`0:384 200B:768`: pairs of an amount, with K, M, B or T for thousands, and a size.

    Returns the pairs [amount, size], none for an empty text; K, M, B, T are 10^3, 10^6, 10^9, 10^12. Raises ValueError
    for any other text, OverflowError for an infinite amount before such a letter.
    """
    pairs = (pair.split(":") for pair in text.split())
    return [[_amount(amount), int(size)] for amount, size in pairs]


def _amount(text: str) -> int:
    unit = _THOUSANDS.get(text[-1:].upper())
    return int(text) if unit is None else round(float(text[:-1]) * unit)


HUNYUAN = "hunyuan_spec"
"""Name of Hunyuan-Large's spec (2024): heads are normed after their rotation, rotary positions are stretched by alpha
1000, and --scale-depth acts on feed-forward blocks alone."""
SPECS = (
    "bailing_spec",
    "deepseek4_spec",
    "deepseek_spec",
    "gemma2_spec",
    HUNYUAN,
    "longcat_spec",
    "mamba_layer_specs",
    "mamba_spec",
    "mamba_stack_spec",
    "grok_spec",
    "minicpm_spec",
    "minimax_spec",
    "phi35_moe_spec",
    "plm_spec",
    "qwen2_moe_spec",
    "qwen3_next_spec",
    "qwen3_spec",
)


def spec(text: str) -> str:
    """A spec of bailing, deepseek, gemma2, grok, hunyuan, longcat, mamba, minicpm, minimax, phi35_moe, plm or qwen.

    Returns the text itself, if it is `layer_spec`, `mtp_spec`, one of SPECS, or a path with dots that ends in one of
    SPECS. Raises ValueError for any other.
    """
    if text not in ("layer_spec", "mtp_spec") and text.rpartition(".")[2] not in SPECS:
        raise ValueError(text)
    return text


def has_spec(args: Any, name: str) -> bool:
    """Whether a word of --spec contains `name`, the name of a file of layers."""
    return any(name in str(part) for part in args.spec or ())


LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
"""Part that a pipeline stage may hold, as lists name it -> its letter in texts."""

_WHOLE = re.compile(r"E[t|]*[m|]*L")


def pipeline_layout(given: str | Sequence[Any]) -> list[str]:
    """Stages such as Et*3|(tt|)*5mL: E(mbedding), t for each layer, m(ulti-token prediction), L(oss), in this order.

    Returns the letters of each virtual stage, in the order in which a micro-batch goes through them. `x*n` and
    `(...)*n` repeat, commas mean nothing; lists of Megatron's words (embedding, decoder, mtp, loss) are taken as well.
    Raises ValueError for anything else.
    """
    if isinstance(given, str):
        given = literal(given) if given.lstrip().startswith("[") else _unrolled(given.replace(",", "")).split("|")
    if not all(isinstance(stage, str | list | tuple) for stage in given):
        raise ValueError(given)
    stages = ["".join(LETTERS.get(str(part).strip().lower(), str(part)) for part in stage) for stage in given]
    if not _WHOLE.fullmatch("|".join(stages)):
        raise ValueError(given)
    return stages


def _unrolled(text: str) -> str:
    """The pattern with its repetitions written out: those of groups first, from the innermost outwards, then those of
    letters. Raises ValueError for too many layers."""
    for repetition in (re.compile(r"\(([^()]+)\)\*(\d+)"), re.compile(r"([^()*\d])\*(\d+)")):
        found = repetition.search(text)
        while found:
            repeated, times = found[1], int(found[2])
            if len(repeated) * times > 2 * MOST_LAYERS:
                raise ValueError(text)
            text = text[: found.start()] + repeated * times + text[found.end() :]
            found = repetition.search(text)
    return text


OF_OBJECTS = (dtype, attention_window, pipeline_layout)
"""Readers that take objects of other parsers besides text."""


def layers_of_stages(stages: Sequence[str], pipeline_size: int, folded: bool) -> list[int] | list[list[int]]:
    """The number of layers of each stage; where stages have several chunks a list of these for each chunk, as
    `--num-layer-list` has them. stages: letters of each virtual stage, in the order of a micro-batch's visits;
    pipeline_size: the number of stages; folded: whether every other chunk goes through them backwards."""
    placement = Placement(pipeline_size, len(stages) // pipeline_size, folded)
    chunks = [
        [stages[placement.virtual(stage, chunk)].count("t") for stage in range(placement.stages)]
        for chunk in range(placement.chunks)
    ]
    return chunks if len(chunks) > 1 else chunks[0]
