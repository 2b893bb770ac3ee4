"""HuggingFace's tokenizers: a folder with a `tokenizer.json`, or with files that transformers turns into one, by the
package `tokenizers`; another folder, if its code is trusted, by the package `transformers` (`own_code`)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Any

from parallel_core.data.tokenizers.as_transformers import as_transformers_reads, without_blanks
from parallel_core.data.tokenizers.base import Facts, MegatronTokenizer, TokenizerOptions
from parallel_core.data.tokenizers.huggingface_folder import ROLES, AddedToken, HuggingFaceFolder, add
from parallel_core.data.tokenizers.library import TokenizersTokenizer, library
from parallel_core.data.tokenizers.own_code import OwnCodeTokenizer, is_trusted_code
from parallel_core.data.tokenizers.sentence_piece_model import FLAG


def render(template: str, variables: Mapping[str, Any]) -> str:
    """The text that a chat template (Jinja) gives with these variables; `tools` and `documents` are None unless given.
    Raises ValueError for any error of the template, such as one of syntax or by raise_exception, ConfigError without
    jinja2."""
    library("HuggingFaceTokenizer", "jinja2")
    sandbox = library("HuggingFaceTokenizer", "jinja2.sandbox")
    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_refuse, strftime_now=lambda form: datetime.now().strftime(form))
    # transformers passes these to every template, which tests them for truth; None unless `variables` has them.
    usual = {"tools": None, "documents": None}
    try:
        return environment.from_string(template).render({**usual, **variables})
    except Exception as error:  # what a template calls may raise anything
        raise ValueError(f"the chat template does not take this conversation ({error})") from error


def _refuse(message: str) -> None:
    raise ValueError(message)


def _to_json(value: Any, indent: int | None = None, **more: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, **more)


_LARGEST = 2**32 - 1
"""The largest id that the package `tokenizers` takes."""


def facts(options: TokenizerOptions) -> Facts:
    """Size and special ids of the folder; an id that it lacks may be that of another role, such as for pad that of eos.
    --tokenizer-special-tokens count, and are then the additional special ones; they are not looked at with
    --legacy-tokenizer, with the type PretrainedFromHF, and for a folder that `transformers` loads (`own_code`).

    Raises ValueError for a file that is missing or damaged, for --tokenizer-kwargs that lack a value, and if the
    folder's own code fails; ConfigError if `transformers` has to load the folder and is not installed."""
    assert options.tokenizer_model is not None
    if is_trusted_code(options):
        return OwnCodeTokenizer(options).facts
    return _facts(options, HuggingFaceFolder(options.tokenizer_model, options.tokenizer_kwargs))[0]


def _facts(options: TokenizerOptions, folder: HuggingFaceFolder) -> tuple[Facts, dict[str, int]]:
    """The facts of the folder with the options' special tokens, and its vocabulary as token -> id."""
    found, vocab = folder.facts(), dict(folder.vocab)
    if options.tokenizer_type == "PretrainedFromHF":
        return replace(found, pad=found.eos if found.pad is None else found.pad), vocab
    if options.legacy_tokenizer:
        return found, vocab
    for token in options.tokenizer_special_tokens or ():
        add(vocab, len(folder.model_vocab), token)
    others = found.additional_special_tokens_ids
    if options.tokenizer_special_tokens:
        others = tuple(vocab[token] for token in options.tokenizer_special_tokens)
    bos, eos = _first(found.bos, found.cls), _first(found.eos, found.sep)
    known = replace(found, bos=bos, eos=eos, cls=_first(found.cls, bos), sep=_first(found.sep, eos), eod=eos)
    return replace(known, vocab_size=len(vocab), additional_special_tokens_ids=others), vocab


def _first(*ids: int | None) -> int | None:
    return next((token_id for token_id in ids if token_id is not None), None)


def build(options: TokenizerOptions) -> MegatronTokenizer:
    """The tokenizer of a HuggingFace folder: by the package `transformers` and the folder's own code if the user trusts
    that and the folder lacks the files that are read without it, else by the package `tokenizers`.

    Raises ValueError naming the file that is missing or damaged, if that code fails, or for --tokenizer-kwargs that
    lack a value; ConfigError without the package."""
    return OwnCodeTokenizer(options) if is_trusted_code(options) else HuggingFaceTokenizer(options)


