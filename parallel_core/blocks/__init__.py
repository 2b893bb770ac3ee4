"""The parts of a model, each block described once: its parameters, FLOPs, messages and the bytes that it keeps.

A block is a frozen value made from the configuration, for example by `Attention.of(config, number)`. A new kind of
layer is a new block.
"""

from parallel_core.blocks.adapter import Adapter
from parallel_core.blocks.adapter_rules import adapter_findings
from parallel_core.blocks.attention import Attention, CoreAttention
from parallel_core.blocks.block import Block, ParameterSpec, blocks_within
from parallel_core.blocks.carried_choice import CarriedChoice
from parallel_core.blocks.compressed_attention import (
    CompressedAttention,
    Compressor,
    EntryAttention,
    EntryIndexer,
    GroupedLinear,
)
from parallel_core.blocks.cross_layer_attention import CrossLayerAttention
from parallel_core.blocks.dispatch import Dispatch
from parallel_core.blocks.embedding import Embedding, EmbeddingTable
from parallel_core.blocks.experts import Expert, ExpertLinear, Experts, SharedExperts
from parallel_core.blocks.gated_delta_net import GatedDeltaNet
from parallel_core.blocks.head import CrossEntropy, output_layer
from parallel_core.blocks.hyper_connections import HyperConnectedLayer, HyperConnection
from parallel_core.blocks.kinds import FEED_FORWARDS, MIXERS, Kind
from parallel_core.blocks.language_model import (
    Chunk,
    Decoder,
    chunk_of,
    model_chunks,
    recompute_lines,
    stage_chunks,
)
from parallel_core.blocks.latent_attention import LatentAttention
from parallel_core.blocks.layer import AnyLayer, Branch, Layer
from parallel_core.blocks.layer_kinds import LAYERS, layer_of
from parallel_core.blocks.layer_stack import LayerStack
from parallel_core.blocks.lightning_attention import LightningAttention
from parallel_core.blocks.linear import Linear
from parallel_core.blocks.mamba import GroupedNorm, MambaMixer
from parallel_core.blocks.mamba_layer import MambaLayer
from parallel_core.blocks.micro_batch import MicroBatch
from parallel_core.blocks.mlp import MLP, BiasActivation
from parallel_core.blocks.moe_layer import MoELayer
from parallel_core.blocks.multi_token_prediction import MultiTokenPrediction, MultiTokenPredictionLayer
from parallel_core.blocks.norm import Norm, NormOfAllHeads
from parallel_core.blocks.recompute_rules import recompute_findings
from parallel_core.blocks.recurrence import Recurrence, RecurrentMixer, ShortConvolution
from parallel_core.blocks.router import Router
from parallel_core.blocks.shortcut_layer import ShortcutLayer
from parallel_core.blocks.side_by_side import AttentionBesideStateSpace
from parallel_core.blocks.sparse_attention import Indexer, SparseAttention
from parallel_core.blocks.sublayer import Sublayer
