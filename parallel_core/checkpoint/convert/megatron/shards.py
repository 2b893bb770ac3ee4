"""Ranks' parts of tensors, put together by how each is cut."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from parallel_core.checkpoint.convert.megatron import cuts
from parallel_core.checkpoint.convert.model import VOCABULARY
from parallel_core.checkpoint.lazy import LazyTensor, assembled, same_bits
from parallel_core.sharding import Coordinates, place

SIZES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "ep": "expert_model_parallel_size",
    "expert-tp": "expert_tensor_parallel_size",
}
"""Kind of a group -> the entry of `args` with the number of its ranks."""


def group_sizes(args: Mapping[str, Any], path: Path) -> dict[str, int]:
    """Ranks of each kind of group. Raises ValueError if they do not fit each other."""
    sizes = {kind: args.get(name) or 1 for kind, name in SIZES.items()}
    wrong = [SIZES[kind] for kind, size in sizes.items() if type(size) is not int or size < 1]
    if wrong:
        raise ValueError(f"{path}: {wrong[0]} in its args is {args.get(wrong[0])!r}, not a number of ranks")
    if args.get("expert_tensor_parallel_size") is None:
        sizes["expert-tp"] = sizes["tp"]
    return sizes


_COPY = "output_layer.weight"
"""Of the word embedding, in a tied model's last stage."""


class Part(NamedTuple):
    """What one rank holds of a tensor."""

    path: Path
    coordinates: Coordinates
    tensor: LazyTensor


class Shards:
    """Parts of the tensors of a folder's files, collected rank by rank."""

    def __init__(self, folder: Path, sizes: Mapping[str, int], network: Mapping[str, Any]) -> None:
        self._folder, self._sizes, self._gated = folder, sizes, cuts.is_gated(network)
        self._tied = not network.get("untie_embeddings_and_output_weights", False)
        self._down_rows = cuts.rows_of_down_projections(network)
        self._found: dict[str, dict[str, dict[tuple[int, ...], Part]]] = defaultdict(dict)

    def add(self, state: str, path: Path, coordinates: Coordinates, tensors: Mapping[str, LazyTensor]) -> None:
        """One rank's tensors of one kind: "" the weights."""
        for name, tensor in tensors.items():
            if self._tied and name == _COPY and state:
                continue  # its weight is compared
            spec = cuts.spec_of(name, tensor.shape, self._gated, self._is_local(name, tensor.shape))
            key = tuple(coordinates[cut.over][0] for cut in spec.cuts)
            self._found[state].setdefault(name, {}).setdefault(key, Part(path, coordinates, tensor))

    def _is_local(self, name: str, held: tuple[int, ...]) -> bool:
        """Whether a rank holds a part of a down projection's rows."""
        linear = name.split(".")[-2]
        return held[0] < self._down_rows.get(linear, 0)

    def merged(self) -> dict[str, dict[str, LazyTensor]]:
        """Whole tensors. Raises ValueError naming one of which a part is missing."""
        whole = {
            state: {name: self._whole(name, list(parts.values())) for name, parts in tensors.items()}
            for state, tensors in self._found.items()
        }
        copy = whole.get("", {}).pop(_COPY, None) if self._tied else None
        if copy is not None and not same_bits(copy, whole[""][VOCABULARY[0]]):
            raise ValueError(f"{self._folder}: untie_embeddings_and_output_weights is false, but {_COPY} is no copy")
        return whole

    def _whole(self, name: str, parts: list[Part]) -> LazyTensor:
        first = parts[0].tensor
        local = self._is_local(name, first.shape)
        shape = cuts.whole_shape(name, first.shape, self._sizes, self._gated, local)
        spec = cuts.spec_of(name, shape, self._gated, local)
        pieces = []
        for path, coordinates, tensor in parts:
            held = place(spec, coordinates)
            if held.shape != tensor.shape or tensor.dtype != first.dtype:
                raise ValueError(f"{path}: {name} is {list(tensor.shape)} {tensor.dtype}, {list(held.shape)} fits")
            pieces += [(box, tensor) for box in held.boxes]
        if len(pieces) == 1 and first.shape == shape:
            return first
        try:
            return assembled(shape, first.dtype, pieces)
        except ValueError as error:
            raise ValueError(f"{name}: not whole in {self._folder}: {error}") from error
