"""Pre-train a GPT: flags -> configs -> processes -> data -> model -> training.

Start it with `bash examples/gpt/pretrain_gpt.sh`, or with msrun and Megatron's flags.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pynative  # noqa: F401 - from here on this process ends when msrun does, however that happens
from mapping import exit_on_mistakes, init_configs_from_args, initialize_megatron
from parallel_core.data.datasets import datasets_provider


def main() -> None:
    """Read the flags and train; runs on every rank."""
    all_config = init_configs_from_args(initialize_megatron())
    with exit_on_mistakes():
        provider = datasets_provider(all_config)

    # Importing MindSpore takes seconds; wrong flags have been reported before.
    from pynative.training.training import pretrain
    from pynative.training.utils import set_parallel_context, set_seed
    from pynative.transformer.gpt_model import GPTModel

    set_parallel_context(all_config.parallel_config)
    set_seed(all_config.training_config.seed)

    def model_provider(pre_process=True, post_process=True):
        return GPTModel(all_config.model_config, pre_process=pre_process, post_process=post_process)

    pretrain(provider, model_provider, all_config=all_config)


if __name__ == "__main__":
    main()