class HuggingFaceTokenizer(TokenizersTokenizer):
    """A tokenizer by a folder's `tokenizer.json`, or by the files that take its place. Special tokens that are written
    out in a text become their ids.

    `encode` with `special` puts the tokens that the folder says (BOS, EOS) around the text.
    """

    def __init__(self, options: TokenizerOptions) -> None:
        """Raises ValueError naming the file that is missing or damaged, or for --tokenizer-kwargs that lack a value;
        ConfigError without the package."""
        assert options.tokenizer_model is not None
        self._folder = HuggingFaceFolder(options.tokenizer_model, options.tokenizer_kwargs)
        found, self._vocab = _facts(options, self._folder)
        super().__init__(found)
        self.pads_with_eos = self._folder.facts().pad is None
        # Megatron's older tokenizers and MindSpeed-LLM's write special tokens into text; 0.16.1's newer ones do not.
        self._is_newer = not (options.legacy_tokenizer or options.tokenizer_type == "PretrainedFromHF")
        is_included = options.tokenizer_hf_include_special_tokens
        self._special = not self._is_newer if is_included is None else is_included
        self._backend = backend(self._folder, options.tokenizer_type)
        self._folder.content = {}  # large: it must not be sent to the worker processes
        if options.tokenizer_special_tokens and self._is_newer:
            self._add(options.tokenizer_special_tokens)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        ids = self._known(token_ids, range(_LARGEST + 1))
        if self._is_newer:
            return self._backend.decode([i for i in ids if i not in self._hidden], skip_special_tokens=False)
        text = self._backend.decode(ids, skip_special_tokens=not self._special)
        return without_blanks(text) if self._folder.config.get("clean_up_tokenization_spaces") else text

    @cached_property
    def _hidden(self) -> set[int | None]:
        """The ids that `detokenize` of Megatron's newer tokenizers leaves out: tokens with a role, additional special
        ones."""
        facts = self.facts
        roles = {getattr(facts, role) for role in ROLES}
        return {*roles, *facts.additional_special_tokens_ids}

    @property
    def vocab(self) -> Mapping[str, int]:
        return self._vocab

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = False, **variables: Any
    ) -> list[int]:
        template = self._folder.chat_template()
        if template is None:
            raise ValueError(f"{FLAG} {self._folder.path}: has no chat template; choose one with --prompt-type")
        names: dict[str, Any] = {f"{role}_token": token.content for role, token in self._folder.named.items()}
        names["additional_special_tokens"] = [token.content for token in self._folder.additional]
        given = {"messages": messages, "add_generation_prompt": add_generation_prompt, **names, **variables}
        return self.encode(render(template, given))

    def add_special_tokens(self, tokens: Sequence[str]) -> int:
        new = sum([add(self._vocab, len(self._folder.model_vocab), token) for token in tokens])
        self._add(tokens)
        self.facts = replace(self.facts, vocab_size=len(self._vocab))
        self.__dict__.pop("inv_vocab", None)
        return new

    def _add(self, tokens: Sequence[str]) -> None:
        self._backend.add_special_tokens(
            [_added(AddedToken(token, special=True, normalized=False)) for token in tokens]
        )


def _added(token: AddedToken) -> Any:
    made = library("HuggingFaceTokenizer", "tokenizers").AddedToken(
        token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=token.special,
    )
    return made


def backend(folder: HuggingFaceFolder, tokenizer_type: str) -> Any:
    """The folder's tokenizer as an object of the package `tokenizers`, with the tokens that files beside tokenizer.json
    add. tokenizer_type: as the user gave it, for the error. Raises ValueError if the package does not read the folder's
    files, ConfigError without the package."""
    package = library(tokenizer_type, "tokenizers")
    try:
        ids = {role: (token.content, folder.vocab[token.content]) for role, token in folder.named.items()}
        content = as_transformers_reads(folder.content, folder.kind, folder.config, ids)
        made = package.Tokenizer.from_str(json.dumps(content))
        special = {token.content for token in (*folder.named.values(), *folder.additional)}
        made.add_tokens(
            [_added(replace(token, special=token.special or token.content in special)) for token in folder.beside()]
        )
        made.no_truncation()
        made.no_padding()
        made.encode("a", add_special_tokens=True)  # some damage is found only by encoding
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the package raises plain Exception, and BaseException for its panics
        raise ValueError(f"{FLAG} {folder.file}: not a tokenizer that the package reads ({error})") from error
    return made
