"""Reading a HuggingFace folder, whose weights are in safetensors or in files of torch.save; and a model's weights under
the names of such files."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.checkpoint.convert.huggingface.config import family_of, left_out, settings_of
from parallel_core.checkpoint.convert.huggingface.family import ENDS, FURTHER_LAYERS, Family
from parallel_core.checkpoint.convert.huggingface.quantised import block_of, dequantised
from parallel_core.checkpoint.convert.huggingface.rules import SAME, Rows
from parallel_core.checkpoint.convert.huggingface.tables import IGNORED
from parallel_core.checkpoint.convert.model import Model
from parallel_core.checkpoint.lazy import LazyTensor, concatenated, same_bits
from parallel_core.checkpoint.tensor_file import TensorFile
from parallel_core.checkpoint.torch_files.archive import read_archive
from parallel_core.config.hybrid import ATTENTION, EXPERTS, MAMBA, MLP
from parallel_core.sharding import Box
from parallel_core.system.files import plain_file, read_json

CONFIG = "config.json"
_FORMATS = (("model", "safetensors"), ("pytorch_model", "bin"))
"""(name, ending) of the files that hold weights, the preferred format first."""
_COUNTED = ("num_hidden_layers", "n_layer", "num_local_experts", "num_experts", "n_routed_experts", "num_layers")
"""Keys with a number of layers or experts, each of which has tensors."""


def is_huggingface(folder: Path) -> bool:
    """Whether a folder has config.json, and beside it model.safetensors, pytorch_model.bin or the index of files of
    either kind, whose name adds ".index.json"."""
    return (folder / CONFIG).is_file() and _format_of(folder) is not None


def read_huggingface(folder: Path, *, optimizer: bool = True) -> Model:
    """The model of a HuggingFace folder (`is_huggingface`), which has no optimizer, whatever `optimizer` says. Raises
    ValueError if something is not known here or contradicts something else in the folder; ValueError, KeyError or
    OSError, by its kind, if something is missing or cannot be read. Values of wrong types may raise others."""
    config = read_json(folder / CONFIG)
    family, block = family_of(config), block_of(config)
    tensors = dequantised(read_tensors(folder), block)
    _check_counts(config, sum(_parts(name, tensor, family) for name, tensor in tensors.items()))
    found = settings_of(config, family)
    network = found["model_config"]
    theirs = dict(_named(tensors, family, network["num_layers"]))
    if family.stacks_experts:
        theirs = dict(_unstacked(theirs))
    if found.get("moe_config", {}).get("num_zero_experts"):
        theirs = dict(_of_real_experts(theirs, found["moe_config"]["num_experts"]))
    theirs = {by_kind(name, network): tensor for name, tensor in theirs.items()}
    if not network["untie_embeddings_and_output_weights"]:
        _drop_copy(theirs, "lm_head.weight", folder)
    weights = _joined(theirs, family, Rows.of(found), folder)
    further = {name.split(".")[2] for name in weights if name.startswith(FURTHER_LAYERS[0])}
    if further:
        shares = _drop_copies(weights)
        network["multi_token_prediction"] = {"num_layers": len(further), "share_embedding_and_output_weight": shares}
    model = Model(
        weights,
        found,
        left_out=left_out(config, family),
        model_type=family.model_type,
    )
    if model.vocab_size != model.unpadded_vocab_size:
        raise ValueError(f"{CONFIG}: vocab_size {model.unpadded_vocab_size}: the embedding has {model.vocab_size} rows")
    return model


def _check_counts(config: Mapping[str, Any], tensors: int) -> None:
    """Raise ValueError if config.json has more layers or experts than there are tensors, stacked ones taken apart,
    before work is done for each of them."""
    for key in _COUNTED:
        if isinstance(config.get(key), int) and config[key] > tensors:
            raise ValueError(f"{CONFIG}: {key} {config[key]}: the files have no more than {tensors} tensors")


def _parts(name: str, tensor: LazyTensor, family: Family) -> int:
    """The number of tensors that a tensor of the family's files is, taken apart by experts (`_unstacked`)."""
    is_stack = family.stacks_experts and tensor.shape and re.fullmatch(_STACKED, name)
    return min(tensor.shape[0], tensor.nbytes) if is_stack else 1


