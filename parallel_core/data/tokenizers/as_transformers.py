"""Changes that transformers 4 makes to the content of a `tokenizer.json`, and to decoded text."""

from collections.abc import Mapping
from typing import Any

_WITH_BOS = ("LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer")
"""Classes that put BOS and EOS around a text by the configuration's settings, whatever tokenizer.json says."""


def as_transformers_reads(
    content: Mapping[str, Any], kind: str, config: Mapping[str, Any], ids: Mapping[str, tuple[str, int]]
) -> dict[str, Any]:
    """The content of a tokenizer.json changed by the settings in tokenizer_config.json (`config`), as transformers'
    class `kind` (without "Fast") does it: the pre-tokenizer's blank before a text, BertTokenizer's normalizer, and the
    post-processor (BOS and EOS around a text) of LlamaTokenizer, CodeLlamaTokenizer and GemmaTokenizer; the rest stays.
    ids: role -> token and id."""
    changed = dict(content)
    before = content.get("pre_tokenizer")
    if isinstance(before, Mapping) and "add_prefix_space" in before:
        changed["pre_tokenizer"] = {**before, "add_prefix_space": bool(config.get("add_prefix_space", False))}
    normalizer = content.get("normalizer")
    if kind == "BertTokenizer" and isinstance(normalizer, Mapping) and normalizer.get("type") == "BertNormalizer":
        changed["normalizer"] = {
            **normalizer,
            "lowercase": config.get("do_lower_case", True),
            "strip_accents": config.get("strip_accents"),
            "handle_chinese_chars": config.get("tokenize_chinese_chars", True),
        }
    if kind in _WITH_BOS:
        begins = [ids["bos"]] if config.get("add_bos_token", True) and "bos" in ids else []
        ends = [ids["eos"]] if config.get("add_eos_token", False) and "eos" in ids else []
        changed["post_processor"] = around(begins, ends)
    return changed


def around(begins: list[tuple[str, int]], ends: list[tuple[str, int]]) -> dict[str, Any]:
    """The post-processor, as tokenizer.json has it, that puts the tokens `begins` and `ends` around a text, and around
    each of two texts. begins, ends: pairs of token and id."""

    def one(name: str, number: int) -> list[dict[str, Any]]:
        before, after = (
            [{"SpecialToken": {"id": token, "type_id": number}} for token, _ in some] for some in (begins, ends)
        )
        return [*before, {"Sequence": {"id": name, "type_id": number}}, *after]

    special = {token: {"id": token, "ids": [number], "tokens": [token]} for token, number in (*begins, *ends)}
    return {
        "type": "TemplateProcessing",
        "single": one("A", 0),
        "pair": [*one("A", 0), *one("B", 1)],
        "special_tokens": special,
    }


def without_blanks(text: str) -> str:
    """The text with one blank less before each . ? ! , n't 'm 's 've 're that has one before it, and without the two
    around a lone apostrophe, as by transformers' `clean_up_tokenization`."""
    for left in (" .", " ?", " !", " ,"):
        text = text.replace(left, left[1:])
    text = text.replace(" ' ", "'")
    for left in (" n't", " 'm", " 's", " 've", " 're"):
        text = text.replace(left, left[1:])
    return text
