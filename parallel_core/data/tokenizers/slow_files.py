"""A HuggingFace folder without `tokenizer.json`: the files of some slow classes of transformers (SLOW_CLASSES), as its
fast ones read them.

A fast class makes a `tokenizer.json`'s content of them when it loads the folder; so does this module, without any
library.
"""

import base64
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from parallel_core.data.tokenizers.as_transformers import around
from parallel_core.data.tokenizers.gpt2_bpe import END_OF_TEXT, read_merges
from parallel_core.data.tokenizers.json_files import is_id, read_json, token_ids
from parallel_core.data.tokenizers.sentence_piece_model import (
    CONTROL,
    FLAG,
    USER_DEFINED,
    SentencePieceModel,
    read_model,
)

_CLASSES = {
    "gpt2": "GPT2Tokenizer",
    "llama": "LlamaTokenizer",
    "mistral": "LlamaTokenizer",
    "mixtral": "LlamaTokenizer",
    "qwen2": "Qwen2Tokenizer",
    "qwen2_moe": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer",
    "qwen3_moe": "Qwen2Tokenizer",
    "t5": "T5Tokenizer",
}
"""`model_type` in config.json -> the class where tokenizer_config.json names none."""
_BLANK = "\u2581"
"""The character for a blank in SentencePiece's models."""
_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The pattern at which Qwen2 cuts text before byte pairs are merged."""


class SlowClass(NamedTuple):
    """A slow class of transformers: the files that it reads, and the function from (folder, tokenizer_config.json) to
    the content of a tokenizer.json."""

    files: tuple[str, ...]
    content: Callable[[Path, Mapping[str, Any]], dict[str, Any]]
    """(Folder, its tokenizer_config.json) -> the content of a tokenizer.json."""


def class_name(folder: Path, config: Mapping[str, Any]) -> str:
    """The class that reads the folder, without "Fast": the one that its tokenizer_config.json (`config`) names, known
    here or not; if it names none, the one of config.json's model_type; "" if there is no config.json, or its model_type
    is not known here. Raises ValueError for a damaged config.json, where that is read."""
    named = str(config.get("tokenizer_class") or "").removesuffix("Fast")
    path = folder / "config.json"
    if named or not path.is_file():
        return named
    return _CLASSES.get(str(read_json(FLAG, path, "a JSON object", dict).get("model_type")), "")


def is_readable(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether the folder's class (`class_name`) is one of SLOW_CLASSES, the folder has all files of it, and `config`
    names no code of the folder's own for them. config: its tokenizer_config.json. Raises ValueError for a damaged
    config.json, if `config` names no class."""
    known = SLOW_CLASSES.get(class_name(folder, config))
    is_own = isinstance(config.get("auto_map"), Mapping) and "AutoTokenizer" in config["auto_map"]
    return known is not None and not is_own and all((folder / name).is_file() for name in known.files)


def read(folder: Path, config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The content of a tokenizer.json for a folder that `is_readable`, and the folder's settings: `config` with the
    class that `class_name` gives, and with two entries where it lacks them: added_tokens_decoder, of the tokens in
    added_tokens.json if that is there, and for T5 additional_special_tokens, of the tokens <extra_id_N>. Tokens of
    added_tokens_decoder are left out of the content's added_tokens.

    Raises ValueError naming the file that is damaged.
    """
    name = class_name(folder, config)
    settings = {**_with_added(folder, config), "tokenizer_class": name}
    if name == "T5Tokenizer":
        settings.setdefault("additional_special_tokens", _extra_ids(folder, config)[::-1])
    content = SLOW_CLASSES[name].content(folder, settings)
    said = [entry.get("content") for entry in _entries(settings) if isinstance(entry, Mapping)]
    content["added_tokens"] = [token for token in content.get("added_tokens", ()) if token["content"] not in said]
    return content, settings


def _entries(settings: Mapping[str, Any]) -> list[Any]:
    entries = settings.get("added_tokens_decoder")
    return list(entries.values()) if isinstance(entries, Mapping) else []


def _with_added(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the tokens of added_tokens.json, where older versions of transformers wrote them."""
    path = folder / "added_tokens.json"
    if "added_tokens_decoder" in config or not path.is_file():
        return dict(config)
    others = config.get("additional_special_tokens")
    given = [
        *(value for name, value in config.items() if name.endswith("_token")),
        *(others if isinstance(others, list) else ()),
    ]
    special = [token["content"] if isinstance(token, Mapping) and "content" in token else token for token in given]
    added = token_ids(FLAG, path, read_json(FLAG, path, "a JSON object of token to id", dict))
    entries = {
        str(number): {"content": token, "special": token in special, "normalized": token not in special}
        for token, number in added.items()
    }
    return {**config, "added_tokens_decoder": entries}


def _llama(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    model = read_model(folder / "tokenizer.model")
    prefixed, is_legacy = bool(config.get("add_prefix_space", True)), config.get("legacy") in (None, True)
    blanks = {"type": "Replace", "pattern": {"String": " "}, "content": _BLANK}
    before = [{"type": "Prepend", "prepend": _BLANK}] if prefixed else []
    words = {"type": "Metaspace", "replacement": _BLANK, "prepend_scheme": "first" if prefixed else "never"}
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _BLANK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    ends = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefixed else []
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*before, blanks]} if is_legacy else None,
        "pre_tokenizer": None if is_legacy else {**words, "split": False},
        "decoder": {"type": "Sequence", "decoders": [*steps, *ends]},
        "model": _pieces(model, unk_id=0, byte_fallback=True),
        "added_tokens": _symbols(model),
    }


