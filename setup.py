"""Packaging. Three packages, imported as `mapping`, `parallel_core` and `pynative`."""

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

TOKENIZERS = ["tokenizers", "sentencepiece", "tiktoken", "jinja2"]
ZSTANDARD = "zstandard"
TENSORBOARD = "tensorboard"
PLOTLY = "plotly>=6"
# Later ones need NumPy 2.
PYARROW = "pyarrow<26"

# Read, not imported: an environment that builds the wheel has none of the requirements.
VERSION = re.findall('__version__ = "(.*)"', Path("parallel_core/__init__.py").read_text(encoding="utf-8"))[0]
PYTHONS = ("3.10", "3.11", "3.12")


class BuildWithProgram(build_py):
    """Put the examples into the wheel, too, as mapping/examples: `launch` starts their program."""

    def run(self) -> None:
        """Copy what belongs into the wheel."""
        super().run()
        if not self.editable_mode:
            shutil.copytree("examples/gpt", Path(self.build_lib) / "mapping" / "examples", dirs_exist_ok=True)


setup(
    name="megatron-pynative",
    version=VERSION,
    description="A Megatron-compatible training core on MindSpore's dynamic graph",
    long_description=Path("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    project_urls={
        "MindSpore": "https://www.mindspore.cn",
        "Megatron-LM": "https://github.com/NVIDIA/Megatron-LM",
    },
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Natural Language :: English",
        "Natural Language :: Chinese (Simplified)",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3 :: Only",
        *(f"Programming Language :: Python :: {python}" for python in PYTHONS),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    python_requires=">=3.10,<3.13",
    entry_points={"console_scripts": ["megatron-pynative = mapping.__main__:main"]},
    cmdclass={"build_py": BuildWithProgram},
    packages=find_packages(include=["mapping*", "parallel_core*", "pynative*"]),
    package_data={
        "": ["py.typed"],
        "parallel_core": ["data/instruction/*.json", "planner/devices/*.yaml", "report/page.*"],
    },
    # MindSpore's wheel is built against NumPy 1.x and its tensors break under 2.x, which its own metadata doesn't say.
    install_requires=["mindspore==2.10.*", "numpy>=1.26,<2", "psutil", "pyyaml"],
    extras_require={
        "test": [
            "pytest",
            "hypothesis",
            "ruff",
            "mypy",
            "types-PyYAML",
            "matplotlib",
            TENSORBOARD,
            PLOTLY,
            *TOKENIZERS,
            PYARROW,
            ZSTANDARD,
        ],
        "tokenizers": TOKENIZERS,
        "parquet": [PYARROW],
        "zstd": [ZSTANDARD],
        "hf": ["transformers"],
        "tb": [TENSORBOARD],
        "report": [PLOTLY],
        "plot": ["matplotlib"],
        "docs": ["mkdocs"],
    },
)
