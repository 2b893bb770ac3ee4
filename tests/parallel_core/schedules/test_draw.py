"""Pictures of schedules: text, SVG and PNG, the command `plan schedule`, and the page docs/schedules.md."""

import builtins
import re
import xml.etree.ElementTree as ElementTree
from fractions import Fraction

import pytest

from parallel_core.schedules import Placement, draw, interleaved, one_f_one_b, zb_h1
from parallel_core.schedules.automatic import warm_up
from parallel_core.schedules.command import main
from parallel_core.schedules.simulate import Times, simulate
from tests.support.assets import ROOT

DOCS = ROOT / "docs"
PAGE = (DOCS / "schedules.md").read_text()
EXAMPLES = re.findall(r"```\n\$ python -m mapping plan schedule (.*?) --svg (\S+)\n(.*?)```", PAGE, re.S)


def test_text_by_hand():
    """The text picture of 1F1B has a row for each stage and a column for each tick of time."""
    assert draw.text(simulate(one_f_one_b(2, 2))) == (
        "stage 0  F0 F1 .  .  B0--- .  B1---\nstage 1  .  F0 B0--- F1 B1--- .  .\n"
    )


def test_a_tick_divides_every_time():
    """A tick is the largest time that divides all: with forward 1/2 and backward 3/4 they are two and three columns."""
    assert draw.text(simulate(one_f_one_b(1, 1), Times(Fraction(1, 2), Fraction(3, 4)))) == "stage 0  F0--- B0------\n"


def test_chunks_are_named():
    """An action's name has its chunk with virtual stages: F1.1."""
    assert "F1.1" in draw.text(simulate(interleaved(2, 2, 2), placement=Placement(2, 2)))


def test_svg_has_a_box_for_each_computation():
    """The SVG is well-formed, has a box for each computation inside its frame, and a legend of the kinds that occur."""
    root = ElementTree.fromstring(draw.svg(simulate(zb_h1(3, 4)), "a title & <b>"))
    space = "{http://www.w3.org/2000/svg}"
    boxes = root.findall(f"{space}g")
    assert len(boxes) == 3 * 4 * 3
    for box in boxes:
        rectangle = box.find(f"{space}rect").attrib
        assert float(rectangle["x"]) + float(rectangle["width"]) <= float(root.attrib["width"])
        assert float(rectangle["y"]) + float(rectangle["height"]) <= float(root.attrib["height"])
    texts = [text.text for text in root.findall(f"{space}text")]
    assert "a title & <b>" in texts and "gradients of weights" in texts


class Alone:
    """Times of a pipeline whose first stage has the embedding alone, which takes none."""

    transfer = 0

    def of(self, action, stage, chunks, split):
        """1 for each computation of the other stages."""
        return int(stage > 0)

    def saved(self, pair, stage, chunks):
        """No pairs."""
        return 0


def test_computations_of_no_time_are_drawn():
    """Computations that take no time have no column of the text and a box of no width; the others are drawn by the
    shortest that takes time, and stages without time run as many forwards ahead as they may."""
    times = Alone()
    timeline = simulate(zb_h1(3, 2), times)
    assert draw.text(timeline).splitlines()[0].replace(".", "").strip() == "stage 0"
    root = ElementTree.fromstring(draw.svg(timeline, "t"))
    boxes = [box.find("{http://www.w3.org/2000/svg}rect").attrib for box in root.iter("{http://www.w3.org/2000/svg}g")]
    assert sorted({float(box["width"]) for box in boxes}) == [0, draw.BOX]
    assert warm_up(3, 5, times) == [5, 3, 1]


@pytest.mark.parametrize(("arguments", "file", "printed"), EXAMPLES, ids=[example[1] for example in EXAMPLES])
def test_the_page_shows_what_the_command_makes(arguments, file, printed, capsys, tmp_path):
    """Each example of docs/schedules.md is what its command prints, and its picture's file what --svg writes."""
    picture = tmp_path / "picture.svg"
    main([*arguments.split(), "--svg", str(picture)])
    assert capsys.readouterr().out == printed
    assert picture.read_text() == (DOCS.parent / file).read_text()


