"""A kind of device as data: peaks, links, and the calibration that says how much of them a program reaches.

A device is a YAML file; those of `devices/` go by name. `like` names one of these, of which a file changes some keys.
Figures of `devices/` are published ones where there are such; `plan --calibrate` writes measured ones.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

from parallel_core.findings import ConfigError, Finding
from parallel_core.operations import ATTENTION, ATTENTION_GRADIENT
from parallel_core.system.files import read_yaml

FOLDER = Path(__file__).parent / "devices"
ENGINES = ("megatron", "pynative")


@dataclass(frozen=True)
class Link:
    """The connection of a device to others, inside of a node or between nodes: bytes a second, and seconds until the
    first byte of a message arrives."""

    bandwidth: float
    """Bytes a second that a device sends over it, before `Calibration`'s share."""
    latency: float
    """Seconds until the first byte of a message arrives."""


@dataclass(frozen=True)
class Ranges:
    """The relative errors of predicted memory and time within which measured ones are expected; assumed where no run
    was measured."""

    memory: float
    time: float


@dataclass(frozen=True)
class Calibration:
    """The fractions of peak FLOP/s and of bandwidths that programs reach on a kind of device; and seconds of a launch
    (`launch`; in a backward `launch_back`), the exponent by which bandwidth falls with the nodes (`congestion`), a
    rank's speed beside idle cores as a multiple of that beside busy ones (`alone`), seconds of experts' products as a
    multiple of a linear's (`grouped`), waits for slower ranks as parts of the seconds that a rank computes, at the end
    of a step (`uneven`) and in collectives within its passes (`meeting`), and the seconds that a pipeline's stage loses
    after waits (`waking`, `waking_most`). None: as `elementwise` (`update`), as `products` (`narrow_products`, those of
    8-bit inputs), as `launch` (`launch_back`)."""

    products: float
    """Share of the peak that is reached by a large product; small ones are slower because they move bytes and are
    launched."""
    attention: float
    """Share of the peak that is reached by fused attention, with half of its FLOPs counted, as of a causal mask."""
    elementwise: float
    """Share of the memory's bandwidth that is reached by elementwise operations; above 1 on a CPU whose caches are
    faster than a copy in memory."""
    inside_share: float
    """Share of the links' bandwidth that messages inside a node reach."""
    between_share: float
    """Share of the bandwidth between nodes that messages reach."""
    congestion: float
    """Exponent by which bandwidth between n nodes falls, as (n/2)^-congestion: switches are shared."""
    launch: float
    """Seconds in which the host starts one operation."""
    ranges: Ranges
    source: str
    """The runs or publications from which the figures are taken, in words."""
    update: float | None = None
    """Share of the memory's bandwidth that the optimizer's update reaches; None: as `elementwise`."""
    narrow_products: float | None = None
    """Share of the 8-bit peak that is reached by a large product with 8-bit inputs; None: as `products`."""
    launch_back: float | None = None
    """Seconds of a launch in a backward; None: as `launch`."""
    alone: float = 1.0
    """Speed of a rank that computes while all other cores of its node are idle, as a multiple of that beside busy
    ones."""
    grouped: float = 1.0
    """Seconds of experts' products, whose rows are uneven, as a multiple of those of a linear with as many tokens."""
    uneven: float = 0.0
    """Seconds that a rank waits at the end of a step for ranks that were slower in it, as a part of the seconds that it
    computes."""
    meeting: float = 0.0
    """The same for ranks that meet in collectives within their passes (tensor or expert parallelism), where each wait
    is for the slowest of the moment."""
    waking: float = 0.0
    """Seconds that a pipeline's stage which has waited for another loses after it, as a part of those that it waited:
    its core has slowed down, and its caches hold less. Only where each rank of a node has one of its `Device.cores`."""
    waking_most: float = 0.0
    """The most seconds that a stage loses after it has waited."""

    def launch_of(self, is_backward: bool) -> float:
        """Seconds in which the host starts one operation of a forward, or of a backward."""
        return self.launch if self.launch_back is None or not is_backward else self.launch_back


