"""Continuations by models of HuggingFace checkpoints, and those that `transformers` recorded."""

import json
from functools import cache
from pathlib import Path

from tests.support.assets import asset
from tests.support.engine import job


@cache
def recorded() -> dict[str, dict[str, list[list[int]]]]:
    """Case -> "prompts", and their "new_tokens" by `transformers`, greedily in float32."""
    return json.loads(asset("checkpoints/generate.json").read_text(encoding="utf-8"))


def continued(backend, folder: Path, prompts: list[list[int]], ways: list[dict], **parallel) -> list[list[tuple]]:
    """For each way of asking (fields of Asked), for each prompt (new ids, their log probabilities), by the folder's
    model in float32."""
    from pynative.generation import Asked, generate_texts
    from pynative.generation.command import filled
    from pynative.generation.options import config_of

    config = config_of(folder, "float32", device_target="CPU", world_size=backend.world_size, **parallel)
    with job(backend, config):
        model = filled(folder, config)
        asked = [generate_texts(model, prompts, Asked(**way)) for way in ways]
        return [[(text.new, text.logprobs) for text in texts] for texts in asked]
