"""The choice of OpenBLAS's kernels on a CPU: a decision from the CPU's flags and from what the library chose.

An OpenBLAS that is built for several CPUs selects its kernels when it is loaded, and may take slow ones on a CPU newer
than itself: OpenBLAS 0.3.23 in numpy 1.26 takes Prescott's on Intel model 207, 37 GFLOP/s a core in float32 where
SkylakeX's reach 189.
"""

from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Level:
    """A level of vector instructions: the flags that say a CPU has it, cores of OpenBLAS whose kernels use it, and
    the GFLOP/s that they reach in float32 on one core of a CPU."""

    flags: frozenset[str]
    cores: tuple[str, ...]
    gflops: float
    """GFLOP/s of a float32 matrix product on one core of a CPU that has all levels (AMD EPYC, family 26), OpenBLAS
    0.3.23."""


LEVELS = (
    Level(
        frozenset({"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512cd"}),
        ("SkylakeX", "Cooperlake", "SapphireRapids"),
        190,
    ),
    Level(frozenset({"avx2", "fma"}), ("Haswell", "Zen", "Excavator"), 97),
    Level(frozenset({"avx"}), ("Sandybridge", "Bulldozer", "Piledriver", "Steamroller"), 84),
    Level(
        frozenset(),
        ("Prescott", "Core2", "Penryn", "Dunnington", "Nehalem", "Athlon", "Opteron", "Opteron_SSE3", "Barcelona",
         "Bobcat", "Atom", "Nano", "Katmai", "Coppermine", "Northwood", "Banias"),
        39,
    ),
)  # fmt: skip
"""The levels of x86-64, the fastest first; the first core of each is in every OpenBLAS that knows the level."""


@dataclass(frozen=True)
class Decision:
    """Whether a choice of kernels is "fine", "slow" or cannot be judged; if it is slow, the core to select, and about
    how many times slower than that core's kernels the chosen ones are."""

    status: Literal["fine", "slow", "unknown"]
    core: str | None = None
    times_slower: float = 1.0


def decide(architecture: str, flags: Set[str], chosen: str) -> Decision:
    """Judge the core that OpenBLAS chose: "slow" if the CPU has a faster one of `LEVELS` than that core's, else "fine".

    architecture: as `platform.machine()` gives it; for another than x86-64 the decision is "unknown".
    flags: the CPU's, as in /proc/cpuinfo; without any (no such file) the decision is "unknown".
    chosen: the core's name as `openblas_get_corename` gives it; for a name that `LEVELS` lacks, such as that of a newer
    core, the decision is "unknown".
    """
    levels = [level for level in LEVELS if chosen.lower() in {core.lower() for core in level.cores}]
    if architecture.lower() not in ("x86_64", "amd64") or not flags or not levels:
        return Decision("unknown")
    best = next(level for level in LEVELS if level.flags <= flags)
    if best.gflops <= levels[0].gflops:
        return Decision("fine")
    return Decision("slow", best.cores[0], best.gflops / levels[0].gflops)


def usable_cores(architecture: str, flags: Set[str]) -> list[str]:
    """A core of OpenBLAS for each level that the CPU has, the fastest first; empty for other architectures than x86-64,
    and without flags."""
    if architecture.lower() not in ("x86_64", "amd64") or not flags:
        return []
    return [level.cores[0] for level in LEVELS if level.flags <= flags]


def cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The flags in the first line "flags: ..." or "Features: ..." of the file `cpuinfo`, that of one CPU; empty if
    there is no such line or the file cannot be read."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    names = ("flags", "Features")  # the word on x86 and the one on Arm
    listed = next((line.partition(":")[2] for line in lines if line.partition(":")[0].strip() in names), "")
    return frozenset(listed.split())


def multiplies_bfloat16(flags: Set[str]) -> bool:
    """Whether an x86-64 CPU with these flags multiplies bfloat16 numbers: it has avx512_bf16 or amx_bf16.

    Measured on one that does not (AVX-512, 2048 x 512 x 2048): oneDNN's products of bfloat16 take 2.5 times as long as
    those of float32; with operands that are widened first, 7% longer than those of float32.
    """
    return bool({"avx512_bf16", "amx_bf16"} & set(flags))
