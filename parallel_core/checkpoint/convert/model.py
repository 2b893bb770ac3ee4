"""A model between two formats: what each reader gives and each writer takes."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from parallel_core.checkpoint.lazy import LazyTensor
from parallel_core.config.optimizer import RULES
from parallel_core.config.update_rules.adam import ADAM
from parallel_core.optimizer import MAIN_PARAM

HYPERPARAMETERS = ("betas", "eps", "weight_decay")
"""Names of Adam's hyperparameters in files of Megatron."""

VOCABULARY = ("embedding.word_embeddings.weight", "output_layer.weight", "output_layer.bias")
"""Parameters with a row for each id, padding included; layers of multi-token prediction can have such of their own,
whose names end alike."""
_OF_IDS = ".router.tid2eid"
"""End of the names of hash layers' tables, which have a row for each id that the tokenizer can produce."""


@dataclass
class Position:
    """The point that a run had reached: iteration, samples, and those parts of the states of optimizer, scheduler and
    loss scaler that are not tensors."""

    iteration: int = 0
    consumed_samples: int = 0
    optimizer_kind: str = ADAM.name
    optimizer_steps: int = 0
    scheduler: dict[str, Any] = field(default_factory=dict)
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    """Adam's betas, eps and weight_decay, as far as the source says them."""
    loss_scaler: dict[str, Any] | None = None
    """The state of a loss scaler, as `LossScaler.state_dict` gives it; None without one."""


@dataclass
class Model:
    """Whole tensors under Megatron's global names: weights and, in `states`, name of an optimizer's state -> name of a
    weight -> its state. settings: section -> option -> value of our configuration; adapters: how many were merged into
    the weights; left_out: subject -> keys of the source that no setting takes over."""

    weights: dict[str, LazyTensor]
    settings: dict[str, dict[str, Any]]
    """Section -> option -> value of our configuration, of the options that are known; sections inside a section are
    dictionaries."""
    states: dict[str, dict[str, LazyTensor]] = field(default_factory=dict)
    """Name of a state of the optimizer -> name of a weight -> its state."""
    position: Position = field(default_factory=Position)
    adapters: int = 0
    """The number of adapters that were merged into their weights."""
    left_out: dict[str, list[str]] = field(default_factory=dict)
    """Subject -> keys of the source about it that no setting takes over."""
    model_type: str | None = None
    """HuggingFace's `model_type`, if the source says it: several may have the same network."""

    @property
    def network(self) -> dict[str, Any]:
        """The section `model_config` of the settings, made if it is missing."""
        return self.settings.setdefault("model_config", {})

    @property
    def unpadded_vocab_size(self) -> int:
        """The number of ids that the tokenizer can produce; where no setting says it, that of the embedding's rows."""
        size: int = self.network.get("unpadded_vocab_size") or self.vocab_size
        return size

    @property
    def vocab_size(self) -> int:
        """The number of rows of the word embedding, padding included."""
        return self.weights[VOCABULARY[0]].shape[0]

    def all_tensors(self) -> Iterator[tuple[str, LazyTensor]]:
        """(name, tensor) of the weights, then of the optimizer's states, named "<state>.<weight>"."""
        yield from self.weights.items()
        for state, tensors in self.states.items():
            yield from ((f"{state}.{name}", tensor) for name, tensor in tensors.items())

    @property
    def has_states_of_megatron(self) -> bool:
        """Whether Megatron-LM's files can hold, in the same form, all states that the model has of its optimizer; False
        for an optimizer that is not known."""
        rule = RULES.get(self.position.optimizer_kind)
        return rule is not None and self.states.keys() <= {*rule.megatrons_states, MAIN_PARAM}

    def with_rows(self, rows: int) -> "Model":
        """A model like this one with `rows` rows in tables of ids (`is_table`): rows beyond are dropped, new ones are
        zero, and the number of ids (`unpadded_vocab_size`) becomes `rows` if it was larger. Other parts are shared.
        Raises ValueError as `with_ids`, by which tables of hash layers get their rows."""
        model = self.with_ids(min(self.unpadded_vocab_size, rows))
        resized = {name: resize(tensors, rows) for name, tensors in {"": model.weights, **self.states}.items()}
        settings = {**self.settings, "model_config": {**model.network, "vocab_size": rows}}
        return replace(self, weights=resized.pop(""), settings=settings, states=resized)

    def with_ids(self, ids: int) -> "Model":
        """A model like this one whose tokenizer can produce `ids` ids (`unpadded_vocab_size`): tables of hash layers
        lose the rows beyond; other parts are shared. Raises ValueError if such a table has fewer rows."""
        tables = {name: tensor for name, tensor in self.weights.items() if name.endswith(_OF_IDS)}
        for name, tensor in tables.items():
            if tensor.shape[0] < ids:
                rule = f"{name} names the experts of {tensor.shape[0]} ids"
                raise ValueError(f"--vocab-size {ids}: {rule}; give {tensor.shape[0]} at most")
        weights = self.weights | {name: tensor.with_length(ids) for name, tensor in tables.items()}
        settings = {**self.settings, "model_config": {**self.network, "unpadded_vocab_size": ids}}
        return replace(self, weights=weights, settings=settings)


def resize(tensors: Mapping[str, LazyTensor], rows: int) -> dict[str, LazyTensor]:
    """The tensors, those that are tables of ids (`is_table`) cut off or filled with zeros to `rows` rows."""
    return {name: tensor.with_length(rows) if is_table(name) else tensor for name, tensor in tensors.items()}


def in_files(tensors: Iterable[tuple[str, LazyTensor]], most: int) -> Iterator[dict[str, LazyTensor]]:
    """The tensors, name -> tensor, in groups for one file each, of at most `most` bytes unless a single tensor has
    more; one empty group for no tensors."""
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
    """Whether this is the name of a word embedding or an output layer's weight or bias (`VOCABULARY`), or of the state
    of one: of a table with a row for each id, padding included."""
    return any(name == table or name.endswith(f".{table}") for table in VOCABULARY)


def padded(size: int, divisible_by: int, tensor: int) -> int:
    """A vocabulary's size as Megatron pads it: rounded up to a multiple of --make-vocab-size-divisible-by times the
    tensor-parallel size."""
    step = divisible_by * tensor
    return -(-size // step) * step
