"""Writing a legacy checkpoint of Megatron-LM for a given parallel layout: a file for each of `Layout.ranks`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from parallel_core.checkpoint.commit import TRACKER, checkpoint_name
from parallel_core.checkpoint.convert.megatron.args import arguments_of
from parallel_core.checkpoint.convert.megatron.legacy import FILE
from parallel_core.checkpoint.convert.megatron.names import (
    ENGINE_ORDER,
    LOCAL_ORDER,
    STACK_ORDER,
    Chunk,
    chunks_of,
    expert_of,
    in_engine,
    shifted,
)
from parallel_core.checkpoint.convert.megatron.optimizer import SCALER_TRACKERS, is_decayed, is_of_expert
from parallel_core.checkpoint.convert.megatron.out_norm import as_megatrons
from parallel_core.checkpoint.convert.megatron.shards import BUFFERS, Cuts
from parallel_core.checkpoint.convert.model import Model, Position, padded
from parallel_core.checkpoint.lazy import LazyTensor, concatenated, of_array
from parallel_core.checkpoint.torch_files.pickles import TypeName
from parallel_core.checkpoint.torch_files.write import Namespace, write_archive
from parallel_core.config import serialise
from parallel_core.optimizer import MAIN_PARAM
from parallel_core.sharding import Coordinates, place

_USUAL: dict[str, Any] = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}


class RankParameter(NamedTuple):
    """A parameter of a rank: its part of the weight, and state -> its part of the state."""

    name: str
    """The name with local numbers of layers and experts."""
    weight: LazyTensor
    states: Mapping[str, LazyTensor]


def optimizer_of(entries: Sequence[RankParameter], position: Position) -> Any:
    """The entry "optimizer" of a rank's file: one dictionary or, where the rank has experts' parameters and others, a
    list of two, the second for the experts'; an empty list for no parameter. entries: the rank's parameters in the
    model's order; position: has the steps, the hyperparameters, the schedule and the loss scaler."""
    parts = []
    for expert in (False, True):
        own = [e for e in entries if is_of_expert(e.name) == expert and not BUFFERS.fullmatch(e.name)]
        if own:
            parts.append(_one(own, expert, position))
    return parts[0] if len(parts) == 1 else parts


def _one(entries: Sequence[RankParameter], expert: bool, position: Position) -> dict[str, Any]:
    groups = [[e for e in entries if is_decayed(e.name, e.weight) == decayed] for decayed in (True, False)]
    members = [(decays, group) for decays, group in zip((1.0, 0.0), groups, strict=True) if group]
    numbered = [entry for _, group in members for entry in group]
    step = of_array(np.array(position.optimizer_steps, np.float32))
    state = {
        number: {"step": step, **{name: tensor for name, tensor in entry.states.items() if name != MAIN_PARAM}}
        for number, entry in enumerate(numbered)
    }
    param_groups, first = [], 0
    for decays, group in members:
        param_groups.append(_group(decays, expert, range(first, first + len(group)), position))
        first += len(group)
    inner = {"state": state, "param_groups": param_groups}
    if not any(MAIN_PARAM in entry.states for entry in numbered):
        return inner
    main = [[e.states[MAIN_PARAM] for e in group] for _, group in members]
    return {"optimizer": inner, "fp32_from_fp16_params": main, **_scaler(position)}


def _scaler(position: Position) -> dict[str, Any]:
    """The entry "grad_scaler" for a dynamic loss scaler; empty for other kinds, which have no state that Megatron
    knows."""
    state = position.loss_scaler
    if state is None or state["kind"] != "dynamic":
        return {}
    scale = of_array(np.array([state["scale"]], np.float32))
    return {"grad_scaler": {"scale": scale, **{name: state[name] for name in SCALER_TRACKERS}}}


def _group(decays: float, expert: bool, params: range, position: Position) -> dict[str, Any]:
    """A parameter group of the parameters with these numbers. decays: 1 with weight decay, 0 without. The rate of the
    next step is the scheduler's."""
    given = _USUAL | position.hyperparameters
    rate = position.scheduler.get("max_lr", 0.0)
    return {
        "wd_mult": decays,
        "lr_mult": 1.0,
        "is_expert_parallel": expert,
        "is_decoupled_lr": False,
        "default_config": True,
        "max_lr": rate,
        "min_lr": position.scheduler.get("min_lr", 0.0),
        "lr": rate,
        "betas": tuple(given["betas"]),
        "eps": given["eps"],
        "weight_decay": given["weight_decay"] * decays,
        "step": position.optimizer_steps,
        "params": list(params),
    }


