"""Config fields of pipelines that follow from several arguments: the schedule, and the layers of the stages.
`mapping.derive.fields` says how such functions read arguments."""

from collections.abc import Callable
from typing import Any

from mapping.flags.notations import layer_list, layers_of_stages, pipeline_layout
from parallel_core.config.base import Unknown
from parallel_core.schedules.generators import FOLDED


def pipeline_schedule(args: Any) -> str | None:
    """Name of the schedule: --pipeline-schedule, else MindSpeed's --schedules-method, else Zero Bubble's flags; None:
    none is given."""
    named = args.pipeline_schedule or args.schedules_method
    if named is None and args.zero_bubble_v_schedule:
        return {"half": "v-half", "min": "v-min"}.get(args.zero_bubble_v_schedule_mem_setup, "zb-v")
    if named is None and args.enable_zero_bubble:
        is_twice = args.zero_bubble_max_pending_backward == str(2 * (args.pipeline_model_parallel_size or 1))
        return "zb-2p" if is_twice else "zb-1p"
    return named


def num_layer_list(args: Any) -> Any:
    """The list of numbers of layers: from a layout (`layers_of_stages`), else as given; None: not given; Unknown: a
    layout that cannot be read, or whose number of virtual stages is no multiple of the pipeline size."""
    layout, size = args.pipeline_model_parallel_layout, args.pipeline_model_parallel_size or 1
    if layout is None:
        given = args.pipeline_num_transformer_layers if args.num_layer_list is None else args.num_layer_list
        return layer_list(given) if isinstance(given, str) else given
    try:
        stages = pipeline_layout(layout)
    except ValueError:
        return Unknown()
    if size < 1 or len(stages) % size:
        return Unknown()
    return layers_of_stages(stages, size, folded=pipeline_schedule(args) in FOLDED)


OF_PIPELINES: dict[str, Callable[[Any], Any]] = {
    "pipeline_schedule": pipeline_schedule,
    "num_layer_list": num_layer_list,
}
"""Name of a field -> the function that derives it from the arguments."""
