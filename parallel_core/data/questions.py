"""Questions with the answers that a model is to give, from a file with a JSON object in each line."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from parallel_core.data.instruction.chat import Chat
from parallel_core.data.prompts import Prompt, read_lines
from parallel_core.data.tokenizers import MegatronTokenizer
from parallel_core.findings import ConfigError, Finding

FLAG = "--task-data-path"
_PROMPTS, _ANSWERS = ("prompt", "instruction"), ("answer", "output")


class Question(NamedTuple):
    """A question and its answer, as texts. A line's `input`, if it has one, stands below the question's text,
    on a new line."""

    prompt: str
    answer: str


@dataclass(frozen=True)
class Task:
    """A question and its answer as token ids; with a template the answer has the texts and tokens that it puts behind
    an answer, too."""

    prompt: list[int]
    answer: list[int]
    """The ids of the answer: with a template those that end it, too."""
    line: int
    """The number of the line in the file, from 1."""


def read_questions(file: Path) -> list[tuple[int, Question]]:
    """The number, from 1, and the question of each line that is not blank: an object with "prompt" or "instruction",
    "answer" or "output", and maybe "input"; an "input" that is null, false, 0 or empty counts as none.

    Raises ConfigError that names every line that is no such object, in which question or answer is blank, or one of the
    three is no text, or the file if it cannot be read or has no question.
    """
    return read_lines(file, _read, Finding(FLAG, file, "has no question", 'write {"prompt", "answer"} in each line'))


def _read(given: Any) -> Question | str:
    if not isinstance(given, dict):
        return 'must be an object with "prompt" and "answer"'
    found = []
    for names in (_PROMPTS, _ANSWERS):
        text = next((given[name] for name in names if name in given), None)
        if not isinstance(text, str) or not text.strip():
            return f'needs "{names[0]}" or "{names[1]}", a text that is not empty'
        found.append(text)
    more = given.get("input") or ""
    if not isinstance(more, str):
        return '"input" must be a text'
    return Question("\n".join(filter(None, (found[0], more))), found[1])


@dataclass(frozen=True)
class Writer:
    """The writer of questions as ids: as texts alone, or by `chat` as messages."""

    tokenizer: MegatronTokenizer
    chat: Chat | None = None

    def tasks(self, file: Path, questions: Sequence[tuple[int, Question]], room: int, ids: int) -> list[Task]:
        """The tasks of the questions, given with their lines' numbers in `file`. Raises ConfigError that names every
        line that cannot be encoded, that has more than `room` tokens, no token of a prompt or none of an answer, or a
        token that is not among the `ids` ids of the model. By a chat, a pair of about 100,000 tokens or more is cut."""
        tasks, found = [], []
        for line, question in questions:
            try:
                task = Task(*self._pair(question), line)
                problem = next(problems(task, room, ids), None)
            except ValueError as error:
                task, problem = None, str(error)
            if problem:
                found.append(Finding(FLAG, f"{file}, line {line}", problem, "change it"))
            elif task is not None:
                tasks.append(task)
        if found:
            raise ConfigError(found)
        return tasks

    def _pair(self, question: Question) -> tuple[list[int], list[int]]:
        if self.chat is not None:
            return self.chat.pair(*question)
        return Prompt(text=question.prompt).tokens(self.tokenizer), self.tokenizer.encode(question.answer)


def problems(task: Task, room: int, ids: int) -> Iterator[str]:
    """The first rule that a task breaks, if any, as text: it needs tokens of a prompt and of an answer, together at
    most `room`, all of them from 0 and below `ids`."""
    tokens = [*task.prompt, *task.answer]
    strange = [token for token in tokens if not 0 <= token < ids]
    if not task.prompt or not task.answer:
        yield "has no token of a prompt, or of an answer"
    elif len(tokens) > room:
        yield f"has {len(tokens)} tokens, the model's sequence {room}"
    elif strange:
        yield f"has token {strange[0]}, which is not among the model's {ids} ids; is it another tokenizer's?"
