"""The real Megatron-Core trains a small model and saves it as Megatron-LM does, in any of its layouts and formats.

    MEGATRON_RECORDER=DIR python -m torch.distributed.run --nproc-per-node N megatron_checkpoint.py
        OUT FORMAT SHARDING CHOICES [Megatron's flags]

by a Python with megatron-core and torch; DIR has the goldens' recorder, `run_megatron.py`, which builds and trains the
model on a CPU. FORMAT is `torch` or `torch_dist`, SHARDING how states of the distributed optimizer are saved, CHOICES
names of `Choices` with commas between them, or `-`. OUT gets `checkpoint/`, and what each rank has as
`weights_rankN.npz` and `states_rankN.npz`, which check_megatron.py compares. megatron_cases.py has the flags.
Nothing of this project is imported.
"""

import copy
import importlib
import os
import sys
from argparse import Namespace
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

STATES = ("param", "exp_avg", "exp_avg_sq")


@dataclass
class Choices:
    """Settings that the recorder's flags do not give; numbers stand behind `=`."""

    first: int | None = None
    """Number of layers of the first pipeline stage."""
    last: int | None = None
    bucket: int | None = None
    """Elements of a gradient bucket."""
    grouped: bool = False
    """Keep all experts' weights in one parameter (GroupedMLP)."""
    no_optim: bool = False
    prefix: bool = False
    """Number the keys of chained optimizers, as earlier versions wrote them."""
    singleton: bool = False
    """Save single local shards: halves and experts under keys of their own."""
    constant: bool = False
    """Record the second of two checkpoints with --ckpt-assume-constant-structure."""
    asynchronous: bool = False

    @classmethod
    def of(cls, text: str) -> "Choices":
        """Choices from the text of the command line, `name` or `name=number` with commas between."""
        given = dict(one.split("=") if "=" in one else (one, "") for one in text.split(",") if one != "-")
        kinds = {entry.name: entry.type for entry in fields(cls)}
        return cls(**{name: True if kinds[name] is bool else int(value) for name, value in given.items()})


def grouped_products() -> None:
    """Install a module `grouped_gemm` of plain products in place of the package whose kernels need a GPU."""
    import torch

    def gmm(a: Any, b: Any, batch_sizes: Any, trans_b: bool = False) -> Any:
        rows = torch.split(a, batch_sizes.tolist())
        return torch.cat([part @ (b[n].T if trans_b else b[n]) for n, part in enumerate(rows)])

    module = ModuleType("grouped_gemm")
    module.ops = SimpleNamespace(gmm=gmm)  # type: ignore[attr-defined]
    sys.modules["grouped_gemm"] = module


def writes_in_place() -> None:
    """Have torch_dist's files written by this process instead of forked ones, which hang beside threads."""
    import queue

    from megatron.core.dist_checkpointing.strategies import filesystem_async

    class Process:
        def __init__(self, target: Any, kwargs: Any) -> None:
            self.start = lambda: target(**kwargs)
            self.join = lambda: None

    context = SimpleNamespace(Queue=queue.Queue, JoinableQueue=queue.Queue, Process=Process)
    context.Manager = lambda: context
    filesystem_async.mp = SimpleNamespace(get_context=lambda _: context, Queue=queue.Queue, SimpleQueue=queue.Queue)
    filesystem_async._process_memory = lambda: 0


def changed_configs(choices: Choices) -> None:
    """Patch Megatron's configuration classes to take the chosen stages, experts and bucket size."""
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    layers = {"num_layers_in_first_pipeline_stage": choices.first, "num_layers_in_last_pipeline_stage": choices.last}
    given = {name: value for name, value in layers.items() if value is not None}
    if choices.grouped:
        given |= {"moe_grouped_gemm": True, "moe_use_legacy_grouped_gemm": True}
    for cls in (TransformerConfig, MLATransformerConfig):
        cls.__init__ = lambda self, *a, _init=cls.__init__, **k: _init(self, *a, **k | given)
    init = DistributedDataParallelConfig.__init__

    def sized(self: Any, *arguments: Any, **named: Any) -> None:
        init(self, *arguments, **named)
        self.bucket_size = choices.bucket or self.bucket_size

    DistributedDataParallelConfig.__init__ = sized


