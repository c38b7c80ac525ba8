"""The page of a run that goes on: it follows the log, is made again now and then, and is served to this computer alone."""

from __future__ import annotations

import http.client
import itertools
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulator.npu.errors import BadInputError
from tests.html_page import Page, assert_navigation_names_headings, assert_offline
from tests.tuning import quick, save_small
from tuner.cli import main
from tuner.platform.local_files import LocalPath
from tuner.platform.real import REAL
from tuner.report import served_page
from tuner.report.html import cell_text
from tuner.report.live_page import live_page
from tuner.report.served_page import LOOPBACK, ServedPage
from tuner.report.standing_rows import progress_rows
from tuner.runs.farm_progress import read_farm_progress
from tuner.runs.list_runs import baseline_of, open_run
from tuner.runs.progress import read_progress


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watched")
    quick(save_small("conv_chain", folder), folder / "RUN", 24)
    return folder / "RUN"


def test_page_follows_the_log_until_the_report(ended: Path, tmp_path: Path) -> None:
    going = tmp_path / "RUN"
    shutil.copytree(ended, going, ignore=shutil.ignore_patterns("summary.json", "best.onnx"))
    text = live_page(LocalPath(going))
    page = Page(text)
    assert_offline(page)
    assert_navigation_names_headings(page)
    assert ("meta", {"http-equiv": "refresh", "content": "10"}) in page.tags
    run = open_run(going)
    for name, value in progress_rows(run, read_progress(run), read_farm_progress(run, REAL.clock)).items():
        assert name == "newest row" or f'<td class="text">{name}</td><td class="text">{cell_text(value)}</td>' in text, "what `status` says"
    assert "tilefarm tune with --resume" in text
    for level, best in read_progress(open_run(ended)).best.items():
        assert f"{best:,}" in text
        assert f"{baseline_of(run)[level]:,}" in text, "that of the last checkpoint; the run's last programs may have a better one"
    report = Page(live_page(LocalPath(ended)))
    assert "Settings and versions" in report.headings
    assert not [attrs for tag, attrs in report.tags if attrs.get("http-equiv") == "refresh"]


@pytest.fixture
def made() -> list[int]:
    return []


@pytest.fixture
def served(made: list[int]) -> Iterator[ServedPage]:
    def make() -> str:
        made.append(len(made))
        return f"page {len(made)}"

    def value() -> dict[str, int]:
        if len(made) > 1:
            raise BadInputError("no log")
        return {"made": len(made)}

    with ServedPage(0, make, {"/status.json": value}) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server: ServedPage, path: str = "/", host: str = LOOPBACK) -> tuple[int, str]:
    connection = http.client.HTTPConnection(LOOPBACK, server.server_port, timeout=10)
    connection.request("GET", path, headers={"Host": f"{host}:{server.server_port}"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_page_is_remade_only_after_a_while(served: ServedPage, made: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    assert served.server_address[0] == LOOPBACK
    assert [ask(served) for _ in range(3)] == [(200, "page 1")] * 3
    monkeypatch.setattr(served_page, "monotonic", lambda: float("inf"))
    assert ask(served) == (200, "page 2")
    assert made == [0, 1]


def test_status_is_served_beside_the_page(served: ServedPage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(served, "/status.json") == (200, '{"made": 0}')
    instants = itertools.count(1e9, 1e3)
    monkeypatch.setattr(served_page, "monotonic", lambda: next(instants))
    assert [ask(served)[1], ask(served)[1]] == ["page 1", "page 2"]
    assert ask(served, "/status.json") == (200, '{"error": "no log"}')


def test_nothing_else_is_served(served: ServedPage, made: list[int]) -> None:
    assert ask(served, "/run.json")[0] == 404
    assert ask(served, host="example.org")[0] == 403
    assert not made


def test_errors_are_reported_before_a_page_is_served(ended: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(tmp_path)]) == 2
    assert "no run.json here" in capsys.readouterr().err
    with ServedPage(0, str, {}) as server:
        assert main(["watch", str(ended), "--port", str(server.server_port)]) == 2
    assert "0 takes any free one" in capsys.readouterr().err