@dataclass(frozen=True)
class Device:
    """A kind of device, and of nodes with one or more of them: peaks in FLOP/s by type, bytes and bytes a second of its
    memory, links, and the calibration. reserved_bytes: of the memory those that the runtime keeps; engine: the program
    that is assumed to run there, "megatron" or "pynative"; fuses_attention: whether attention of "megatron" keeps no
    matrix of scores even without --use-flash-attn; assumed: keys of the calibration that nobody has measured; is_mesh:
    whether each two devices of a node have a link of their own; cores: cores of a node that ranks share, 0: each device
    has its own processor; messages, by_size: tables measured of messages by bytes, and of operations by tokens or
    bytes; launch_flops: FLOPs that a launch of a kind of work in `by_size` counts as; all three empty where nobody
    measured."""

    names: tuple[str, ...]
    memory_bytes: float
    reserved_bytes: float
    """Bytes of each device's memory that the runtime keeps for itself."""
    peak_flops: Mapping[str, float]
    """Type -> peak of floating-point operations a second, dense."""
    bandwidth: float
    """Bytes a second of the device's memory, before `Calibration`'s share."""
    devices_per_node: int
    inside: Link
    between: Link
    engine: str
    """The program that is assumed to run there: "megatron" or "pynative", which keep different activations and
    buffers."""
    fuses_attention: bool
    """Whether attention keeps no matrix of scores even without --use-flash-attn; read for the engine "megatron" (the
    other one never keeps it)."""
    calibration: Calibration
    assumed: tuple[str, ...] = ()
    """Keys of the calibration that nobody has measured."""
    is_mesh: bool = False
    """Whether each two devices of a node have a link of their own, which has an even part of the bandwidth inside;
    False: a switch gives all of it to any two."""
    cores: float = 0
    """Cores of a node, where a device is a rank's share of them: it starts operations itself, and more ranks than cores
    take turns. 0: each device has its own processor, and a host that starts its operations meanwhile."""
    messages: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    """Collective, such as all_reduce, or send -> (bytes that a device sends, seconds) in order of the bytes, as
    measured between two devices of a node; empty where nobody measured."""
    by_size: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    """For each of a linear's three products (operations.FORWARD, ...) -> (tokens, seconds of a FLOP as a multiple of
    one at the share `products`) in order of the tokens, as measured, with the traffic of its operands; for attention's
    forward and gradient the same by the tokens of a sequence. For elementwise operators and their gradients
    (operations.NORM, ...) -> (bytes, seconds of a byte as a multiple of one at the share `elementwise`). Empty: seconds
    follow from FLOPs and bytes."""
    launch_flops: Mapping[str, float] = field(default_factory=dict)
    """For attention's forward and gradient -> FLOPs that take as long as a launch does beside `Calibration.launch`,
    since a CPU's attention is made of several operators. Only for those that `by_size` has."""

    @property
    def name(self) -> str:
        """The first of the device's names."""
        return self.names[0]

    def peak(self, dtype: str) -> float:
        """FLOP/s of a type, or float32's if `peak_flops` has no figure for this one."""
        return self.peak_flops.get(dtype, self.peak_flops["float32"])


_NAMES = re.compile(r"^names: *\[(.*)\]$", re.MULTILINE)


@cache
def known_devices() -> dict[str, Path]:
    """Name in lower case -> file of `devices/`; the file's own name, without .yaml, is one, too."""
    listed = sorted(FOLDER.glob("*.yaml"))
    return {name.lower(): path for path in listed for name in (*_names(path), path.stem)}


def _names(path: Path) -> list[str]:
    """The names that a file of `devices/` gives its device."""
    found = _NAMES.search(path.read_text(encoding="utf-8"))
    return [name.strip() for name in found[1].split(",")] if found else []


def find_device(named: str) -> Device:
    """The device with a known name, in any case of letters, or of a file that ends with .yaml, .yml or .json. Raises
    ConfigError for an unknown name and for a file that cannot be read or is wrong."""
    path = Path(named)
    if path.suffix in (".yaml", ".yml", ".json"):
        return load_device(path)
    known = known_devices()
    if named.lower() not in known:
        choices = ", ".join(sorted(_names(path)[0] for path in {*known.values()}))
        raise ConfigError([Finding("--device", named, "is no known device", f"choose {choices}, or give a .yaml file")])
    return load_device(known[named.lower()])


def load_device(path: Path) -> Device:
    """The device that a file describes; a path that was read once is not read again in the process. Raises ConfigError
    with all findings about its keys and values, or with one that it cannot be read (as where it is missing, is no YAML
    or has an unknown `like`)."""
    try:
        content = _with_like(path)
    except (OSError, ValueError) as error:
        raise ConfigError([Finding("--device", path, f"cannot be read ({error})", "give a device file")]) from error
    findings = [*_faults(content, Device, "", str(path))]
    if findings:
        raise ConfigError(findings)
    parts = {"inside": Link(**content["inside"]), "between": Link(**content["between"])}
    calibration = dict(content["calibration"])
    calibration["ranges"] = Ranges(**calibration["ranges"])
    lists: dict[str, Any] = {"names": tuple(content["names"]), "assumed": tuple(content.get("assumed", ()))}
    for table in _TABLES:
        lists[table] = {
            name: tuple((float(size), float(seconds)) for size, seconds in points)
            for name, points in content.get(table, {}).items()
        }
    return Device(**{**content, **parts, **lists, "calibration": Calibration(**calibration)})


def device_file(device: Device) -> dict[str, Any]:
    """The content of a YAML file that describes the device, for `load_device`: keys -> values, without keys of the
    calibration that are None."""
    content = asdict(device)
    for name in _UNMEASURED:
        if content["calibration"][name] is None:
            del content["calibration"][name]
    content |= {"names": [*device.names], "assumed": [*device.assumed]}
    for table in _TABLES:
        content[table] = {name: [[*point] for point in points] for name, points in getattr(device, table).items()}
    return {**content, "launch_flops": dict(device.launch_flops), "peak_flops": dict(device.peak_flops)}


