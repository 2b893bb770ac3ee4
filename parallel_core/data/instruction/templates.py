"""Formats of a conversation: templates as data, MindSpeed-LLM's table and the user's own.

A template is a row of JSON: `format_user`, `format_assistant`, `format_system`, `format_observation`,
`format_function`, `format_prefix` and `format_separator` may have `slots`, which are texts (with `{{content}}` in the
place of what is written), tokens `{"token": "<|user|>"}`, or a token of the tokenizer by its role, `["bos_token"]`.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("templates.json")
OWN_TEMPLATE = "chat_template"
"""--prompt-type of the template that a HuggingFace tokenizer has itself."""
EMPTY_THOUGHT = ("<think>\n", "\n</think>\n\n")
_PLACEHOLDER = re.compile(r"\{\{[a-zA-Z_][a-zA-Z0-9_]*\}\}")


@dataclass(frozen=True)
class NamedToken:
    """A slot that is one token of the vocabulary, by its name."""

    name: str


@dataclass(frozen=True)
class RoleToken:
    """A part of a template that is the token for the beginning or the end of a text; nothing where there is none."""

    role: str
    """The role, "bos" or "eos"."""


Slot = str | NamedToken | RoleToken
Slots = tuple[Slot, ...]

_EOS = RoleToken("eos")
_ROLES = {"bos_token": "bos", "eos_token": "eos"}


@dataclass(frozen=True)
class Style:
    """The way in which the templates of one class (`template_class` in the table) write and cut conversations.
    cuts_by_share: question and answer of a turn that is too long are cut in proportion to their lengths, else one that
    takes less than half of the room stays whole; separates: the separator stands between turns; system_in_user: the
    system message is a part of the first user message; reasons: an answer without a thought gets an empty one, in the
    answer or before it; is_deepseek4: conversations are written in DeepSeek V4's format, not by slots."""

    cuts_by_share: bool
    """Whether question and answer of a turn that is too long are cut in proportion to their lengths; else one that
    takes less than half of the room stays whole."""
    separates: bool = True
    """Whether the separator stands between turns."""
    system_in_user: bool = False
    """Whether the system message is a part of the first user message."""
    reasons: bool = False
    """Whether an answer without a thought gets an empty one, in the answer or before it."""
    is_deepseek4: bool = False
    """Whether conversations are written in DeepSeek V4's format (`deepseek4`), not by slots."""


STYLES = {
    "Template": Style(cuts_by_share=True),
    "Llama2Template": Style(cuts_by_share=True, system_in_user=True),
    "LFDefaultTemplate": Style(cuts_by_share=False, separates=False),
    "ReasoningTemplate": Style(cuts_by_share=False, reasons=True),
    "DeepSeek4Template": Style(cuts_by_share=False, is_deepseek4=True),
}
"""`template_class` of the table -> style."""


@dataclass(frozen=True)
class Template:
    """A prompt type of --prompt-type: the form of conversations. formats: role, "prefix" or "separator" -> slots;
    tool_format: the form in which tools are described; default_system: the system message of a conversation without
    one, but in DeepSeek V4's format; stop_words: tokens that end an answer, which the tokenizer gets; thought_words:
    the texts before and behind a thought; efficient_eos: one end of text stands behind the last answer, not behind
    each; replace_eos: the first stop word is the end of text."""

    name: str
    style: Style
    formats: dict[str, Slots]
    """Role of a message (user, assistant, system, function, observation), or prefix or separator -> slots."""
    tool_format: str
    """Name of the form in which tools are described (`tool_texts.described`)."""
    default_system: str
    """The system message of a conversation without one, but in DeepSeek V4's format; "": none."""
    stop_words: tuple[str, ...]
    """Tokens that end an answer, which the tokenizer gets."""
    thought_words: tuple[str, str]
    """The texts before and behind a thought."""
    efficient_eos: bool
    """Whether there is one end of text, behind the last answer, instead of one behind each."""
    replace_eos: bool
    """Whether the first stop word becomes the end of text."""

    @property
    def named_tokens(self) -> set[str]:
        """Names of the tokens in the slots of all formats, for each of which the tokenizer must have an id, or an
        unknown token that stands for it."""
        return {slot.name for slots in self.formats.values() for slot in slots if isinstance(slot, NamedToken)}


def load_template(name: str, path: str | Path = TABLE) -> Template:
    """The template of the prompt type `name` in a table. Raises ValueError as `load_table`, for a table that does not
    have it, and for a template with wrong slots, words, switches or `template_class`."""
    table = load_table(path)
    if name not in table:
        raise ValueError(f"--prompt-type {name} is not in {path}; choose one of {', '.join(table)}")
    row = table[name]
    try:
        return _template(row)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path}: template {name}: {error}") from error