def _t5(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    model = read_model(folder / "spiece.model")
    unigram = _pieces(model, unk_id=model.unk_id, byte_fallback=False, more=_extra_ids(folder, config))
    characters = base64.b64encode(model.character_map).decode()
    normalizers: list[dict[str, Any]] = (
        [{"type": "Precompiled", "precompiled_charsmap": characters}] if characters else []
    )
    normalizers += [
        {"type": "Strip", "strip_left": False, "strip_right": True},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": _BLANK},
    ]
    scheme = "always" if config.get("legacy") in (None, True) else "first"
    words = {"type": "Metaspace", "replacement": _BLANK, "prepend_scheme": scheme, "split": True}
    end = {"SpecialToken": {"id": "</s>", "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    number = model.pieces.index("</s>") if "</s>" in model.pieces else 0
    around = {
        "type": "TemplateProcessing",
        "single": [first, end],
        "pair": [first, end, second, end],
        "special_tokens": {"</s>": {"id": "</s>", "ids": [number], "tokens": ["</s>"]}},
    }
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": words,
        "post_processor": around,
        "decoder": words,
        "model": unigram,
        "added_tokens": _symbols(model),
    }


def _extra_ids(folder: Path, config: Mapping[str, Any]) -> list[str]:
    """T5's tokens <extra_id_N> behind the pieces, the last first. Raises ValueError for a wrong `extra_ids`."""
    number = config.get("extra_ids", 100)
    if not is_id(number):
        path = folder / "tokenizer_config.json"
        raise ValueError(f"{FLAG} {path}: extra_ids must be a number of tokens, not {str(number)[:40]!r}")
    return [f"<extra_id_{index}>" for index in reversed(range(number))]


def _pieces(
    model: SentencePieceModel, unk_id: int, byte_fallback: bool, more: list[str] | None = None
) -> dict[str, Any]:
    """The model of a tokenizer.json from a SentencePiece model, with the tokens `more` behind its pieces."""
    scored = [*zip(model.pieces, model.scores, strict=True), *((token, 0.0) for token in more or ())]
    if model.is_unigram:
        vocab = [list(entry) for entry in scored]
        return {"type": "Unigram", "unk_id": unk_id, "vocab": vocab, "byte_fallback": byte_fallback}
    return {
        "type": "BPE",
        "unk_token": model.unk_piece,
        "fuse_unk": True,
        "byte_fallback": byte_fallback,
        "vocab": {piece: number for number, (piece, _) in enumerate(scored)},
        "merges": _merges(scored),
    }


def _merges(scored: list[tuple[str, float]]) -> list[tuple[str, str]]:
    """The pairs of pieces that make a piece, in the order of merging: the piece with the highest score first, of its
    pairs the one with the longest left part."""
    known = dict(scored)
    pairs = [
        (-score, -cut, -len(piece), piece[:cut], piece[cut:])
        for piece, score in known.items()
        for cut in range(1, len(piece))
        if piece[:cut] in known and piece[cut:] in known
    ]
    pairs.sort(key=lambda pair: (pair[0], pair[1], pair[2] - pair[1]))
    return [pair[3:] for pair in pairs]


def _symbols(model: SentencePieceModel) -> list[dict[str, Any]]:
    """The added tokens of a tokenizer.json: pieces that are found in text before the model cuts it."""
    switches = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return [
        {"id": number, "content": piece, **switches, "special": kind == CONTROL}
        for number, (piece, kind) in enumerate(zip(model.pieces, model.kinds, strict=True))
        if kind in (CONTROL, USER_DEFINED)
    ]


def _byte_pairs(folder: Path, **more: Any) -> dict[str, Any]:
    vocab, merges = folder / "vocab.json", folder / "merges.txt"
    return {
        "model": {
            "type": "BPE",
            "vocab": token_ids(FLAG, vocab, read_json(FLAG, vocab, "a JSON object of token to id", dict)),
            "merges": read_merges(FLAG, merges),
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
        },
        "post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        **more,
    }


def _bytes(config: Mapping[str, Any], use_regex: bool) -> dict[str, Any]:
    prefixed = bool(config.get("add_prefix_space", False))
    return {"type": "ByteLevel", "add_prefix_space": prefixed, "trim_offsets": True, "use_regex": use_regex}


def _gpt2(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    made = _byte_pairs(folder, pre_tokenizer=_bytes(config, use_regex=True))
    named = config.get("bos_token") or END_OF_TEXT
    bos = str(named.get("content") if isinstance(named, Mapping) else named)
    if config.get("add_bos_token", False) and bos in made["model"]["vocab"]:
        made["post_processor"] = around([(bos, made["model"]["vocab"][bos])], [])
    return made


def _qwen2(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    words = {"type": "Split", "pattern": {"Regex": _QWEN_WORDS}, "behavior": "Isolated", "invert": False}
    cuts = {"type": "Sequence", "pretokenizers": [words, _bytes(config, use_regex=False)]}
    return _byte_pairs(folder, normalizer={"type": "NFC"}, pre_tokenizer=cuts)


SLOW_CLASSES = {
    "GPT2Tokenizer": SlowClass(("vocab.json", "merges.txt"), _gpt2),
    "LlamaTokenizer": SlowClass(("tokenizer.model",), _llama),
    "Qwen2Tokenizer": SlowClass(("vocab.json", "merges.txt"), _qwen2),
    "T5Tokenizer": SlowClass(("spiece.model",), _t5),
}
"""Name of a slow class -> its files, and how they are read."""
