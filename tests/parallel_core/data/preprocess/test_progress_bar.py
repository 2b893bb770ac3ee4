"""The progress line of preprocessing, on a terminal and in a file."""

import io

from parallel_core.data.preprocess.progress_bar import ProgressBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_rates_share_and_remaining_time_are_those_of_this_run():
    """A resumed run's line has the share of all bytes, but documents/s, MB/s and the time left by what this run has
    done."""
    clock = Clock()
    bar = ProgressBar(100_000_000, io.StringIO(), documents=1000, bytes_read=20_000_000, clock=clock)
    clock.now = 10
    assert bar.line(3000, 50_000_000) == " 50% 3000 documents 200/s 3.0 MB/s 0:00:17 left"


def test_a_file_gets_a_line_every_ten_seconds_and_no_control_characters():
    """Progress written to a file is a plain line every ten seconds."""
    clock, stream = Clock(), io.StringIO()
    bar = ProgressBar(100, stream, clock=clock)
    for clock.now in range(1, 26):
        bar.show(int(clock.now), int(clock.now))
    bar.close()
    assert [line.split()[0] for line in stream.getvalue().splitlines()] == ["10%", "20%"]
    assert "\x1b" not in stream.getvalue() and "\r" not in stream.getvalue()


def test_a_terminal_gets_one_line_below_80_columns_that_is_cleared_in_the_end():
    """Progress on a terminal is one line, drawn anew at most every 0.2 s, shorter than 80 columns and cleared at the
    end."""
    clock, stream = Clock(), Terminal()
    bar = ProgressBar(10**15, stream, clock=clock)
    for clock.now, documents in ((1.0, 1), (1.05, 2), (1000.0, 10**15)):
        bar.show(documents, documents)
    bar.close()
    first, last, end = stream.getvalue().split("\r\x1b[K")[1:]
    assert len(first) < 80 and len(last) < 80 and end == ""
    assert "[..." in first and "1 documents 1/s" in first and "100%" in last
