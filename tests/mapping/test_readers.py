"""No flag is `mapped` that does nothing: the field it fills is read, or belongs to something that is refused."""

import ast
from pathlib import Path

import pytest

from mapping.arguments import read
from mapping.flags import MAPPED, ROWS
from parallel_core.config.unsupported import IMPLEMENTED, PART_OF

ROOT = Path(__file__).resolve().parents[2]
TARGETS = {row.target: row.name for row in ROWS if row.status == MAPPED and row.target}


def attributes(*files: Path) -> set[str]:
    """Every name that is read as an attribute."""
    trees = (ast.walk(ast.parse(file.read_text(encoding="utf-8"))) for file in files)
    nodes = (node for tree in trees for node in tree)
    return {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}


def code() -> set[str]:
    """What the engine and the plan read, and what the config and the mapping derive other fields from."""
    files = [*(ROOT / "pynative").rglob("*.py"), *(ROOT / "parallel_core").rglob("*.py")]
    return attributes(*files, ROOT / "mapping" / "derived.py", ROOT / "mapping" / "vocabulary.py")


READ = code()


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_a_mapped_field_is_read(target):
    """By attribute, anywhere in the code; or the engine refuses every value but the one it acts on."""
    is_part = any(target.startswith(start) for start in PART_OF)
    assert target.rsplit(".", 1)[1] in READ or target in IMPLEMENTED or is_part, f"{TARGETS[target]} does nothing"


def test_parts_belong_to_something():
    """A field excused as a part names a field that is refused or read."""
    for start, whole in PART_OF.items():
        assert whole in IMPLEMENTED or whole.rsplit(".", 1)[1] in READ, start
        assert any(target.startswith(start) for target in TARGETS), f"{start} excuses nothing"


def test_what_is_refused_has_a_flag():
    """Rows of the table of what is not implemented yet name fields that exist and flags that people type."""
    config = read(["--num-layers", "2", "--hidden-size", "8", "--num-attention-heads", "2", "--seq-length", "8"]).config
    for target in IMPLEMENTED:
        section, _, rest = target.partition(".")
        value = getattr(config, section)
        for name in rest.split("."):
            value = getattr(value, name)
        assert target in TARGETS or any(row.name for row in ROWS if row.target == target), target