def test_the_page_shows_every_schedule():
    """The page has an example of each schedule, in order."""
    assert [re.search(r"--schedule (\S+)", example[0])[1] for example in EXAMPLES] == [
        "gpipe",
        "1f1b",
        "interleaved",
        "zb-h1",
        "zb-h2",
        "zb-1p",
        "zb-2p",
        "zb-v",
        "v-half",
        "v-min",
        "combined-1f1b",
        "dualpipev",
    ]


SIZES = ["--stages", "2", "--micro-batches", "4"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--schedule", "1f1b", "--stages", "0", "--micro-batches", "4"], "--stages 0: must be at least 1"),
        (["--schedule", "1f1b", *SIZES, "--forward", "0"], "--forward 0: must be above 0"),
        (["--schedule", "1f1b", *SIZES, "--forward", "x"], "--forward: invalid duration value: 'x'"),
        (["--schedule", "1f1b", *SIZES, "--forward", "1/0"], "--forward: invalid duration value: '1/0'"),
        (["--schedule", "1f1b", *SIZES, "--transfer", "-1"], "--transfer -1: must be at least 0"),
        (["--schedule", "zb-h1", *SIZES, "--weight", "2"], "--weight 2: is a part of --backward 2"),
        (["--schedule", "zb-h1", *SIZES, "--chunks", "2"], "--chunks 2: needs the interleaved schedule"),
        (["--schedule", "interleaved", *SIZES], "--schedule interleaved: needs 2 or more virtual stages"),
        (["--schedule", "interleaved", "--stages", "3", "--micro-batches", "4", "--chunks", "2"], "--micro-batches 4"),
        (["--schedule", "interleaved", *SIZES, "--chunks", "2", "--group-size", "3"], "--group-size 3: leaves"),
        (["--schedule", "1f1b", *SIZES, "--group-size", "2"], "--group-size 2: needs virtual stages"),
        (["--schedule", "1f1b", *SIZES, "--svg", "/no/such/folder/file.svg"], "/no/such/folder/file.svg"),
        (["--schedule", "dualpipe", *SIZES], "--schedule"),
        (
            ["--schedule", "dualpipev", "--stages", "3", "--micro-batches", "4"],
            "--micro-batches 4: must be at least 5 with --schedule dualpipev and --stages 3",
        ),
    ],
)
def test_bad_arguments_are_refused(arguments, message, capsys):
    """A wrong size or time is an error with flag, value and rule, exit code 2."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_a_picture_too_wide_for_a_terminal_is_left_to_svg(capsys):
    """A text picture that is too wide is replaced by the advice to write an --svg; the bubble is printed all the
    same."""
    main(["--schedule", "1f1b", "--stages", "2", "--micro-batches", "200"])
    printed = capsys.readouterr().out
    assert "write an --svg" in printed and "bubble 3, 0.5 %" in printed


def test_a_picture_too_wide_is_not_even_drawn(capsys):
    """Times whose common tick makes rows of gigabytes are not drawn; the line says how many columns it would be."""
    main(["--schedule", "1f1b", *SIZES, "--forward", "1000000000", "--backward", "2000000001"])
    assert "a picture of 45000000015 columns is not printed" in capsys.readouterr().out


def test_png(tmp_path):
    """--png writes a PNG with matplotlib, which the extras `plot` and `test` install."""
    picture = tmp_path / "picture.png"
    main(["--schedule", "zb-h1", *SIZES, "--png", str(picture)])
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_png_without_matplotlib_says_what_to_do(monkeypatch, capsys, tmp_path):
    """--png without matplotlib is an error with the pip command."""
    real_import = builtins.__import__

    def without_matplotlib(name, *rest):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_matplotlib)
    with pytest.raises(SystemExit):
        main(["--schedule", "zb-h1", *SIZES, "--png", str(tmp_path / "picture.png")])
    assert "pip install matplotlib" in capsys.readouterr().err


def test_sizes_may_be_given_by_megatrons_names(capsys):
    """Sizes may be given under the names of a training script's flags, with the same picture."""
    short = "--schedule interleaved --stages 2 --micro-batches 4 --chunks 2 --group-size 2"
    long = (
        "--pipeline-schedule interleaved --pipeline-model-parallel-size 2 --micro-batch-num 4 "
        "--virtual-pipeline-model-parallel-size 2 --microbatch-group-size-per-virtual-pipeline-stage 2"
    )
    pictures = []
    for line in (short, long):
        main(line.split())
        pictures.append(capsys.readouterr().out)
    assert pictures[0] == pictures[1] != ""