def _format_of(folder: Path) -> tuple[str, str] | None:
    for name, ending in _FORMATS:
        if (folder / f"{name}.{ending}").is_file() or (folder / f"{name}.{ending}.index.json").is_file():
            return name, ending
    return None


def read_tensors(folder: Path) -> dict[str, LazyTensor]:
    """Name in the files -> tensor, unread; constants, such as rotary frequencies, are left out. The folder has files of
    weights (`is_huggingface`). Raises ValueError or OSError for a file that is missing or not readable, ValueError for
    a tensor that a file lacks by the index or that two files have, KeyError for an index without "weight_map"."""
    found = _format_of(folder)
    assert found is not None
    name, ending = found
    index = folder / f"{name}.{ending}.index.json"
    tensors_of = _safetensors if ending == "safetensors" else _of_torch
    whole = folder / f"{name}.{ending}"
    if whole.is_file():  # transformers ignores an index beside it, too
        return tensors_of(whole)
    files = read_json(index)["weight_map"]
    tensors: dict[str, LazyTensor] = {}
    for file in sorted(set(files.values())):
        path = plain_file(folder, file, links=True)
        if not path.is_file():
            raise ValueError(f"{path}: there is no such file, which {index.name} names; download or copy it again")
        there = tensors_of(path)
        named = {key for key, value in files.items() if value == file and not _is_constant(key)}
        if named - there.keys():
            raise ValueError(
                f"{path}: lacks {', '.join(sorted(named - there.keys())[:5])}, which {index.name} says it has"
            )
        if tensors.keys() & there.keys():
            raise ValueError(f"{path}: has {sorted(tensors.keys() & there.keys())[0]}, which another file has too")
        tensors |= there
    return tensors


def _safetensors(path: Path) -> dict[str, LazyTensor]:
    file = TensorFile(path)
    return {name: file.tensor(name) for name in file.names if not _is_constant(name)}


def _of_torch(path: Path) -> dict[str, LazyTensor]:
    found = {name: value for name, value in read_archive(path).items() if isinstance(value, LazyTensor)}
    return {name: tensor for name, tensor in found.items() if not _is_constant(name)}


def _is_constant(name: str) -> bool:
    return re.fullmatch(IGNORED, name) is not None


def _named(tensors: Mapping[str, LazyTensor], family: Family, layers: int) -> Iterator[tuple[str, LazyTensor]]:
    """(name as in the family's table, tensor): with its prefix, and further layers as multi-token prediction's."""
    prefix = family.optional_prefix
    is_bare = prefix and not any(name.startswith(prefix) for name in tensors)
    for name, tensor in tensors.items():
        name = f"{prefix}{name}" if is_bare and name != "lm_head.weight" else name
        if family.predicts_further:
            name = re.sub(r"^model\.layers\.(\d+)\.", lambda m: _further(int(m[1]), layers), name)
        yield name, tensor


_KINDS = {MAMBA: "mamba", ATTENTION: "attention", MLP: "mlp", EXPERTS: "moe"}


def by_kind(name: str, network: Mapping[str, Any]) -> str:
    """The name of a hybrid stack's parameter in the file, with the kind of its layer added behind the layer's number.
    The name stays as it is if `network` has no pattern of layers, if the name has no layer's number, or if the layer is
    beyond the pattern or has several parts side by side."""
    pattern = network.get("hybrid", {}).get("layer_pattern")
    if pattern is None:
        return name
    return re.sub(
        r"(\.layers\.(\d+)\.)",
        lambda m: f"{m[1]}{_KINDS[pattern[int(m[2])]]}." if pattern[int(m[2]) :][:1] in {*_KINDS} else m[1],
        name,
    )


def without_kind(name: str, network: Mapping[str, Any]) -> str:
    """The name of a parameter in the file, from a name to which `by_kind` added the kind of a layer."""
    pattern = network.get("hybrid", {}).get("layer_pattern")
    if pattern is None:
        return name
    return re.sub(
        rf"(\.layers\.(\d+)\.)({'|'.join(_KINDS.values())})\.",
        lambda m: m[1] if pattern[int(m[2])] in _KINDS else m[0],
        name,
    )


_STACKED = r"(.*\.experts)\.([a-z]\w*)"


