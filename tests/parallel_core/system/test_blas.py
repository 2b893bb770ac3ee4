"""The decision which kernels OpenBLAS should use (`decide`), by the CPU's flags and the library's own choice."""

import pytest

from parallel_core.system.blas import LEVELS, Decision, cpu_flags, decide, multiplies_bfloat16, usable_cores

SSE = frozenset(["fpu", "sse", "sse2", "pni", "ssse3", "sse4_1", "sse4_2"])
AVX = SSE | {"avx"}
AVX2 = AVX | {"avx2", "fma", "bmi2"}
AVX512 = AVX2 | {"avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl"}
SAPPHIRE_RAPIDS = AVX512 | {"avx512_bf16", "amx_tile", "amx_bf16", "avx512_fp16"}  # and Intel model 207
XEON_PHI = AVX2 | {"avx512f", "avx512cd", "avx512er", "avx512pf"}
ARM = frozenset(["fp", "asimd", "evtstrm", "aes", "crc32", "atomics", "fphp", "asimdhp", "asimddp", "sve", "bf16"])


@pytest.mark.parametrize(
    ("flags", "chosen", "core"),
    [
        (SAPPHIRE_RAPIDS, "Prescott", "SkylakeX"),  # OpenBLAS 0.3.23 on Intel model 207
        (AVX512, "Haswell", "SkylakeX"),
        (AVX512, "Zen", "SkylakeX"),  # Zen 4 and 5 under a library that knows only Zen
        (AVX2, "Prescott", "Haswell"),  # an AMD or Intel CPU newer than the library, without 512-bit vectors
        (AVX2, "Nehalem", "Haswell"),
        (XEON_PHI, "Sandybridge", "Haswell"),  # its avx512 is another subset
        (AVX, "CORE2", "Sandybridge"),  # libraries write names in different cases
    ],
)
def test_a_slow_choice_is_replaced(flags, chosen, core):
    """A library's choice that is slower than the CPU allows, as an older library makes for a newer CPU, is replaced by
    the best core, with the factor."""
    decision = decide("x86_64", flags, chosen)
    assert (decision.status, decision.core) == ("slow", core) and decision.times_slower > 1.1


@pytest.mark.parametrize(
    ("flags", "chosen"),
    [
        (SAPPHIRE_RAPIDS, "SapphireRapids"),
        (SAPPHIRE_RAPIDS, "Cooperlake"),
        (AVX512, "SKYLAKEX"),
        (AVX2, "Zen"),
        (AVX2, "Haswell"),
        (AVX, "Sandybridge"),
        (SSE, "Prescott"),
        (SSE, "Haswell"),  # an emulator that hides flags
    ],
)
def test_a_good_choice_stays(flags, chosen):
    """A choice that uses the CPU's vectors is "fine"."""
    assert decide("x86_64", flags, chosen) == Decision("fine")


@pytest.mark.parametrize(
    ("architecture", "flags", "chosen"),
    [
        ("aarch64", ARM, "armv8"),
        ("aarch64", ARM, "neoversen1"),
        ("arm64", frozenset(), "armv8"),  # macOS: no /proc
        ("x86_64", frozenset(), "Prescott"),
        ("x86_64", AVX512, "DiamondRapids"),  # a library newer than this table
        ("x86_64", AVX512, ""),  # a library that does not say
        ("ppc64le", frozenset({"altivec"}), "POWER9"),
    ],
)
def test_what_is_not_known_is_left_alone(architecture, flags, chosen):
    """Another architecture, a CPU without known flags, and a library whose choice is unknown or newer than the table
    are "unknown": nothing is changed."""
    assert decide(architecture, flags, chosen) == Decision("unknown")


def test_the_measured_intel_loses_five_times():
    """The factor printed for Intel model 207 with Prescott kernels is between 4 and 6: 37 of 189 GFLOP/s a core were
    measured."""
    assert 4 < decide("x86_64", SAPPHIRE_RAPIDS, "Prescott").times_slower < 6


def test_levels_go_from_fast_to_slow_and_name_a_core_once():
    """The table of kernels is ordered from fast to slow, names a core once, and its last level needs no flag."""
    rates = [level.gflops for level in LEVELS]
    cores = [core.lower() for level in LEVELS for core in level.cores]
    assert rates == sorted(rates, reverse=True) and len(cores) == len(set(cores))
    assert not LEVELS[-1].flags, "every x86-64 CPU has a level"


def test_usable_cores():
    """`usable_cores` lists the kernels that a CPU's flags allow, fastest first; none for other architectures or without
    flags."""
    assert usable_cores("AMD64", AVX512) == ["SkylakeX", "Haswell", "Sandybridge", "Prescott"]
    assert usable_cores("x86_64", SSE) == ["Prescott"]
    assert usable_cores("aarch64", ARM) == usable_cores("x86_64", frozenset()) == []


def test_flags_are_read_from_linux_on_both_architectures(tmp_path):
    """`cpu_flags` reads /proc/cpuinfo's `flags` (x86) or `Features` (Arm) of the first processor; an absent file gives
    none."""
    x86, arm, absent = tmp_path / "x86", tmp_path / "arm", tmp_path / "absent"
    x86.write_text("processor\t: 0\nflags\t\t: fpu avx2 fma\nvmx flags\t: vnmi\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    arm.write_text("processor\t: 0\nFeatures\t: fp asimd\nCPU part\t: 0xd01\n")
    assert cpu_flags(x86) == {"fpu", "avx2", "fma"}
    assert cpu_flags(arm) == {"fp", "asimd"}
    assert cpu_flags(absent) == frozenset()


@pytest.mark.parametrize(
    ("flags", "multiplies"),
    [
        ({"avx2", "avx512f", "avx512_bf16"}, True),
        ({"avx512f", "amx_bf16", "amx_tile"}, True),
        ({"avx512f", "avx512_vnni"}, False),
        ({"avx2"}, False),
        (set(), False),
    ],
)
def test_bfloat16_is_multiplied_where_the_cpu_does(flags, multiplies):
    """`multiplies_bfloat16` is true for CPUs with instructions for it (AVX512-BF16, AMX); elsewhere operands are
    widened, since emulation is slower."""
    assert multiplies_bfloat16(flags) is multiplies
