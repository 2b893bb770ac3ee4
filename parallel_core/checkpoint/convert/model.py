"""A model between two formats."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from parallel_core.checkpoint.lazy import LazyTensor
from parallel_core.config.optimizer import RULES
from parallel_core.config.update_rules.adam import ADAM
from parallel_core.optimizer import MAIN_PARAM

HYPERPARAMETERS = ("betas", "eps", "weight_decay")
"""Adam's, as files of Megatron have them."""

VOCABULARY = ("embedding.word_embeddings.weight", "output_layer.weight", "output_layer.bias")
"""Parameters with a row for each id; depths of multi-token prediction can have such of their own, named alike."""


@dataclass
class Position:
    """The iteration, samples and steps of the run."""

    iteration: int = 0
    consumed_samples: int = 0
    optimizer_kind: str = ADAM.name
    optimizer_steps: int = 0
    scheduler: dict[str, Any] = field(default_factory=dict)
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    """Adam's settings, as far as they are known: betas, eps, weight_decay."""
    loss_scaler: dict[str, Any] | None = None
    """The state of a loss scaler, as `LossScaler.state_dict` gives it."""


@dataclass
class Model:
    """Whole tensors under Megatron's global names, and what they are the weights of."""

    weights: dict[str, LazyTensor]
    settings: dict[str, dict[str, Any]]
    """Fields of our configuration by section, those that are known; sections inside a section are dictionaries."""
    states: dict[str, dict[str, LazyTensor]] = field(default_factory=dict)
    """Name of a state -> weight -> its state."""
    position: Position = field(default_factory=Position)
    adapters: int = 0
    """The number of adapters that were merged into their weights."""
    left_out: dict[str, list[str]] = field(default_factory=dict)
    """Subject -> the keys of the source about it that no setting takes over."""
    model_type: str | None = None
    """HuggingFace's, if the source says it: several may have the same network."""

    @property
    def network(self) -> dict[str, Any]:
        """Settings of the network."""
        return self.settings.setdefault("model_config", {})

    @property
    def unpadded_vocab_size(self) -> int:
        """Ids that the tokenizer can produce; where nothing says it, all rows."""
        size: int = self.network.get("unpadded_vocab_size") or self.vocab_size
        return size

    @property
    def vocab_size(self) -> int:
        """Rows of the word embedding."""
        return self.weights[VOCABULARY[0]].shape[0]

    def all_tensors(self) -> Iterator[tuple[str, LazyTensor]]:
        """Weights, and states as "<state>.<weight>"."""
        yield from self.weights.items()
        for state, tensors in self.states.items():
            yield from ((f"{state}.{name}", tensor) for name, tensor in tensors.items())

    @property
    def has_states_of_megatron(self) -> bool:
        """Whether its states are those of an optimizer that Megatron's files have the same way, and no further ones."""
        rule = RULES.get(self.position.optimizer_kind)
        return rule is not None and self.states.keys() <= {*rule.megatrons_states, MAIN_PARAM}

    def with_rows(self, rows: int) -> "Model":
        """The same with `rows` ids: rows beyond are dropped, new ones are zero."""
        resized = {name: resize(tensors, rows) for name, tensors in {"": self.weights, **self.states}.items()}
        network = {**self.network, "vocab_size": rows, "unpadded_vocab_size": min(self.unpadded_vocab_size, rows)}
        settings = {**self.settings, "model_config": network}
        return replace(self, weights=resized.pop(""), settings=settings, states=resized)


def resize(tensors: Mapping[str, LazyTensor], rows: int) -> dict[str, LazyTensor]:
    """Tables with a row for each id, of `rows` rows; others as they are."""
    return {name: tensor.with_length(rows) if is_table(name) else tensor for name, tensor in tensors.items()}


def in_files(tensors: Iterable[tuple[str, LazyTensor]], most: int) -> Iterator[dict[str, LazyTensor]]:
    """Tensors in groups of no more than so many bytes, unless a single one has more: each is a file's."""
    part: dict[str, LazyTensor] = {}
    size = 0
    for name, tensor in tensors:
        if part and size + tensor.nbytes > most:
            yield part
            part, size = {}, 0
        part[name] = tensor
        size += tensor.nbytes
    yield part


def is_table(name: str) -> bool:
    """Whether a parameter, or its state, has a row for each id."""
    return any(name == table or name.endswith(f".{table}") for table in VOCABULARY)


def padded(size: int, divisible_by: int, tensor: int) -> int:
    """A vocabulary's size as Megatron pads it: to a multiple of --make-vocab-size-divisible-by times the
    tensor-parallel size."""
    step = divisible_by * tensor
    return -(-size // step) * step
