"""The decoder on numpy arrays that generates a token on a CPU, against the cells that train."""

import numpy as np
import pytest

from pynative.generation.host_products import SHARED_BYTES, Product
from pynative.kernels.host.threads import MATMUL_ROWS, set_threads, thread_count
from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job

KINDS = {
    "gpt": "--position-embedding-type learned_absolute --add-bias-linear",
    "llama": "--position-embedding-type rope --normalization RMSNorm --swiglu --group-query-attention "
    "--num-query-groups 2 --disable-bias-linear --untie-embeddings-and-output-weights",
    "partly turned": "--position-embedding-type rope --rotary-percent 0.5 --rotary-interleaved --qk-layernorm",
    "normed after turning": "--position-embedding-type rope --qk-layernorm --qk-layernorm-after-rope",
    "experts": "--num-experts 4 --moe-router-topk 2 --swiglu --disable-bias-linear",
    "window and slopes": "--position-embedding-type alibi --sliding-window 4 --apply-layernorm-1p",
}

REFUSED = {
    "shared keys": f"{KINDS['llama']} --cla-share-factor 2",
    "experts by token": "--num-experts 4 --moe-router-topk 2 --moe-router-score-function sqrtsoftplus "
    "--moe-router-load-balancing-type none --n-hash-layers 1 --swiglu --disable-bias-linear",
    "rounded weights": f"{KINDS['llama']} --qat-scheme w4a16-mxfp4",
    "computed in 16 bits": f"{KINDS['llama']} --bf16 --params-dtype float32 --fp32-residual-connection",
}
"""Models that the cells compute at every token."""


@pytest.fixture
def two_threads():
    before = thread_count()
    set_threads(2)
    yield
    set_threads(before)


@pytest.mark.parametrize("outputs, inputs", [(1, 40), (MATMUL_ROWS, 40), (165, SHARED_BYTES // 4 // 165 + 1)])
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_products(two_threads, outputs, inputs, rows):
    """`Product` prepared once gives x W^T + b for each new content of x, with two threads as with numpy."""
    rng, shapes = np.random.default_rng(0), ((outputs, inputs), outputs, (2, rows, inputs))
    weight, bias, texts = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    shifted, product = Product(weight, bias, rows), Product(weight, None, rows)
    for x in texts:
        np.testing.assert_allclose(shifted(x.T).T, x @ weight.T + bias, rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(product(x.T).T, x @ weight.T, rtol=1e-5, atol=1e-4)


def logits(backend, flags: str, decodes: bool = True) -> list[np.ndarray]:
    """Logits of five steps after two prompts, computed three ways: by the numpy decoder, by cells with a cache, by
    whole forwards. decodes: whether the first way is the decoder's, or the cells' too, as they are chosen."""
    from pynative.generation import host_layers, host_products
    from pynative.generation.forward import Forward
    from pynative.parameter import initialize_parameters
    from pynative.tape.autograd import no_grad
    from pynative.transformer.gpt_model import GPTModel

    config, said = config_of(f"{TINY} {flags}", 1), [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3], [2, 7, 1, 8, 2, 8, 1, 8, 3]]
    found = []
    with job(backend, config), no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_products, "SHARED_BYTES", 0)
        patch.setattr(host_layers, "SHARED_KEYS", 0)
        model = GPTModel(config.model_config)
        initialize_parameters(model, 1)
        model.set_train(False)
        for use_cache, plain in ((True, True), (True, False), (False, False)):
            forward = Forward(model, 16, use_cache=use_cache)
            if not plain:
                forward._is_plain = False
            steps = [forward([text[: len(text) - 5 + step] for text in said]) for step in range(5)]
            assert (forward._decoder is not None) == (plain and decodes)
            found.append(np.stack(steps))
    return found


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("flags", KINDS.values(), ids=KINDS)
def test_logits_equal_those_of_the_cells(flags, threads):
    """The numpy decoder's logits equal those of cells with and without a cache in every step, for texts of different
    lengths, with its heads and outputs divided between threads."""
    arrays, cells, whole = run(1, logits, f"{flags} --threads {threads}")[0]
    np.testing.assert_allclose(arrays, whole, atol=1e-5)
    np.testing.assert_allclose(cells, whole, atol=1e-5)


@pytest.mark.parametrize("flags", REFUSED.values(), ids=REFUSED)
def test_a_model_whose_layers_need_more_is_left_to_the_cells(flags):
    """Keys that layers share, experts chosen by tokens' ids, rounded weights and computing in 16 bits are not the
    decoder's: logits with a cache equal those of whole forwards, and no decoder is made."""
    chosen, cells, whole = run(1, logits, flags, False)[0]
    np.testing.assert_allclose(chosen, whole, atol=5e-2 if "--bf16" in flags else 1e-5)
    np.testing.assert_array_equal(chosen, cells)