def _unstacked(tensors: Mapping[str, LazyTensor]) -> Iterator[tuple[str, LazyTensor]]:
    """(name, tensor) with a tensor of all of a layer's experts taken apart into one for each."""
    for name, tensor in tensors.items():
        found = re.fullmatch(_STACKED, name)
        if found is None:
            yield name, tensor
            continue
        for number in range(tensor.shape[0]):
            box = Box.alone((number, *[0] * (len(tensor.shape) - 1)), (1, *tensor.shape[1:]))
            yield f"{found[1]}.{number}.{found[2]}", tensor.part(box).reshaped(tensor.shape[1:])


def _of_real_experts(tensors: Mapping[str, LazyTensor], experts: int) -> Iterator[tuple[str, LazyTensor]]:
    """(name, tensor) without those of experts that do nothing. experts: the number of the others."""
    for name, tensor in tensors.items():
        found = re.search(r"\.experts\.(\d+)\.", name)
        if found is None or int(found[1]) < experts:
            yield name, tensor


def _stacked(tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """Name -> tensor with the experts of each layer stacked along a new first axis; undoes `_unstacked`."""
    found: dict[str, LazyTensor] = {}
    stacks: dict[str, dict[int, LazyTensor]] = defaultdict(dict)
    for name, tensor in tensors.items():
        start, _, rest = name.partition(".experts.")
        if rest:
            number, _, of_expert = rest.partition(".")
            stacks[f"{start}.experts.{of_expert}"][int(number)] = tensor.reshaped((1, *tensor.shape))
        else:
            found[name] = tensor
    return found | {name: concatenated([parts[number] for number in sorted(parts)]) for name, parts in stacks.items()}


def _further(layer: int, layers: int) -> str:
    """The beginning of a layer's names; a layer beyond the last is one of multi-token prediction (DeepSeek-V3),
    numbered from 0 there."""
    return f"model.layers.{layer}." if layer < layers else f"{FURTHER_LAYERS[1]}{layer - layers}."


def _drop_copy(tensors: dict[str, LazyTensor], name: str, folder: Path) -> None:
    """Remove the copy of the embedding, called `name`, that some files of tied models have. Raises ValueError if it is
    no copy."""
    copy, embedding = (
        tensors.pop(name, None),
        next(
            (t for n, t in tensors.items() if n.endswith(("embed_tokens.weight", "wte.weight", "embeddings.weight"))),
            None,
        ),
    )
    if copy is not None and embedding is not None and not same_bits(copy, embedding):
        rule = f"tie_word_embeddings is true, but {name} is another than the embedding"
        raise ValueError(f"{folder / CONFIG}: {rule}; set it to false if the model has both")


def _drop_copies(weights: dict[str, LazyTensor]) -> bool:
    """Whether layers of multi-token prediction use the model's embedding and output layer: then copies of these are
    removed from `weights`. If one of their tables differs, all stay."""
    copies = {
        name: weights.get(end) or weights[ENDS[0]]
        for name in weights
        for end in ENDS
        if name.startswith(FURTHER_LAYERS[0]) and name.endswith(f".{end}")
    }
    if not all(same_bits(weights[name], original) for name, original in copies.items()):
        return False
    for name in copies:
        del weights[name]
    return True


def _joined(theirs: Mapping[str, LazyTensor], family: Family, rows: Rows, folder: Path) -> dict[str, LazyTensor]:
    """Our name -> tensor, in the order of the family's table within each layer. Raises ValueError naming tensors that
    are unknown or missing."""
    find = finder([names for _, names, _ in family.parameters])
    groups: dict[tuple[int, tuple[int, ...]], dict[int, LazyTensor]] = defaultdict(dict)
    unknown = []
    for name, tensor in theirs.items():
        spot = find(name)
        if spot is not None:
            number, part, numbers = spot
            groups[number, numbers][part] = tensor
        else:
            unknown.append(name)
    if unknown:
        raise ValueError(
            f"{folder}: not known in a model of type {family.model_type}: {', '.join(sorted(unknown)[:8])}"
        )
    weights = {}
    for (number, numbers), parts in sorted(groups.items(), key=lambda item: (item[0][1][:1], item[0])):
        ours, names, rule = family.parameters[number]
        missing = [name for part, name in enumerate(names) if part not in parts]
        if missing:
            raise ValueError(f"{folder}: {', '.join(fill(name, numbers) for name in missing)} is missing")
        kinds = sorted({part.dtype for part in parts.values()})
        if len(kinds) > 1:
            raise ValueError(f"{folder}: {fill(ours, numbers)} is made of tensors of types {', '.join(kinds)}")
        try:
            weights[fill(ours, numbers)] = rule.join([parts[part] for part in range(len(names))], rows)
        except ValueError as error:
            raise ValueError(f"{folder}: {fill(ours, numbers)}: {error}") from error
    return weights


_NUMBER = r"(?<=\.)\d+(?=\.)"


def finder(rows: Iterable[Sequence[str]]) -> Callable[[str], tuple[int, int, tuple[int, ...]] | None]:
    """A function from a name to (number of the first row that has it, place in the row, both from 0, numbers at the
    row's {layer}, {expert}); None if no row has it."""
    patterns: dict[str, list[tuple[list[int | None], int, int]]] = defaultdict(list)
    for number, names in enumerate(rows):
        for part, name in enumerate(names):
            places = re.findall(rf"\{{\w+\}}|{_NUMBER}", name)
            fixed = [None if place.startswith("{") else int(place) for place in places]
            patterns[re.sub(rf"\{{\w+\}}|{_NUMBER}", "#", name)].append((fixed, number, part))

    def find(name: str) -> tuple[int, int, tuple[int, ...]] | None:
        numbers = [int(number) for number in re.findall(_NUMBER, name)]
        for fixed, row, part in patterns.get(re.sub(_NUMBER, "#", name), ()):
            if all(place in (None, number) for place, number in zip(fixed, numbers, strict=True)):
                return row, part, tuple(n for place, n in zip(fixed, numbers, strict=True) if place is None)
        return None

    return find


def fill(name: str, numbers: Iterable[int]) -> str:
    """A name of the table with numbers in place of {layer}, {expert}, in order."""
    left = iter(numbers)
    return re.sub(r"\{\w+\}", lambda _: str(next(left)), name)


def split(model: Model, family: Family) -> dict[str, LazyTensor]:
    """Name in the family's files -> tensor, of all weights and, where such files have them, of copies of embedding and
    output layer and of zeros for experts that do nothing. Raises ValueError for a weight that the family lacks."""
    find, rows = finder([(ours,) for ours, _, _ in family.parameters]), Rows.of(model.settings)
    theirs: dict[str, LazyTensor] = {}
    layers = model.network["num_layers"]
    for name, tensor in model.weights.items():
        spot = find(name)
        if spot is None:
            raise ValueError(f"{name}: models of type {family.model_type} have no such parameter")
        _, names, rule = family.parameters[spot[0]]
        parts = rule.split(tensor, rows) if rule is not SAME else [tensor]
        for one, part in zip(names, parts, strict=True):
            theirs[_beyond(without_kind(fill(one, spot[2]), model.network), layers)] = part
    theirs |= dict(_idle_experts(theirs, model.settings.get("moe_config", {})))
    further = model.network.get("multi_token_prediction", {})
    if family.repeats_ends and further.get("share_embedding_and_output_weight", True):
        called = {ours: names[0] for ours, names, _ in family.parameters}
        for number, end in product(range(further.get("num_layers") or 0), ENDS):
            copy = fill(called[f"{FURTHER_LAYERS[0]}{{layer}}.{end}"], (number,))
            theirs[_beyond(copy, layers)] = theirs.get(called[end]) or theirs[called[ENDS[0]]]
    return _stacked(theirs) if family.stacks_experts else theirs


def _idle_experts(theirs: Mapping[str, LazyTensor], moe: Mapping[str, Any]) -> Iterator[tuple[str, LazyTensor]]:
    """(name, tensor of zeros) for experts that do nothing: transformers 5 loads no file without these."""
    for name, tensor in theirs.items():
        found = re.fullmatch(r"(.*\.experts\.)0(\.(?:gate|up)_proj\..*)", name)
        if found is not None:
            for number in range(moe.get("num_zero_experts") or 0):
                yield f"{found[1]}{moe['num_experts'] + number}{found[2]}", tensor.changed(tensor.shape, np.zeros_like)


def _beyond(name: str, layers: int) -> str:
    start = re.escape(FURTHER_LAYERS[1])
    return re.sub(rf"^{start}(\d+)\.", lambda m: f"model.layers.{layers + int(m[1])}.", name)
