"""Routing replay: generation records each token's experts in a file, and training sends the tokens to the recorded
ones."""

import numpy as np
import pytest

from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job

MODEL = (
    f"{TINY} --global-batch-size 4 --num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 16 --init-method-std 0.3 "
    "--moe-token-dispatcher-type alltoall --moe-router-load-balancing-type none --moe-enable-routing-replay "
    "--position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear"
)
PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3], [2, 3, 8, 4]]
LAYOUTS = {
    "one rank": (1, ""),
    "tp2 sp": (2, "--tensor-model-parallel-size 2 --sequence-parallel"),
    "ep2": (2, "--expert-model-parallel-size 2"),
    "pp2": (2, "--pipeline-model-parallel-size 2"),
}


def told(backend, flags: str, path: str, use_cache: bool = True):
    """(texts, experts [s, L, k] of each) that this rank generates with a record; rank 0 saves both to `path`."""
    from pynative.generation import Asked, generate_texts
    from pynative.moe.router_replay import RoutingRecord, save_routing
    from pynative.parameter import initialize_parameters
    from pynative.transformer.gpt_model import GPTModel

    config = config_of(flags, backend.world_size)
    with job(backend, config):
        from pynative import parallel_state

        stage = {"pre_process": parallel_state.is_pipeline_first_stage()}
        stage["post_process"] = parallel_state.is_pipeline_last_stage()
        model = GPTModel(config.model_config, **stage)
        initialize_parameters(model, 1)
        record = RoutingRecord(config.model_config)
        texts = [t.ids for t in generate_texts(model, PROMPTS, Asked(6, use_cache=use_cache), record=record)]
        experts = record.whole()
        if backend.rank == 0:
            save_routing(path, texts, experts)
        return texts, experts


@pytest.mark.parametrize("layout", [*LAYOUTS, "without a cache"])
def test_a_generation_is_on_record(tmp_path, layout):
    """Each token but the last has two different experts in each layer, the same in any layout and without a cache."""
    world, flags = LAYOUTS.get(layout, (1, ""))
    ranks = run(world, told, f"{MODEL} {flags}", str(tmp_path / "texts.npz"), layout != "without a cache")
    alone, expected = run(1, told, MODEL, str(tmp_path / "again.npz"))[0]
    for texts, experts in ranks:
        assert texts == alone
        for text, own, other in zip(texts, experts, expected, strict=True):
            assert own.shape == (len(text) - 1, 2, 2) and np.array_equal(np.sort(own), np.sort(other))
            assert (own >= 0).all() and (own[..., 0] != own[..., 1]).all()


def trained(backend, flags: str, path: str):
    """(losses, for each step the tokens of each expert by layer) of training on the texts and routing in a file."""
    from pynative.moe.router_replay import ReplayedTexts
    from pynative.training.callbacks import Callback
    from pynative.training.training import pretrain
    from pynative.transformer.gpt_model import GPTModel

    config, losses, counts = config_of(flags, backend.world_size), [], []

    class Recorder(Callback):
        def on_step_end(self, state):
            losses.append(state.result.loss)
            counts.append(state.result.figures["tokens_chosen"])

    with job(backend, config):
        pretrain(
            lambda samples: (ReplayedTexts(path, config.model_config.seq_length), None, None),
            lambda **stage: GPTModel(config.model_config, **stage),
            all_config=config,
            callbacks=[Recorder()],
        )
    return losses, counts


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """(path of a file of four texts of a sample's length with drawn experts, number of tokens of each expert
    by layer)."""
    from pynative.moe.router_replay import save_routing

    generator, path = np.random.default_rng(4), str(tmp_path_factory.mktemp("replay") / "drawn.npz")
    texts = generator.integers(0, 60, (4, 17)).tolist()
    experts = [generator.random((16, 2, 4)).argsort(axis=-1)[..., :2].astype(np.int32) for _ in texts]
    save_routing(path, texts, experts)
    return path, np.array([np.bincount(np.stack(experts)[:, :, layer].ravel(), minlength=4) for layer in range(2)])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_training_goes_to_the_experts_on_record(drawn, layout):
    """Every step, with recomputed layers too, routes as the file says, with one rank's losses; without the flag tokens
    go elsewhere."""
    path, expected = drawn
    world, flags = LAYOUTS[layout]
    again = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    alone, _ = run(1, trained, MODEL, path)[0]
    for losses, counts in run(world, trained, f"{MODEL} {flags} {again}", path):
        np.testing.assert_allclose(losses, alone, rtol=1e-5)
        assert all(np.array_equal(found, expected) for found in counts)


