"""Samples of a recorded run's first gradients and final weights, for cases whose large arrays are not kept.

    python -c "import numpy, pathlib; from tests.parity.samples import samples_of; case = pathlib.Path('CASE_DIR');
    numpy.savez_compressed('samples.npz', **samples_of(case, case))"

makes them of a whole case.
"""

from pathlib import Path

import numpy as np

SAMPLES, PLACES = "samples.npz", 61
GRADIENT, WEIGHT = 1e-4, 2e-5
"""Tolerances. GRADIENT: of a first gradient's samples, relative to its largest entry, and of its norm, relative;
measured 1.5e-6 and 4.6e-7. WEIGHT: of a final weight's samples, absolute (measured 1.6e-6), and five times as much of
how far it moved, relative (3.0e-6)."""


def sampled(values: np.ndarray, change: np.ndarray) -> np.ndarray:
    """float32 [2 + PLACES]: the norm of `change`, the largest magnitude of `values`, and `values` at even distances;
    then NaN."""
    flat = values.ravel()
    places = np.linspace(0, flat.size - 1, min(PLACES, flat.size)).astype(int)
    found = np.full(2 + PLACES, np.nan, np.float32)
    found[: 2 + len(places)] = [np.linalg.norm(change), np.abs(flat).max(), *flat[places]]
    return found


def samples_of(case: Path, run: Path) -> dict[str, np.ndarray]:
    """Samples of the first gradients and the final weights of a run that began with the case's weights."""
    initial, gradients, final = (
        np.load(file) for file in (case / "weights.npz", run / "grads_step1.npz", run / "weights_final.npz")
    )
    return {
        "gradient_names": np.array(sorted(gradients.files)),
        "gradients": np.array([sampled(gradients[name], gradients[name]) for name in sorted(gradients.files)]),
        "weight_names": np.array(sorted(final.files)),
        "weights": np.array([sampled(final[name], final[name] - initial[name]) for name in sorted(final.files)]),
    }


def check_samples(case: Path, run: Path, to_the_end: bool = True) -> None:
    """Check a run's samples against the case's, if it has some; those of the final weights only if the run went
    `to_the_end`."""
    if not (case / SAMPLES).exists():
        return
    theirs, ours = np.load(case / SAMPLES), samples_of(case, run)
    tiny = np.finfo(np.float32).tiny
    for kind, limit, limit_of_norms in (("gradient", GRADIENT, GRADIENT), ("weight", WEIGHT, 5 * WEIGHT)):
        assert theirs[f"{kind}_names"].tolist() == ours[f"{kind}_names"].tolist()
        if kind == "weight" and not to_the_end:
            continue
        expected = theirs[f"{kind}s"]
        errors, sizes = np.abs(ours[f"{kind}s"] - expected), np.maximum(expected[:, :2], tiny)
        relative_to = sizes[:, 1:] if kind == "gradient" else 1.0
        assert np.nanmax(errors[:, 2:] / relative_to) < limit, kind
        assert (errors[:, 0] / sizes[:, 0]).max() < limit_of_norms, kind