def load_table(path: str | Path = TABLE) -> dict[str, dict[str, Any]]:
    """Name -> row of a table of templates; of several rows with one name the last. Raises ValueError for a file that
    cannot be read, or is no JSON list of objects with a name each."""
    flag = "--prompt-type-path"
    try:
        rows = json.loads(Path(path).read_bytes())
        json.dumps(rows, ensure_ascii=False).encode()
    except OSError as error:
        raise ValueError(f"{flag} {path} cannot be read ({error.strerror}); give a JSON file") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{flag} {path} is no JSON ({error}); repair it") from error
    if not isinstance(rows, list) or not all(
        isinstance(row, dict) and isinstance(row.get("name"), str) for row in rows
    ):
        raise ValueError(f"{flag} {path} must be a list of objects with a name each, as {TABLE.name} of this package")
    return {row["name"]: row for row in rows}


def _template(row: dict[str, Any]) -> Template:
    efficient_eos = _flag(row, "efficient_eos")
    end: Slots = () if efficient_eos else (_EOS,)
    user = _slots(row, "user", ("{{content}}",))
    formats = {
        "user": user,
        "assistant": _slots(row, "assistant", ("{{content}}", *end)),
        "system": _slots(row, "system", ("{{content}}",)),
        "observation": _slots(row, "observation", user),
        "function": _slots(row, "function", ("Action: {{name}}\nAction Input: {{arguments}}", *end)),
        "separator": _slots(row, "separator", ()),
        "prefix": _slots(row, "prefix", ()),
    }
    _check_placeholders(formats)
    style = row.get("template_class") or "Template"
    if style not in STYLES:
        raise ValueError(f"template_class {style!r} must be one of {', '.join(STYLES)}")
    stop_words = _texts(row, "stop_words", row.get("stop_words") or [])
    replace_eos = _flag(row, "replace_eos")
    if replace_eos and not stop_words:
        raise ValueError("replace_eos needs stop_words: the first of them becomes the end of text")
    thoughts = _texts(row, "thought_words", row.get("thought_words") or EMPTY_THOUGHT)
    if len(thoughts) != 2:
        raise ValueError(f"thought_words must be two texts, not {len(thoughts)}")
    system = row.get("default_system") or ""
    return Template(
        name=row["name"],
        style=STYLES[style],
        formats=formats,
        tool_format=_tool_format(row.get("format_tools") or row.get("format_function")),
        default_system="".join(_texts(row, "default_system", [system] if isinstance(system, str) else system)),
        stop_words=stop_words,
        thought_words=(thoughts[0], thoughts[1]),
        efficient_eos=efficient_eos,
        replace_eos=replace_eos,
    )


def _tool_format(given: Any) -> str:
    found = given.get("tool_format") or "default" if isinstance(given, dict) else "default"
    if not isinstance(found, str):
        raise ValueError(f"tool_format must be a text, not {found!r}")
    return found


def _flag(row: dict[str, Any], name: str) -> bool:
    value = row.get(name, False)
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, not {value!r}")
    return value


def _texts(row: dict[str, Any], name: str, values: Any) -> tuple[str, ...]:
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"{name} must be a list of texts, not {row.get(name)!r}")
    return tuple(values)


def _slots(row: dict[str, Any], role: str, default: Slots) -> Slots:
    given = row.get(f"format_{role}")
    if given is None or given == {} or (role == "function" and not given.get("slots")):
        return default
    if not isinstance(given, dict) or not isinstance(given.get("slots"), list):
        raise ValueError(f"format_{role} must have a list of slots, not {given!r}")
    return tuple(_slot(slot, role) for slot in given["slots"])


def _slot(slot: Any, role: str) -> Slot:
    if isinstance(slot, str):
        return slot
    if isinstance(slot, dict) and isinstance(slot.get("token"), str):
        return NamedToken(slot["token"])
    if isinstance(slot, list) and len(slot) == 1 and slot[0] in _ROLES:
        return RoleToken(_ROLES[slot[0]])
    raise ValueError(f'format_{role}: slot {slot!r} must be a text, {{"token": ...}}, ["bos_token"] or ["eos_token"]')


def _check_placeholders(formats: dict[str, Slots]) -> None:
    for role, slots in formats.items():
        text = "".join(slot for slot in slots if isinstance(slot, str))
        is_filled = bool(_PLACEHOLDER.search(text))
        if role in ("prefix", "separator") and is_filled:
            raise ValueError(f"format_{role}: {text!r} must have no placeholder")
        if role not in ("prefix", "separator") and not is_filled:
            raise ValueError(f"format_{role}: {text!r} needs a placeholder, such as {{{{content}}}}")