def routed(backend, given: np.ndarray):
    from mindspore import Tensor

    from pynative.moe.router import TokenIds, TopKRouter
    from pynative.parameter import initialize_parameters

    config = config_of(MODEL, 1)
    with job(backend, config):
        router = TopKRouter(config.model_config, 2, replaying(config.model_config))
        initialize_parameters(router, 1)
        hidden = Tensor(np.random.default_rng(1).normal(size=(*given.shape[:2], 32)).astype(np.float32))
        chosen = router(hidden).experts.asnumpy()
        replayed = router(hidden, TokenIds(np.zeros(given.shape[:2], np.int32), given))
        weights = router.gating(hidden).asnumpy().reshape(len(chosen), -1)
        return chosen, replayed.experts.asnumpy(), replayed.probs.asnumpy(), weights


def replaying(config):
    from parallel_core.blocks.router import Router

    return Router.of(config, 1)


def test_token_by_token():
    """A router given experts chooses them, with weights by their own scores; -1 leaves the token to the router."""
    given = np.random.default_rng(2).random((5, 3, 2, 4)).argsort(axis=-1)[..., :2].astype(np.int32)
    given[3:] = -1
    chosen, experts, probs, logits = run(1, routed, given)[0]
    of_layer = given[:, :, 1].reshape(-1, 2)
    assert np.array_equal(experts, np.where(of_layer < 0, chosen, of_layer))
    scores = np.exp(np.take_along_axis(logits, experts, 1))
    np.testing.assert_allclose(probs, scores / scores.sum(1, keepdims=True), rtol=1e-5)


def test_wrong_records_are_named():
    """A record of wrong shape, type or range is an error before a router sees it."""
    from pynative.moe.router_replay import checked

    config = config_of(MODEL, 1).model_config
    assert checked(np.zeros((2, 16, 2, 2), np.int32), (2, 16), config).any() is np.False_
    for wrong in (np.zeros((2, 16, 1, 2), np.int32), np.zeros((2, 16, 2, 2)), np.full((2, 16, 2, 2), 4)):
        with pytest.raises(ValueError, match="routed_experts"):
            checked(wrong, (2, 16), config)


@pytest.mark.parametrize("lacks", ["the entry", "the flag"])
def test_neither_goes_without_the_other(drawn, lacks):
    """A file with routing but without the flag is an error, and so is the flag with a file without routing."""
    path, _ = drawn
    if lacks == "the flag":
        with pytest.raises(ValueError, match="add --moe-enable-routing-replay"):
            run(1, trained, MODEL.replace("--moe-enable-routing-replay", ""), path)
    else:
        with pytest.raises(ValueError, match="no routed_experts"):
            run(1, trained_on_rows, MODEL)


def trained_on_rows(backend, flags: str):
    from tests.support.layouts import train

    return train(backend, flags)


def test_an_empty_text_is_a_sample_of_padding(tmp_path):
    """A text of no tokens in a file of routes is a sample without loss, like one of a single token."""
    from pynative.moe.router_replay import ReplayedTexts, save_routing

    routes = [np.zeros((length, 1, 2), np.int32) for length in (0, 1, 2)]
    save_routing(tmp_path / "routes.npz", [[], [7], [7, 8]], routes)
    texts = ReplayedTexts(tmp_path / "routes.npz", 3)
    assert [float(texts[number]["loss_mask"].sum()) for number in range(3)] == [0, 0, 1]
    assert all(len(array) == 3 for number in range(3) for array in texts[number].values())