CHECKPOINT_VERSION = 3.0


@dataclass(frozen=True)
class Layout:
    """The layout for which a checkpoint is written: tensor-parallel size, number of pipeline stages, layers of one
    model chunk of a stage (None: one chunk on each stage), expert-parallel size and expert-tensor-parallel size (None:
    the tensor-parallel one)."""

    tensor: int = 1
    stages: int = 1
    layers_of_chunk: int | None = None
    """The value of --num-layers-per-virtual-pipeline-stage; None: one chunk on each stage."""
    experts: int = 1
    """Expert-parallel size."""
    expert_tensor: int | None = None
    """Expert-tensor-parallel size, which divides that of tensor parallelism; None: the same."""

    @property
    def expert_tensor_size(self) -> int:
        """The number of ranks over which one expert is cut."""
        return self.tensor if self.expert_tensor is None else self.expert_tensor

    def chunks(self, layers: int) -> list[list[range]]:
        """Numbers of the layers of each chunk, indexed [chunk][stage], of a model of `layers` layers. Raises ValueError
        if these do not divide evenly over the stages and into chunks."""
        size = self.layers_of_chunk or (layers // self.stages if self.stages else 0)
        if not size or layers % (size * self.stages):
            raise ValueError(
                f"{layers} layers cannot be divided evenly over {self.stages} stage(s) in chunks of {size or '?'}"
            )
        ranges = [range(first, first + size) for first in range(0, layers, size)]
        return [ranges[first : first + self.stages] for first in range(0, len(ranges), self.stages)]

    def check_experts(self, count: int) -> None:
        """Raise ValueError unless the expert-parallel ranks, if they are several, divide `count` experts evenly, at
        least one each."""
        if self.experts > 1 and (not count or count % self.experts):
            raise ValueError(
                f"--expert-model-parallel-size {self.experts}: the model has {count} experts, which it does not "
                f"divide; change it"
            )

    def check_heads(self, count: int) -> None:
        """Raise ValueError unless the tensor-parallel ranks divide `count` heads evenly: otherwise a cut would go
        through one."""
        if count % self.tensor:
            raise ValueError(
                f"--tensor-model-parallel-size {self.tensor}: the model has {count} attention heads, which it does not "
                f"divide; change it"
            )

    def ranks(self) -> Iterator[tuple[int, int, int]]:
        """The (tensor-parallel, pipeline, expert-parallel) ranks that have a file, each once: stage by stage the pairs
        of tensor- and expert-parallel ranks that occur among the first max(tp, expert-tp x ep) ranks."""
        several = max(self.tensor, self.expert_tensor_size * self.experts)
        places = {(rank % self.tensor, rank // self.expert_tensor_size % self.experts) for rank in range(several)}
        for stage in range(self.stages):
            yield from ((tensor, stage, expert) for tensor, expert in sorted(places))


def write_legacy(model: Model, directory: Path, layout: Layout, divisible_by: int | None = None) -> None:
    """Write iter_*/mp_rank_*/model_optim_rng.pt (of iteration 0 release/...) and the tracker file into `directory`.
    divisible_by: --make-vocab-size-divisible-by; None: the model's own, else 128. Raises ValueError if the layout does
    not divide the model, or if Megatron has no such network or states, FileExistsError if a rank's folder is there."""
    if not model.has_states_of_megatron:
        kind = model.position.optimizer_kind
        raise ValueError(f"Megatron's files have no states of this optimizer ({kind}); add --no-load-optim")
    step = divisible_by or model.network.get("make_vocab_size_divisible_by") or 128
    model = as_megatrons(model.with_rows(padded(model.unpadded_vocab_size, step, layout.tensor)))
    config = serialise.config_of(model.settings)
    args = arguments_of(config) | _sizes(layout) | {"make_vocab_size_divisible_by": step}
    implementation = "transformer_engine" if _is_engines(model) else "local"
    args |= {"consumed_train_samples": model.position.consumed_samples, "transformer_impl": implementation}
    args["params_dtype"] = TypeName(model.weights["embedding.word_embeddings.weight"].dtype)
    chunks = chunks_of(layout.chunks(config.model_config.num_layers))
    layout.check_experts(_experts(model.weights))
    if any(".self_attention.linear_proj." in name for name in model.weights):
        layout.check_heads(config.model_config.num_attention_heads)
    cuts = Cuts(model.settings, model.weights)
    iteration = model.position.iteration
    folder = directory / (checkpoint_name(iteration) if iteration else "release")
    for tensor, stage, expert in layout.ranks():
        models = [_chunk(model, cuts, layout, one[stage], tensor, expert) for one in chunks]
        keys = ["model"] if len(models) == 1 else [f"model{number}" for number in range(len(models))]
        content: dict[str, Any] = {
            "args": Namespace(args),
            "checkpoint_version": CHECKPOINT_VERSION,
            "iteration": iteration,
            **{key: {e.name: e.weight for e in entries} for key, entries in zip(keys, models, strict=True)},
        }
        if model.states:
            content["optimizer"] = optimizer_of([entry for entries in models for entry in entries], model.position)
            content["opt_param_scheduler"] = model.position.scheduler
        path = folder / _name(layout, tensor, stage, expert) / FILE
        path.parent.mkdir(parents=True)
        write_archive(path, content)
    (directory / TRACKER).write_text(f"{iteration or 'release'}\n", encoding="utf-8")


def _name(layout: Layout, tensor: int, stage: int, expert: int) -> str:
    """The name of a rank's folder: the stage and the expert rank are in it where there are several."""
    stage_part = f"_{stage:03d}" if layout.stages > 1 else ""
    return f"mp_rank_{tensor:02d}{stage_part}" + (f"_{expert:03d}" if layout.experts > 1 else "")


def _sizes(layout: Layout) -> dict[str, Any]:
    return {
        "tensor_model_parallel_size": layout.tensor,
        "pipeline_model_parallel_size": layout.stages,
        "expert_model_parallel_size": layout.experts,
        "expert_tensor_parallel_size": layout.expert_tensor_size,
        "num_layers_per_virtual_pipeline_stage": layout.layers_of_chunk,
    }


def _chunk(model: Model, cuts: Cuts, layout: Layout, chunk: Chunk, tensor: int, expert: int) -> list[RankParameter]:
    """One rank's parameters of one model chunk, with local numbers, in the order of Megatron's models."""
    coordinates: Coordinates = {
        "tp": (tensor, layout.tensor),
        "expert-tp": (tensor % layout.expert_tensor_size, layout.expert_tensor_size),
    }
    count = _experts(model.weights)
    first_expert, own = expert * (count // layout.experts), count // layout.experts

    def entry(name: str, local: str) -> RankParameter:
        states = {state: tensors[name] for state, tensors in model.states.items() if name in tensors}
        cut = {state: _cut(name, whole, coordinates, cuts) for state, whole in states.items()}
        return RankParameter(local, _cut(name, model.weights[name], coordinates, cuts), cut)

    found, stack, engine = [], _is_stack(model), _is_engines(model)
    order = STACK_ORDER if stack else ENGINE_ORDER if engine else LOCAL_ORDER
    for name, own_name in chunk.parameters(model.weights, model.network, order):
        one = expert_of(name)
        if one is None or first_expert <= one < first_expert + own:
            local = shifted(own_name, -chunk.layers.start, -first_expert)
            found.append(entry(name, in_engine(name, local, model.weights, stack) if engine else local))
    return found


def _is_stack(model: Model) -> bool:
    return serialise.get(model.network, "hybrid.layer_pattern") is not None


def _is_engines(model: Model) -> bool:
    """Whether Megatron builds such a model of Transformer Engine's layers alone: a stack of layers of one part each, or
    with gated delta nets."""
    return _is_stack(model) or serialise.get(model.network, "sparse_attention.variant") == "gated_delta_net"


def _experts(weights: Mapping[str, LazyTensor]) -> int:
    return 1 + max((number for name in weights if (number := expert_of(name)) is not None), default=-1)


def _cut(name: str, whole: LazyTensor, coordinates: Coordinates, cuts: Cuts) -> LazyTensor:
    """The shard of a whole parameter that the rank at these coordinates holds."""
    spec = cuts.of(name, whole.shape)
    held = place(spec, coordinates)
    if len(held.boxes) == 1:
        return whole if held.shape == whole.shape else whole.part(held.boxes[0])
    return concatenated([whole.part(box) for box in held.boxes], spec.cuts[0].axis)
