"""`python -m mapping report`: a file, or a server on this host (--watch); refusals; and the page in a browser."""

import http.client
import json
import re
import shutil
import signal
import subprocess
import sys

import pytest

from mapping.report import __main__ as command
from mapping.report.serve import HOST
from tests.support.report import metrics, write_lines, write_run


def test_a_file_that_needs_nothing_else(tmp_path, capsys):
    """The page is written to the run's folder, or to --to, with the drawing library in it."""
    folder = write_run(tmp_path / "run")
    assert command.main([str(folder)]) == 0
    written = (folder / "report.html").read_text()
    assert command.library() in written and '"training_config.training_iters"' in written
    assert capsys.readouterr().out == f"{folder / 'report.html'}\n"
    assert command.main([str(folder), "--to", str(tmp_path / "page.html")]) == 0 and (tmp_path / "page.html").is_file()


def test_what_there_is_no_page_of(tmp_path, capsys):
    """A folder given twice, without figures, or missing is an error, all at once, and no page is written; an unreadable
    file is named."""
    run, empty = write_run(tmp_path / "run"), tmp_path / "empty"
    empty.mkdir()
    assert command.main([str(run), str(run), str(empty), str(tmp_path / "none")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [re.search("given twice|no figures|is no folder", line)[0] for line in lines] == [
        "given twice",
        "no figures",
        "is no folder",
    ]
    assert not (run / "report.html").exists()
    (tmp_path / "unreadable").mkdir()
    (tmp_path / "unreadable" / "metrics.jsonl").mkdir()
    assert command.main([str(tmp_path / "unreadable")]) == 2
    assert "metrics.jsonl: Is a directory" in capsys.readouterr().err


def test_a_missing_library_is_said_with_its_package(tmp_path, capsys, monkeypatch):
    """A missing plotly is an error of the command with the extra to install."""
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.delitem(sys.modules, "plotly.offline", raising=False)
    assert command.main([str(write_run(tmp_path / "run"))]) == 2
    assert "pip install plotly" in capsys.readouterr().err


def ask(port: int, path: str, **headers: str) -> tuple[int, bytes, str | None]:
    """(status, body, ETag) of a GET request to the server."""
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read(), answer.headers["ETag"]


@pytest.mark.slow
def test_watching(tmp_path):
    """--watch serves the page before the first step, new figures as they come, 304 for unchanged data, 403 to another
    host's page, 404 for other files; Ctrl-C ends it with 0."""
    words = [sys.executable, "-m", "mapping", "report", str(tmp_path), "--watch", "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            port = int(re.match(rf"http://{re.escape(HOST)}:(\d+)/", server.stdout.readline())[1])
            status, page, _ = ask(port, "/")
            assert status == 200 and b'data-watched="true"' in page
            _, _, version = ask(port, "/data.json")
            assert ask(port, "/data.json", **{"If-None-Match": version})[0] == 304
            write_lines(tmp_path / "metrics.jsonl", metrics(3))
            status, data, later = ask(port, "/data.json", **{"If-None-Match": version})
            assert status == 200 and later != version
            assert json.loads(data)["sections"][1]["plots"][0]["series"][0]["x"]["step"] == [1, 2, 3]
            assert ask(port, "/data.json", Host=f"elsewhere.example:{port}")[0] == 403
            assert ask(port, "/metrics.jsonl")[0] == 404
            server.send_signal(signal.SIGINT)
            assert server.wait(20) == 0 and server.stderr.read() == ""
        finally:
            server.kill()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no Chromium")
def test_a_browser_draws_it(tmp_path):
    """Chromium draws the first curves and all tables without a script error; hostile names are text; previews of curves
    are there before the library runs and gone after it."""
    folder, page = write_run(tmp_path / "<img src=x onerror=alert(1)>"), tmp_path / "page.html"
    assert command.main([str(folder), "--to", str(page)]) == 0
    counting = 'document.body.dataset.early = document.querySelectorAll(".preview path[d^=M]").length;\n'
    page.write_text(page.read_text().replace("<script>/**\n* plotly", f"<script>{counting}/**\n* plotly"))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--window-size=1200,9000"]
    flags += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=20000", "--dump-dom"]
    words = ["chromium", *flags, page.as_uri()]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr, done.stderr
    drawn = re.findall(r'data-plot="([^"]+)"[^>]*data-drawn="(\d+)"', done.stdout)
    assert ("learning-0", "4") in drawn and len(drawn) == done.stdout.count("data-plot=")
    assert int(re.search(r'data-early="(\d+)"', done.stdout)[1]) >= len(drawn) - 2
    assert not re.search(r'data-drawn="\d+"[^>]*><svg class="preview"', done.stdout)
    assert "<img src=x" not in done.stdout and "&lt;img src=x" in done.stdout
