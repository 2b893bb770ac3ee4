"""The memory in which a program differs from what blocks describe: tensors that it keeps, gradients of activations,
buffers.

`megatron` is Megatron-Core on Transformer Engine; `pynative` is this project's own engine.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from parallel_core.blocks import Chunk, MicroBatch, blocks_within
from parallel_core.blocks.attention import CoreAttention
from parallel_core.blocks.experts import ExpertLinear, Experts
from parallel_core.blocks.latent_attention import LatentAttention
from parallel_core.blocks.layer import AnyLayer
from parallel_core.blocks.linear import Linear
from parallel_core.blocks.micro_batch import FLOAT32
from parallel_core.blocks.mlp import MLP
from parallel_core.blocks.recomputed import runs_again
from parallel_core.blocks.sublayer import Sublayer
from parallel_core.config import AllConfig
from parallel_core.planner.device import Device
from parallel_core.recompute.plan import LayerRecompute

MEBIBYTE = 2**20


@dataclass(frozen=True)
class Engine:
    """The properties in which programs differ as to memory and operators. writes_scores: whether attention writes and
    keeps its matrix of scores; attention_dropout: whether it drops scores; hidden_dropout: whether masks of dropout
    behind sublayers are kept; has_weight_gradients: whether a weight's gradient has a buffer beside its place among the
    gradients; keeps_activation_gradient: whether, in an MLP's backward, the gradient of the activation's result lives
    until that of its input is computed; runs_experts_apart: whether experts run one after the other;
    keeps_ring_output_narrow: whether ring attention keeps its second copy of the output in the type of activations;
    workspace: bytes of the matrix library's workspace and the like; allocator_share: memory that the allocator holds
    and cannot use, as a part of what is allocated."""

    writes_scores: bool
    """Whether attention writes and keeps its matrix of scores."""
    attention_dropout: bool
    hidden_dropout: bool
    has_weight_gradients: bool
    """Whether a weight's gradient has a buffer beside its place among the gradients: Transformer Engine keeps one for
    each shape of a weight, and the output layer makes one in each backward."""
    keeps_activation_gradient: bool
    """Whether, in an MLP's backward, the gradient of the activation's result lives until that of its input is
    computed."""
    runs_experts_apart: bool
    """Whether experts run one after the other, so that memory for activations inside of an expert is needed for one at
    a time."""
    keeps_ring_output_narrow: bool
    """Whether ring attention keeps its second copy of the output in the type of activations, not in float32."""
    workspace: float
    """Bytes of the matrix library's workspace, of constants and the like."""
    allocator_share: float
    """Memory that the allocator holds and cannot use, as a part of what is allocated."""

    def weight_gradient_buffers(self, chunks: Sequence[Chunk], micro_batch: MicroBatch) -> float:
        """Bytes of the buffers for weight gradients on a rank: one for each distinct shape of a shard of a linear's
        weight in the chunks' decoder layers, experts' linears included; 0 without such buffers."""
        if not self.has_weight_gradients:
            return 0.0
        shapes = {shape for chunk in chunks for shape in _layer_shapes(chunk, micro_batch)}
        return float(sum(rows * columns for rows, columns in shapes) * micro_batch.item_size)

    def kept_beside(self, chunk: Chunk, micro_batch: MicroBatch) -> int:
        """Bytes of a micro-batch that the chunk's decoder layers keep in this program beside the blocks' `kept_bytes`,
        without parts that run again; below 0 where they keep less."""
        return sum(
            size
            for layer, asked in _layers(chunk)
            for name, size in self._of_layer(layer, micro_batch)
            if not runs_again(asked, name)
        )

    def kept_by_second_run(self, chunk: Chunk, micro_batch: MicroBatch) -> int:
        """Bytes that the second run of a layer's recomputed parts keeps in this program beside what the blocks
        describe; of the chunk's decoder layer with the most, one layer even if several run again together."""
        found = (
            sum(size for name, size in self._of_layer(layer, micro_batch) if runs_again(asked, name))
            for layer, asked in _layers(chunk)
        )
        return max(found, default=0)

    def _of_layer(self, layer: AnyLayer, micro_batch: MicroBatch) -> Iterator[tuple[str, int]]:
        for name, sublayer in layer.submodules().items():
            if not isinstance(sublayer, Sublayer):
                continue
            for core in blocks_within(sublayer, CoreAttention):
                yield f"{name}.core_attention", self._of_attention(core, sublayer, micro_batch)
            if self.hidden_dropout:
                yield f"{name}.dropout", micro_batch.tokens_between * layer.hidden_size

    def _of_attention(self, core: CoreAttention, sublayer: Sublayer, micro_batch: MicroBatch) -> int:
        """Bytes that attention keeps of a micro-batch beside its block's: scores with their dropout's mask and result;
        of a ring the output in the narrower type (less than the block counts); of latent attention the plain channels
        of the keys, which are copied to be joined with the rotary ones."""
        rows, found = micro_batch.tokens * (core.heads // micro_batch.tensor), 0
        if self.writes_scores:
            of_dropout = self.attention_dropout * (1 + micro_batch.item_size)
            found += rows * micro_batch.seq_length * (micro_batch.item_size + of_dropout)
        if self.keeps_ring_output_narrow and micro_batch.context.ring > 1:
            found += rows * core.value_size * (micro_batch.item_size - FLOAT32)
        if isinstance(sublayer, LatentAttention) and self.has_weight_gradients:
            found += rows * (core.query_key_size - sublayer.rotary_size) * micro_batch.item_size
        return found

    def of_layers(self, chunk: Chunk, micro_batch: MicroBatch) -> float:
        """Bytes of activations' gradients in the backward of the chunk's decoder layer that has most of them; 0 without
        layers."""
        return max((self._of_backward(layer, micro_batch) for _, layer in chunk.decoder.layers.layers), default=0.0)

    def of_head(self, chunk: Chunk, micro_batch: MicroBatch) -> dict[str, float]:
        """Part -> bytes that exist only in the backward of the chunk's output layer: a buffer for its weight's
        gradient, its input gathered for sequence parallelism (each 0 if there is none), and gradients of its input.
        Empty for a chunk without an output layer."""
        linear = chunk.output_layer
        if linear is None:
            return {}
        between = micro_batch.tokens_between * linear.input_size * micro_batch.item_size
        whole = micro_batch.tokens * linear.input_size * micro_batch.item_size
        gathered = whole if micro_batch.sequence.tensor > 1 else 0
        weight = linear.input_size * linear.output_size // micro_batch.tensor * micro_batch.item_size
        own = weight * self.has_weight_gradients
        return {"output weight's gradient": own, "gathered": gathered, "gradients of activations": between + whole}

    def _of_backward(self, layer: AnyLayer, micro_batch: MicroBatch) -> float:
        """Bytes of activations' gradients in a layer's backward: those of the residual stream, and the most of any
        dense feed-forward block or of experts: the inner ones; of experts also two hidden states for each row."""
        stream = micro_batch.tokens_between * layer.residual_width * micro_batch.item_size
        dense = (block for block in layer.submodules().values() if isinstance(block, MLP))
        inside = [micro_batch.tokens * self._inside(mlp) // micro_batch.tensor for mlp in dense]
        for experts in blocks_within(layer, Experts):
            first, second = experts.expert.linear_fc1, experts.expert.linear_fc2
            widths = (first.output_size + second.input_size) // experts.expert_tensor
            turns = len(experts.local(0)) if self.runs_experts_apart else 1
            inside.append(experts.rows(micro_batch) * (2 * layer.hidden_size + widths // turns))
        return stream + max(inside, default=0) * micro_batch.item_size

    def _inside(self, mlp: MLP) -> int:
        return mlp.linear_fc1.output_size + self.keeps_activation_gradient * mlp.linear_fc2.input_size


def _layers(chunk: Chunk) -> Iterator[tuple[AnyLayer, LayerRecompute]]:
    stack = chunk.decoder.layers
    for (_, layer), asked in zip(stack.layers, stack.recompute.layers, strict=True):
        yield layer, asked


def _layer_shapes(chunk: Chunk, micro_batch: MicroBatch) -> Iterator[tuple[int, int]]:
    """(rows, columns) of a rank's shard of each linear's weight in the chunk's layers, an expert's once."""
    for _, layer in chunk.decoder.layers.layers:
        dense = (linear for linear in blocks_within(layer, Linear) if not isinstance(linear, ExpertLinear))
        yield from (_local(linear, micro_batch.tensor) for linear in dense)
        for experts in blocks_within(layer, Experts):
            for linear in (experts.expert.linear_fc1, experts.expert.linear_fc2):
                yield _local(linear, experts.expert_tensor)


def _local(linear: Linear, tensor: int) -> tuple[int, int]:
    rows, columns = linear.output_size, linear.input_size
    if linear.cut_axis is None:
        return rows, columns
    return (rows // tensor, columns) if linear.is_column else (rows, columns // tensor)


def engine_of(device: Device, config: AllConfig) -> Engine:
    """The program that the device's description names, under the options of a run."""
    model = config.model_config
    is_megatron = device.engine == "megatron"
    fused = device.fuses_attention or model.use_flash_attention or not is_megatron
    return Engine(
        writes_scores=not fused,
        attention_dropout=model.attention_dropout_rate > 0,
        hidden_dropout=is_megatron and model.hidden_dropout_rate > 0,
        has_weight_gradients=is_megatron,
        keeps_activation_gradient=not is_megatron,
        runs_experts_apart=not is_megatron and not config.moe_config.moe_grouped_gemm,
        keeps_ring_output_narrow=is_megatron,
        workspace=(50 if is_megatron else 0) * MEBIBYTE,
        allocator_share=0.05 if is_megatron else 0.02,
    )