def trained(recorder: Any) -> SimpleNamespace:
    """The objects of the recorder's run: args, raw (models), model (wrapped), optimizer, scheduler."""
    import megatron.core.optimizer as optimizers
    import megatron.core.optimizer_param_scheduler as schedulers
    import torch.distributed as dist

    had = SimpleNamespace()
    build, make, scheduler = recorder.build_model, optimizers.get_megatron_optimizer, schedulers.OptimizerParamScheduler

    def built(args: Any, *others: Any) -> Any:
        had.args, had.raw = args, build(args, *others)
        return had.raw

    def made(config: Any, model: Any, **named: Any) -> Any:
        had.model, had.optimizer = model, make(config, model, **named)
        return had.optimizer

    def scheduled(*arguments: Any, **named: Any) -> Any:
        had.scheduler = scheduler(*arguments, **named)
        return had.scheduler

    recorder.build_model, optimizers.get_megatron_optimizer = built, made
    schedulers.OptimizerParamScheduler = scheduled
    dist.destroy_process_group = lambda *_: None
    recorder.main()
    return had


def args_of(args: Any, choices: Choices, recorder: Any) -> Namespace:
    """The entries of `args` that Megatron-LM's own parser would have."""
    per_chunk, stages = args.num_layers_per_virtual_pipeline_stage, args.pipeline_model_parallel_size
    return Namespace(
        **{name: value for name, value in vars(args).items() if not name.startswith("_")}
        | {
            "padded_vocab_size": recorder.vocab_pad(args),
            "layernorm_epsilon": args.norm_epsilon,
            "add_bias_linear": not args.disable_bias_linear,
            "bias_gelu_fusion": not args.no_bias_gelu_fusion,
            "layernorm_zero_centered_gamma": args.apply_layernorm_1p,
            "consumed_train_samples": args.train_iters * args.global_batch_size,
            "virtual_pipeline_model_parallel_size": per_chunk and args.num_layers // stages // per_chunk,
            "expert_tensor_parallel_size": args.expert_tensor_parallel_size or args.tensor_model_parallel_size,
            "kv_channels": args.kv_channels or args.hidden_size // args.num_attention_heads,
            "ffn_hidden_size": args.ffn_hidden_size or 4 * args.hidden_size,
            "decoder_first_pipeline_num_layers": choices.first,
            "decoder_last_pipeline_num_layers": choices.last,
            "transformer_impl": "local",
            "use_legacy_models": False,
        }
    )


def key_of(had: SimpleNamespace, number: int) -> str:
    """The key of model chunk `number` in a checkpoint file."""
    return "model" if len(had.model) == 1 else f"model{number}"


def save_legacy(had: SimpleNamespace, folder: Path, content: dict[str, Any], choices: Choices) -> None:
    """Save as `--ckpt-format torch` does."""
    import torch
    from megatron.core import parallel_state as state

    name = f"mp_rank_{state.get_tensor_model_parallel_rank():02d}"
    if had.args.pipeline_model_parallel_size > 1:
        name += f"_{state.get_pipeline_model_parallel_rank():03d}"
    if had.args.expert_model_parallel_size > 1:
        name += f"_{state.get_expert_model_parallel_rank():03d}"
    (folder / name).mkdir(parents=True, exist_ok=True)
    for number, model in enumerate(had.model):
        content[key_of(had, number)] = model.state_dict_for_save_checkpoint()
    if not choices.no_optim:
        content["optimizer"] = had.optimizer.state_dict()
        if had.args.use_distributed_optimizer:
            had.optimizer.save_parameter_state(str(folder / name / "distrib_optim.pt"))
    if 0 in (state.get_expert_data_parallel_rank(), state.get_data_parallel_rank()):
        torch.save(content, folder / name / "model_optim_rng.pt")


def save_torch_dist(
    had: SimpleNamespace, folder: Path, content: dict[str, Any], sharding: str, choices: Choices
) -> None:
    """Save as `--ckpt-format torch_dist` does, the ranks of a group sharing the work."""
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.dist_checkpointing.serialization import get_default_save_sharded_strategy
    from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelSaveStrategyWrapper

    writes_in_place()
    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    said = {"singleton_local_shards": choices.singleton, "chained_optim_avoid_prefix": not choices.prefix}
    if had.args.use_distributed_optimizer:
        said["distrib_optim_sharding_type"] = sharding  # type: ignore[assignment]
    metadata = said | {"dp_cp_group": group}

    def state() -> dict[str, Any]:
        models = {key_of(had, n): model.sharded_state_dict(metadata=metadata) for n, model in enumerate(had.raw)}
        if choices.no_optim:
            return {**content, **models}
        whole = dict(models) if len(models) > 1 else models["model"]
        return {**content, **models, "optimizer": had.optimizer.sharded_state_dict(whole, metadata=metadata)}

    strategy = get_default_save_sharded_strategy("torch_dist", 1)
    strategy.use_cached_ckpt_structure = choices.constant
    strategy = FullyParallelSaveStrategyWrapper(strategy, group, choices.constant)
    for place in (folder.with_name("before"), folder) if choices.constant else (folder,):
        place.mkdir(parents=True, exist_ok=True)
        request = dist_checkpointing.save(
            state(), str(place), strategy, async_sharded_save=choices.asynchronous, content_metadata=said
        )
        if request is not None:
            request.execute_sync()


