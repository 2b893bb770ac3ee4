"""The way from the configuration to the data of fine-tuning on conversations."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from parallel_core.config import AllConfig
from parallel_core.config.notations import parse_blend
from parallel_core.data.from_config import DEFAULT_SPLIT, tokenizer_facts, tokenizer_options
from parallel_core.data.instruction.dataset import Collator, InstructionDataset, order_of_samples, split_bounds
from parallel_core.data.instruction.samples import Conversations, SampleRules
from parallel_core.data.instruction.templates import OWN_TEMPLATE, TABLE, Template, load_template
from parallel_core.data.tokenizers import Facts, build_tokenizer
from parallel_core.data.tokenizers.huggingface_folder import HuggingFaceFolder, add
from parallel_core.data.tokenizers.own_code import is_trusted_code

Bounds = tuple[int, int]


class _Part(NamedTuple):
    """Conversations of which those within `bounds` are for train, valid or test."""

    data: Conversations
    bounds: Bounds


def instruction_datasets(config: AllConfig) -> Callable[[Sequence[int | None]], list[InstructionDataset | None]]:
    """A function from the numbers of samples of train, valid and test (None: one pass), which are rounded up to whole
    passes, at least one, to their data sets; None for a split without a share or a path.

    Opens the files at once, before that function is called. Raises ValueError if neither --data-path nor one such as
    --train-data-path is given, for a --split that cannot be read, for files that are missing, damaged, empty, or hold
    answers to compare or an id that the model's vocabulary lacks, for several prefixes in one such flag, for a template
    that cannot be read, where tokenizer, flags and template give no id of padding and none of an end of a text, or no
    end of a text that is needed, and as `parse_blend`, `own_ids` and `build_tokenizer`.
    """
    parts = _parts(config)
    rules, collator = _rules(config)
    data, seed = config.dataset_config.instruction, config.training_config.seed
    batch = config.dataset_config.global_batch_size if data.padded_samples else None

    def build(sizes: Sequence[int | None]) -> list[InstructionDataset | None]:
        made: list[InstructionDataset | None] = []
        for part, size in zip(parts, sizes, strict=True):
            if part is None:
                made.append(None)
                continue
            first, last = part.bounds
            order = order_of_samples(
                first,
                last,
                last - first if size is None else size,
                seed,
                shuffle=data.shuffle,
                shuffle_all=data.full_shuffle,
                batch=batch,
                size=len(part.data),
            )
            made.append(InstructionDataset(part.data, order, rules, collator, last - first))
        return made

    return build


def conversations_per_epoch(config: AllConfig) -> int | None:
    """The number of conversations (of packs, if the data were written with --pack) in the training data; None: training
    has no share of them, or no path. Raises ValueError as `instruction_datasets` for flags and files of data, not for
    template and tokenizer."""
    part = _parts(config)[0]
    return part.bounds[1] - part.bounds[0] if part else None


def _parts(config: AllConfig) -> list[_Part | None]:
    data = config.dataset_config
    per_split = (data.train_data_path, data.valid_data_path, data.test_data_path)
    if any(per_split):
        opened = [_opened(config, paths) if paths else None for paths in per_split]
        return [_Part(whole, (0, len(whole))) if whole else None for whole in opened]
    if not data.data_path:
        raise ValueError("--is-instruction-dataset needs --data-path: what preprocess with --handler-name wrote")
    whole = _opened(config, data.data_path)
    bounds = split_bounds(data.split or DEFAULT_SPLIT, len(whole))
    return [_Part(whole, bound) if bound[1] > bound[0] else None for bound in bounds]


def _opened(config: AllConfig, paths: Sequence[str]) -> Conversations:
    prefixes, _ = parse_blend(list(paths))
    if len(prefixes) > 1:
        raise ValueError(
            f"--data-path {' '.join(paths)}: conversations are read of one prefix; preprocess all files of a folder at "
            "once (--input FOLDER)"
        )
    found = Conversations(prefixes[0], config.dataset_config.mmap_bin_files)
    if not len(found):
        raise ValueError(f"--data-path {found.prefix}: has no conversation; preprocess with a larger --seq-length")
    if found.largest_id >= config.model_config.vocab_size:
        raise ValueError(
            f"--data-path {found.prefix}: has token id {found.largest_id}, the model's vocabulary "
            f"{config.model_config.vocab_size} entries; give the tokenizer that the data were made with"
        )
    return found


def _rules(config: AllConfig) -> tuple[SampleRules, Collator]:
    data, parallel = config.dataset_config, config.parallel_config
    told, length = data.instruction, config.model_config.seq_length
    template = _template(config)
    eos, pad = _ends(config, template)
    rules = SampleRules(
        seq_length=length,
        eos=eos,
        reset_attention_mask=data.reset_attention_mask,
        neat=told.neat_pack,
        fixed_length=told.fix_sub_seq_length,
        cut_max_seqlen=told.cut_max_seqlen,
        efficient_eos=bool(template and template.efficient_eos),
    )
    context = 2 * parallel.context_parallel_size if parallel.context_parallel_size > 1 else 1
    tensor = parallel.tensor_model_parallel_size if parallel.sequence_parallel else 1
    shortest = math.lcm(told.pad_to_multiple_of, context * tensor)
    collator = Collator(
        pad=pad,
        multiple=length if told.pad_to_seq_length else shortest,
        left=told.padding_side == "left",
        resets_positions=data.reset_position_ids,
    )
    return rules, collator


def _template(config: AllConfig) -> Template | None:
    told = config.dataset_config.instruction
    if told.prompt_type in (None, OWN_TEMPLATE):
        return None
    return load_template(str(told.prompt_type), told.prompt_type_path or TABLE)


def _ends(config: AllConfig, template: Template | None) -> tuple[int | None, int]:
    """The id that ends a text (None: there is none), and the id of padding, as preprocessing with this template has
    them. Raises ValueError where one that is needed is missing."""
    data = config.dataset_config
    found = own_ids(config)
    eos = found.eod if found.eos is None else found.eos
    if template and template.replace_eos:
        eos = _token(config, template.stop_words[0])
    eos = eos if data.eos_token_id is None else data.eos_token_id
    own_pad = found.pad if data.pad_token_id is None else data.pad_token_id
    pad = eos if own_pad is None else own_pad
    if pad is None:
        raise ValueError("the tokenizer has no token to fill up samples with; name one with --pad-token-id")
    looks = not data.instruction.neat_pack and data.instruction.fix_sub_seq_length <= 0
    if data.reset_attention_mask and eos is None and looks:
        raise ValueError("--reset-attention-mask looks for ends of texts, which the tokenizer lacks: --eos-token-id")
    return eos, pad


def own_ids(config: AllConfig) -> Facts:
    """Size and special ids of the tokenizer: of the types HuggingFaceTokenizer and PretrainedFromHF the folder's own,
    with those that --tokenizer-kwargs name, `pad` None if there is no token of padding; of other types, and of a folder
    read by its own code, as `tokenizer_facts` gives them. Raises ValueError for files that are missing or damaged, and
    as `tokenizer_facts`."""
    folder = _folder(config)
    return folder.facts() if folder else tokenizer_facts(config)


def _token(config: AllConfig, token: str) -> int | None:
    """The id of a token, or the one that it gets where preprocessing adds it; None: the tokenizer lacks it."""
    folder = _folder(config)
    if folder is None:
        return build_tokenizer(tokenizer_options(config)).token_to_id(token)
    add(folder.vocab, len(folder.model_vocab), token)
    return folder.vocab[token]


def _folder(config: AllConfig) -> HuggingFaceFolder | None:
    """The folder of a HuggingFace tokenizer; None for another tokenizer, and for one that its own code reads."""
    options = tokenizer_options(config)
    is_one = options.tokenizer_type in ("HuggingFaceTokenizer", "PretrainedFromHF")
    if not (is_one and options.tokenizer_model) or is_trusted_code(options):
        return None
    return HuggingFaceFolder(options.tokenizer_model, options.tokenizer_kwargs)
