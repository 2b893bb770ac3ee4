"""Rules between sections: functions of the `Sections` that yield findings."""

from parallel_core.config.rules import layout, model, moe, optimizer, pipeline, recompute, training

RULES = (*model.RULES, *pipeline.RULES, *layout.RULES, *moe.RULES, *recompute.RULES, *training.RULES, *optimizer.RULES)
"""All of them. A rule that reads a value already known to be wrong is passed over."""