def _with_like(path: Path) -> dict[str, Any]:
    """A file's keys, added to those of the device that its key `like` names."""
    content = dict(_yaml(path))
    like = content.pop("like", None)
    if like is None:
        return content
    if str(like).lower() not in known_devices():
        raise ValueError(f"like {like}: no such device")
    base = _with_like(known_devices()[str(like).lower()])
    merged = {**base, **content}
    return merged | {
        key: {**base[key], **content[key]}
        for key in ("inside", "between", "calibration")
        if isinstance(content.get(key), dict) and isinstance(base.get(key), dict)
    }


@cache
def _yaml(path: Path) -> dict[str, Any]:
    try:
        content = read_yaml(path)
    except ValueError as error:
        raise ValueError(f"is no YAML: {error}") from error
    if not isinstance(content, dict):
        raise ValueError("is no table of keys")
    return content


_TABLES = {
    "messages": "bytes and seconds, in order of the bytes",
    "by_size": "sizes and multiples, in order of sizes",
}
"""Key of a table by operation -> its points, in words."""
_UNMEASURED = (
    *("update", "narrow_products", "alone", "grouped", "launch_back"),
    *("uneven", "meeting", "waking", "waking_most"),
)
_INNER: dict[str, Any] = {"inside": Link, "between": Link, "calibration": Calibration, "ranges": Ranges}
_OTHERS = {"names": list, "assumed": list, "peak_flops": dict, "engine": str, "source": str, "fuses_attention": bool}
_OTHERS |= {**dict.fromkeys(_TABLES, dict), "launch_flops": dict, "is_mesh": bool}
_OPTIONAL = ("assumed", *_TABLES, "launch_flops", "is_mesh", "cores", *_UNMEASURED)


def _faults(content: Any, kind: Any, prefix: str, source: str) -> Iterator[Finding]:
    """Findings about keys that are missing, unknown, or of another type than the dataclass `kind` says, in one table of
    a file; prefix: the path of the table in the file."""
    if not isinstance(content, dict):
        yield Finding(prefix.rstrip("."), content, "must be a table of keys", "write one", source)
        return
    known = [field.name for field in fields(kind)]
    for key in content:
        if key not in known:
            yield Finding(f"{prefix}{key}", None, "is no key of a device", f"use {', '.join(known)}", source)
    for key in known:
        value = content.get(key)
        if key not in content:
            if key not in _OPTIONAL:
                yield Finding(f"{prefix}{key}", None, "is missing", "add it", source)
        elif key in _INNER:
            yield from _faults(value, _INNER[key], f"{prefix}{key}.", source)
        elif key in _OTHERS:
            if not isinstance(value, _OTHERS[key]):
                yield Finding(f"{prefix}{key}", value, f"must be a {_OTHERS[key].__name__}", "change it", source)
        elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < inf:
            yield Finding(f"{prefix}{key}", value, "must be a number, at least 0 and finite", "change it", source)
    yield from _wrong_values(content, prefix, source)


def _wrong_values(content: dict[str, Any], prefix: str, source: str) -> Iterator[Finding]:
    if content.get("engine") not in (*ENGINES, None):
        yield Finding("engine", content["engine"], "is no engine", f"choose one of {', '.join(ENGINES)}", source)
    peaks = content.get("peak_flops")
    if isinstance(peaks, dict) and not (peaks.get("float32") and all(_is_positive(peak) for peak in peaks.values())):
        yield Finding("peak_flops", None, "must give numbers above 0, float32's among them", "change it", source)
    for key in ("bandwidth", "memory_bytes", "devices_per_node", *("products", "attention", "elementwise")):
        if key in content and not _is_positive(content[key]):
            yield Finding(f"{prefix}{key}", content[key], "must be above 0, and finite", "change it", source)
    flops, sizes = content.get("launch_flops"), content.get("by_size")
    for name, value in flops.items() if isinstance(flops, dict) else ():
        if not _is_positive(value) and (value != 0 or isinstance(value, bool)):
            rule = "must be a number, at least 0"
            yield Finding(f"launch_flops.{name}", value, rule, "measure it by plan --calibrate", source)
        if name not in (ATTENTION, ATTENTION_GRADIENT):
            rule = f"must be of {ATTENTION} or {ATTENTION_GRADIENT}"
            yield Finding(f"launch_flops.{name}", None, rule, "remove it", source)
        elif not isinstance(sizes, dict) or name not in sizes:
            yield Finding(f"launch_flops.{name}", value, f"needs by_size.{name}", "measure both", source)
    for table, words in _TABLES.items():
        entries = content.get(table)
        for name, points in entries.items() if isinstance(entries, dict) else ():
            if not _are_points(points):
                rule = f"must be pairs of {words}"
                yield Finding(f"{table}.{name}", None, rule, "measure it by plan --calibrate", source)
    if prefix == "" and not content.get("names"):
        yield Finding("names", None, "must have at least one name", "add one", source)


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < inf


def _are_points(points: Any) -> bool:
    if not isinstance(points, list) or not points or not all(isinstance(p, list) and len(p) == 2 for p in points):
        return False
    sizes = [size for size, _ in points]
    return all(map(_is_positive, [value for point in points for value in point])) and sizes == sorted({*sizes})
