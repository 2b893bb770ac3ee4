"""Options for results that cannot be right (not a number, spikes), and for slow ranks."""

from collections.abc import Iterator
from dataclasses import dataclass

from parallel_core.config.base import Config, option
from parallel_core.findings import Finding

REPORT, SKIP, ROLL_BACK = "report", "skip", "rollback"


@dataclass(kw_only=True)
class FaultConfig(Config):
    """Options of the search for results that cannot be right, and for slow ranks."""

    rerun_mode: str = option(
        "--rerun-mode", "validate_results", choices=("disabled", "validate_results", "report_stats")
    )
    """validate_results: a step whose loss or gradient is no number, or is a spike, is computed again, which tells
    hardware that failed once from what repeats, and names layer, operator, rank, micro-batch and documents.
    report_stats: every step is computed twice, and compared. disabled: neither."""
    check_for_spiky_loss: bool = option("--check-for-spiky-loss", False)
    """A loss ten times as high as any of the first 100 steps is a spike, as in Megatron."""
    check_for_large_grads: bool = option("--check-for-large-grads", False)
    """A gradient norm at least ten times the highest of the first 100 steps is a spike, as in Megatron: the step is
    computed again (--rerun-mode), then --loss-spike-action decides."""
    loss_spike_deviations: float | None = option("--loss-spike-deviations", None, above=0)
    """A loss so many standard deviations above the mean of the last 100 steps, 20 at least, is a spike."""
    loss_spike_action: str = option("--loss-spike-action", REPORT, choices=(REPORT, SKIP, ROLL_BACK))
    """report: a warning. skip: the spike's update is not made. rollback: besides, weights, optimizer and iteration go
    back to the last checkpoint of this run, and data go on behind the spike."""
    log_straggler: bool = option("--log-straggler", False)
    """Compare, at each log line, how long every rank computed in the parts of a step, and name those that are slow."""
    straggler_minmax_count: int = option("--straggler-minmax-count", 1, at_least=1)
    """Number of the fastest and of the slowest ranks that --log-straggler names."""

    @property
    def finds_spikes(self) -> bool:
        """Whether any option asks to look for spikes."""
        return self.check_for_spiky_loss or self.check_for_large_grads or self.loss_spike_deviations is not None

    @property
    def described(self) -> str:
        """The rules by which a step is a spike, separated by commas, for a line of the log; "" without any."""
        rules = {
            "a loss ten times as high as any of the first 100 steps": self.check_for_spiky_loss,
            "a gradient norm ten times as high as any of the first 100 steps": self.check_for_large_grads,
            f"a loss {self.loss_spike_deviations} deviations above the mean": self.loss_spike_deviations is not None,
        }
        return ", ".join(rule for rule, is_asked in rules.items() if is_asked)

    def rules(self) -> Iterator[Finding]:
        if self.loss_spike_action != REPORT and not self.finds_spikes:
            fix = "add --loss-spike-deviations 6, or --check-for-spiky-loss"
            yield self.breaks("loss_spike_action", "needs a rule that says which loss is a spike", fix)
