"""Write docs/api.md: signatures and docstrings of the public names, read from the sources without importing them.

python docs/make_api.py
"""

import argparse
import ast
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

PUBLIC = {
    "Configuration": {
        "mapping/arguments.py": [
            *("initialize_megatron", "init_configs_from_args", "init_configs_from_yaml", "init_configs_from_dict"),
            *("parse_args", "get_args", "exit_on_mistakes"),
        ],
        "parallel_core/config/all.py": ["AllConfig"],
    },
    "Training": {
        "pynative/training/utils.py": ["set_parallel_context", "set_seed"],
        "pynative/training/training.py": ["pretrain", "get_model", "train"],
        "pynative/training/trainer.py": ["Trainer", "TrainingArguments"],
        "pynative/training/forward_backward.py": ["get_forward_backward_func"],
        "pynative/training/train_step.py": ["TrainOneStepCell", "StepResult"],
        "pynative/training/callbacks/base.py": ["Callback", "TrainingState"],
    },
    "Models and layers": {
        "pynative/transformer/gpt_model.py": ["GPTModel"],
        "pynative/transformer/module.py": ["Module"],
        "pynative/transformer/transformer.py": ["ParallelTransformer"],
        "pynative/transformer/layer.py": ["ParallelTransformerLayer"],
        "pynative/tensor_parallel/layers.py": ["ColumnParallelLinear", "RowParallelLinear", "VocabParallelEmbedding"],
        "pynative/moe/moe_layer.py": ["MoELayer"],
    },
    "Data": {
        "parallel_core/data/datasets.py": ["datasets_provider"],
        "parallel_core/data/indexed_dataset.py": ["IndexedDataset", "IndexedDatasetBuilder"],
        "pynative/training/data.py": ["build_pretraining_data_loader"],
    },
    "Checkpoints and generation": {
        "pynative/checkpointing/save.py": ["save_checkpoint"],
        "pynative/checkpointing/load.py": ["load_checkpoint"],
        "pynative/checkpointing/weights.py": ["load_weights", "gather_weights"],
        "pynative/generation/texts.py": ["generate", "generate_texts"],
    },
}
"""Heading -> file -> names, in the order of the page."""


def described(node: ast.FunctionDef | ast.ClassDef, module: str) -> str:
    """A name's heading, signature, docstring, and those of its public methods."""
    calls = [node] if isinstance(node, ast.FunctionDef) else [n for n in node.body if isinstance(n, ast.FunctionDef)]
    own = next((call for call in calls if call is node or call.name == "__init__"), None)
    text = f"### {node.name}\n\n`{module}`\n\n"
    if own is not None:
        text += f"```python\n{_signature(own, node.name)}\n```\n\n"
    text += _paragraphs(node)
    text += _fields(node)
    for method in calls:
        if method is not node and not method.name.startswith("_") and ast.get_docstring(method):
            text += f"- `{_signature(method, method.name)}`: {' '.join((ast.get_docstring(method) or '').split())}\n"
    return text.rstrip() + "\n\n"


def _fields(node: ast.FunctionDef | ast.ClassDef) -> str:
    """A line for each attribute of a class, with the sentence below it if there is one."""
    if isinstance(node, ast.FunctionDef):
        return ""
    lines = []
    for entry, following in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(entry, ast.AnnAssign) and not (name := ast.unparse(entry.target)).startswith("_"):
            value = following.value if isinstance(following, ast.Expr) else None
            said = value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""
            lines.append(f"- `{name}: {ast.unparse(entry.annotation)}` {' '.join(said.split())}".rstrip())
    return "".join(f"{line}\n" for line in lines)


def _signature(call: ast.FunctionDef, name: str) -> str:
    arguments = ast.parse(ast.unparse(call)).body[0].args  # type: ignore[attr-defined]
    for kind in (arguments.posonlyargs, arguments.args):
        kind[:] = [argument for argument in kind if argument.arg not in ("self", "cls")]
    returned = f" -> {ast.unparse(call.returns)}" if call.returns and call.name != "__init__" else ""
    return f"{name}({ast.unparse(arguments)}){returned}"


def _paragraphs(node: ast.FunctionDef | ast.ClassDef) -> str:
    """The docstring; lines that are indented, such as arguments, stay as they are."""
    blocks = (ast.get_docstring(node) or "").split("\n\n")
    shown = [
        f"```text\n{textwrap.dedent(block)}\n```"
        if "\n " in block or block.startswith(" ")
        else " ".join(block.split())
        for block in blocks
    ]
    return "\n\n".join(shown) + "\n\n"


def page() -> str:
    """The whole page. Raises KeyError for a public name that its file lacks."""
    text = "# API reference\n\n```bash\npython docs/make_api.py     # writes this page from the docstrings\n```\n\n"
    text += "Examples of use: [python.md](python.md), [loaders.md](loaders.md).\n\n"
    for heading, files in PUBLIC.items():
        text += f"## {heading}\n\n"
        for path, names in files.items():
            tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
            found = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
            module = path.removesuffix(".py").replace("/", ".")
            text += "".join(described(found[name], module) for name in names)
    return text.rstrip() + "\n"


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    (ROOT / "docs" / "api.md").write_text(page(), encoding="utf-8")
