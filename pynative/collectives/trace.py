"""How often, how much and how long: a count per group and operation, cheap enough to be always on."""

from dataclasses import dataclass

from parallel_core.messages import BYTES_SENT as TRAFFIC

__all__ = ["TRAFFIC", "Count", "Trace"]


@dataclass
class Count:
    """Calls, bytes this rank sent (`TRAFFIC`) and seconds inside our calls, waiting included."""

    calls: int = 0
    bytes: int = 0
    seconds: float = 0.0


class Trace:
    """Counts of one rank by (group name, operation)."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], Count] = {}

    def of(self, group: str, operation: str) -> Count:
        """The count of one operation of one group, made when first asked for."""
        key = (group, operation)
        if key not in self.counts:
            self.counts[key] = Count()
        return self.counts[key]

    def total(self) -> Count:
        """The sum over groups and operations."""
        counts = self.counts.values()
        return Count(sum(c.calls for c in counts), sum(c.bytes for c in counts), sum(c.seconds for c in counts))

    def reset(self) -> None:
        """Forget everything."""
        self.counts.clear()

    def __str__(self) -> str:
        rows = [f"{'group':24} {'operation':16} {'calls':>8} {'MB sent':>10} {'ms':>10}"]
        for (group, operation), c in sorted(self.counts.items()):
            rows.append(f"{group:24} {operation:16} {c.calls:8} {c.bytes / 1e6:10.2f} {c.seconds * 1e3:10.2f}")
        return "\n".join(rows)
