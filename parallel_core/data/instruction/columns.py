"""Names of the columns of a row, and of roles in it: the handlers' defaults, and `--map-keys`."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any


@dataclass(frozen=True)
class Tags:
    """The names by which the data write a list of messages: `role_tag` and `content_tag` are the keys of a message's
    role and content, the others the names of the roles; None: the data have none."""

    role_tag: str | None = "from"
    content_tag: str | None = "value"
    user_tag: str | None = "human"
    assistant_tag: str | None = "gpt"
    observation_tag: str | None = "observation"
    function_tag: str | None = "function_call"
    system_tag: str | None = "system"

    @property
    def roles(self) -> dict[str, str]:
        """Name of a role in the data -> its name in a `Message`: user, assistant, observation, function or system, for
        those that have a tag; of roles that share a tag only the last, in this order, is there."""
        tagged = {
            self.user_tag: "user",
            self.assistant_tag: "assistant",
            self.observation_tag: "observation",
            self.function_tag: "function",
            self.system_tag: "system",
        }
        return {tag: role for tag, role in tagged.items() if tag is not None}


OPENAI_TAGS = Tags("role", "content", "user", "assistant", "tool", "function_call", "system")


@dataclass(frozen=True)
class Columns:
    """Names of the columns of a row; None: there is none. `prompt` and `query` are the two parts of a question,
    `response` is its answer, `chosen` and `rejected` are two answers that are compared. tags: the names in a list of
    messages; named: the columns that --map-keys names."""

    prompt: str | None = "instruction"
    query: str | None = "input"
    response: str | None = "output"
    history: str | None = None
    system: str | None = None
    tools: str | None = None
    messages: str | None = "conversations"
    chosen: str | None = "chosen"
    rejected: str | None = "rejected"
    tags: Tags = Tags()
    named: frozenset[str] = frozenset()
    """Columns that `--map-keys` names: at least one record must have each of them."""


ALPACA_KEYS = ("prompt", "query", "response", "history", "system", "chosen", "rejected")
SHAREGPT_KEYS = ("messages", "tags", "system", "tools", "chosen", "rejected")
OPENAI_KEYS = ("messages", "system", "tools")


def mapped(columns: Columns, keys: Collection[str], map_keys: Mapping[str, Any] | None) -> Columns:
    """`columns` with the names that `map_keys`, the object of `--map-keys` (None: no change), gives for any of `keys`,
    those that the handler reads; a column named null or "" becomes None. If it has an object `tags`, names that this
    does not give become None. Raises ValueError for keys other than `keys`, for a column's name that is neither text
    nor null, and for `tags`, unless null, that are no object of texts under names of fields of `Tags`."""
    if map_keys is None:
        return columns
    given = dict(map_keys)
    _check_keys(given, keys, "")
    tags = given.pop("tags", None)
    wrong = [key for key, value in given.items() if not (value is None or isinstance(value, str))]
    if wrong:
        raise ValueError(f"--map-keys: {wrong[0]} must be the name of a column, not {given[wrong[0]]!r}")
    given = {key: value or None for key, value in given.items()}
    columns = replace(columns, **given, named=frozenset(value for value in given.values() if value))
    return columns if tags is None else replace(columns, tags=_tags(tags))


def _tags(given: Any) -> Tags:
    """The tags that `--map-keys` gives; those that it does not give are None. Raises ValueError for unknown ones."""
    names = [field.name for field in fields(Tags)]
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise ValueError(f"--map-keys: tags must be an object of {', '.join(names)}, not {given!r}")
    _check_keys(given, names, "tags: ")
    return Tags(**{name: given.get(name) for name in names})


def _check_keys(given: Mapping[str, Any], known: Collection[str], where: str) -> None:
    unknown = [key for key in given if key not in known]
    if unknown:
        raise ValueError(f"--map-keys: {where}{unknown[0]} is no key of this handler; it has {', '.join(known)}")