def states_of(had: SimpleNamespace, names: dict[int, str]) -> dict[str, np.ndarray]:
    """The optimizer's states of this rank's parameters by "<state>.<name>", from Megatron's own objects and not from a
    file."""
    found: dict[str, np.ndarray] = {}
    for one in getattr(had.optimizer, "chained_optimizers", [had.optimizer]):
        if not getattr(one, "is_stub_optimizer", False):
            (_of_distributed if had.args.use_distributed_optimizer else _of_ordinary)(one, names, found)
    return found


def _of_distributed(one: Any, names: dict[int, str], found: dict[str, np.ndarray]) -> None:
    import torch.distributed as dist

    own = []
    for bucket in (bucket for ranges in one.gbuf_ranges for buckets in ranges.values() for bucket in buckets):
        for parameter, place in bucket["param_map"].items():
            values = one._get_main_param_and_optimizer_states(parameter)
            kept = {state: values[state].detach().float().numpy() for state in STATES}
            own.append((names[id(parameter)], tuple(parameter.shape), place["param"].start, kept))
    parts: list[Any] = [None] * one.data_parallel_group.size()
    dist.all_gather_object(parts, own, group=one.data_parallel_group)
    for name, shape, start, kept in (entry for part in parts for entry in part):
        for state, values in kept.items():
            whole = found.setdefault(f"{state}.{name}", np.full(shape, np.nan, np.float32))
            whole.reshape(-1)[start : start + len(values)] = values


def _of_ordinary(one: Any, names: dict[int, str], found: dict[str, np.ndarray]) -> None:
    groups = zip(getattr(one, "float16_groups", []), getattr(one, "fp32_from_float16_groups", []), strict=True)
    model_of = {id(main): model for models, mains in groups for model, main in zip(models, mains, strict=True)}
    for parameter in (parameter for group in one.optimizer.param_groups for parameter in group["params"]):
        name = names[id(model_of.get(id(parameter), parameter))]
        if id(parameter) in model_of:
            found[f"param.{name}"] = parameter.detach().float().numpy()
        for state in STATES[1:]:
            found[f"{state}.{name}"] = one.optimizer.state[parameter][state].float().numpy()


def main() -> None:
    """Train, save in the format asked for, write this rank's arrays, and print what was saved."""
    out, form, sharding, text = sys.argv[1:5]
    sys.argv[1:5] = []
    choices = Choices.of(text)
    if choices.grouped:
        grouped_products()
    sys.path.insert(0, os.environ["MEGATRON_RECORDER"])
    os.environ["ORACLE_SHIM"] = "1"
    recorder = importlib.import_module("run_megatron")
    import torch.distributed as dist

    importlib.import_module("megatron.core")
    changed_configs(choices)
    had = trained(recorder)
    iteration = had.args.train_iters
    folder = Path(out) / "checkpoint" / f"iter_{iteration:07d}"
    content = {
        "args": args_of(copy.copy(had.args), choices, recorder),
        "checkpoint_version": 3.0,
        "iteration": iteration,
        "opt_param_scheduler": had.scheduler.state_dict(),
    }
    named = recorder.global_names(had.raw, had.args)
    states = {} if choices.no_optim else states_of(had, {id(parameter): name for name, parameter in named})
    if form == "torch":
        save_legacy(had, folder, content, choices)
    else:
        save_torch_dist(had, folder, content, sharding, choices)
    rank = dist.get_rank()
    np.savez(f"{out}/weights_rank{rank}.npz", **{name: recorder.to_np(parameter) for name, parameter in named})
    np.savez(f"{out}/states_rank{rank}.npz", **states)
    if rank == 0:
        (folder.parent / "latest_checkpointed_iteration.txt").write_text(str(iteration))
    dist.barrier()


if __name__ == "__main__":
    main()
