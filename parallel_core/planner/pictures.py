"""Pictures of a plan as SVG: the memory of stages over a step, and the ranks on the nodes."""

from collections.abc import Iterator, Sequence
from html import escape

from parallel_core.planner.engine import engine_of
from parallel_core.planner.memory import course
from parallel_core.planner.plan import Plan

GIBIBYTE = 2**30
COLOURS = ("#3b6ea8", "#3f8f5b", "#b5762a", "#8a4f9e", "#a8443b", "#4c8f96", "#7d7d2f", "#5b5b5b")
LEFT, TOP, WIDTH, HEIGHT = 70, 50, 900, 300
MOST_STAGES, MOST_NODES = 4, 64
CELL = 54


def memory_svg(plan: Plan) -> str:
    """An SVG document of the bytes over a step, without reserved ones, on a rank of the first, the last and the fullest
    stages, at most four in all, with a line at the device's memory. The time axis ends with the drawn micro-batches,
    which may be fewer than the step's."""
    stages = _stages_to_draw(plan)
    courses = [[*_steps(plan, stage)] for stage in stages]
    most = max(plan.device.memory_bytes, *(size for one in courses for _, _, size in one))
    length = float(plan.step.timeline.length) or 1.0
    lines = [*_head(LEFT + WIDTH + 160, TOP + HEIGHT + 50, f"memory of a rank on {plan.device.name}, GiB")]
    for part in range(5):
        y, size = TOP + HEIGHT * (1 - part / 4), most * part / 4
        lines.append(f'<line x1="{LEFT}" y1="{y:g}" x2="{LEFT + WIDTH}" y2="{y:g}" stroke="#dddddd"/>')
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4:g}" text-anchor="end">{size / GIBIBYTE:,.1f}</text>')
    limit = TOP + HEIGHT * (1 - plan.device.memory_bytes / most)
    lines.append(f'<line x1="{LEFT}" y1="{limit:g}" x2="{LEFT + WIDTH}" y2="{limit:g}" stroke="#c0392b"/>')
    for number, (stage, steps) in enumerate(zip(stages, courses, strict=True)):
        colour, y = COLOURS[number], TOP + 18 * number
        points = " ".join(
            f"{LEFT + WIDTH * time / length:.1f},{TOP + HEIGHT * (1 - size / most):.1f}"
            for start, stop, size in steps
            for time in (start, stop)
        )
        lines.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{points}"/>')
        peak = max(size for _, _, size in steps) / GIBIBYTE
        lines.append(
            f'<text x="{LEFT + WIDTH + 10}" y="{y + 12}" fill="{colour}">stage {stage}: {peak:,.1f} GiB</text>'
        )
    lines.append(f'<text x="{LEFT}" y="{TOP + HEIGHT + 20}">0</text>')
    lines.append(f'<text x="{LEFT + WIDTH}" y="{TOP + HEIGHT + 20}" text-anchor="end">{length:.4g} s</text>')
    return _document(lines)


def _stages_to_draw(plan: Plan) -> list[int]:
    """At most MOST_STAGES stages, rising: the first and the last, then those that need most memory."""
    by_need = sorted(range(len(plan.memory)), key=lambda stage: -plan.memory[stage].needed)
    return sorted([*dict.fromkeys([0, len(plan.memory) - 1, *by_need])][:MOST_STAGES])


def _steps(plan: Plan, stage: int) -> Iterator[tuple[float, float, float]]:
    """(start in seconds, end, bytes in use on a rank) of each of a stage's drawn computations."""
    times = {span.action: (float(span.start), float(span.stop)) for span in plan.step.timeline.spans[stage]}
    needed = [*course(plan.stages[stage], engine_of(plan.device, plan.config))]
    fixed = plan.memory[stage].total - max(one.total for one in needed)
    for one in needed:
        if one.moment.action in times:
            yield *times[one.moment.action], fixed + one.total


def ranks_svg(plan: Plan) -> str:
    """An SVG document of nodes with their devices: each rank's number, its pipeline stage as colour (of eight, in
    turn), and its place in its groups of several ranks (tp, cp, dp, ep, pp; at most four are written in the box, all
    are in its tooltip). Nodes beyond the first 64 are counted, not drawn."""
    topology, per_node = plan.placement.topology, plan.device.devices_per_node
    world, dense, expert = topology.world_size, topology.dense, topology.expert
    grids = {axis: expert if axis == "ep" else dense for axis in AXES}
    grids = {axis: grid for axis, grid in grids.items() if grid.sizes[axis] > 1}
    nodes, per_row = -(-world // per_node), min(per_node, 8)
    drawn = min(nodes, MOST_NODES)
    rows = -(-min(per_node, world) // per_row)
    across = max(1, min(drawn, 4))
    node_width, node_height = per_row * CELL + 20, rows * CELL + 30
    left = f", {nodes - drawn} more nodes are not drawn" if nodes > drawn else ""
    title = f"{world} ranks on {nodes} nodes of {per_node}{left}; colours are pipeline stages"
    lines = [*_head(20 + across * node_width, TOP + -(-drawn // across) * node_height, title)]
    for node in range(drawn):
        x, y = 20 + node % across * node_width, TOP + node // across * node_height
        lines.append(f'<text x="{x}" y="{y + 12}">node {node}</text>')
        for place, rank in enumerate(range(node * per_node, min(world, (node + 1) * per_node))):
            words = {axis: grid.coordinate(axis, rank) for axis, grid in grids.items()}
            cell = x + place % per_row * CELL, y + 18 + place // per_row * CELL
            lines += _cell(*cell, rank, words)
    return _document(lines)


AXES = ("tp", "cp", "dp", "ep", "pp")


def _cell(x: int, y: int, rank: int, words: dict[str, int]) -> Iterator[str]:
    colour = COLOURS[words.get("pp", 0) % len(COLOURS)]
    told = ", ".join(f"{axis} {own}" for axis, own in words.items())
    yield f"<g><title>rank {rank}: {told}</title>"
    size = f'width="{CELL - 4}" height="{CELL - 4}"'
    yield f'<rect x="{x}" y="{y}" {size} fill="{colour}" fill-opacity="0.25" stroke="{colour}"/>'
    yield f'<text x="{x + 4}" y="{y + 13}">{rank}</text>'
    for line, (axis, own) in enumerate([*words.items()][:4]):
        yield f'<text x="{x + 4}" y="{y + 23 + 8 * line}" font-size="8">{axis} {own}</text>'
    yield "</g>"


def _head(width: float, height: float, title: str) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" font-family="sans-serif" '
        'font-size="12">'
    )
    yield '<rect width="100%" height="100%" fill="white"/>'
    yield f'<text x="20" y="24" font-size="14">{escape(title)}</text>'


def _document(lines: Sequence[str]) -> str:
    return "\n".join([*lines, "</svg>", ""])
