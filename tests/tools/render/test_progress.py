"""The progress line on a terminal."""

from __future__ import annotations

import os
import pty
import sys
import termios
from typing import ClassVar

import pytest

from tests.support.foreign_clusters import gfd_node, whole
from tests.support.paths import ROOT
from tests.support.run_command import runner
from webhook.adapters.kube.client import Kube
from webhook.cli.main import main
from webhook.tools.render import output
from webhook.tools.render.output import EVERY_S, SILENT_S, Progress, count_progress
from webhook.tools.snapshot.cluster import cluster_progress

SHIPPED = ROOT / "policies" / "default.yaml"
ERASE = "\r\x1b[K"


class Scene:
    """Standard error of a terminal, with a clock that the test controls."""

    def __init__(self, monkeypatch, columns=40, out="terminal"):
        self.mine, theirs = pty.openpty()
        termios.tcsetwinsize(self.mine, (30, columns))
        self.terminal = os.fdopen(theirs, "w")
        self.pipe = [os.fdopen(end, mode) for end, mode in zip(os.pipe(), "rw", strict=True)]
        self.waited = []
        devnull = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
        outs = {"terminal": self.terminal, "pipe": self.pipe[1], "file": devnull}
        monkeypatch.setattr(sys, "stderr", self.terminal)
        monkeypatch.setattr(sys, "stdout", outs[out])
        monkeypatch.setenv("TERM", "xterm")
        self.files = [*outs.values(), *self.pipe]

    def until(self, rounds):
        """Return a `wait` function for work that takes this number of rounds."""

        def wait(seconds):
            self.waited.append(seconds)
            return len(self.waited) > rounds

        return wait

    def written(self):
        """Return the text on the terminal, up to a mark that this method writes."""
        os.write(self.terminal.fileno(), b"\0")
        text = b""
        while not text.endswith(b"\0"):
            text += os.read(self.mine, 1024)
        return text[:-1].decode()


@pytest.fixture
def scene(monkeypatch):
    made = []

    def make(**options):
        made.append(Scene(monkeypatch, **options))
        return made[-1]

    yield make
    for scene_made in made:
        for file in scene_made.files:
            file.close()
        os.close(scene_made.mine)


def run(wait, say=lambda: "3 of 5"):
    with Progress(say, wait) as shown:
        if shown._thread:
            shown._thread.join()
        return shown


def test_after_two_seconds_the_line_is_written_again_and_again_and_erased_at_the_end(scene):
    on = scene()
    numbers = iter(range(1, 9))
    run(on.until(3), lambda: f"{next(numbers)} of 5")
    assert on.written() == f"{ERASE}1 of 5{ERASE}2 of 5{ERASE}3 of 5{ERASE}"
    assert on.waited == [SILENT_S, EVERY_S, EVERY_S, EVERY_S]
    assert SILENT_S == 2.0


def test_what_takes_less_than_two_seconds_says_nothing(scene):
    on = scene()
    run(on.until(0))
    assert (on.written(), on.waited) == ("", [SILENT_S])


def test_the_end_of_the_work_ends_the_line_by_itself(scene, monkeypatch):
    monkeypatch.setattr(output, "SILENT_S", 600.0)
    on = scene()
    with Progress(lambda: "3 of 5") as shown:
        pass
    assert (shown._thread.is_alive(), on.written()) == (False, "")


def test_a_line_is_never_wider_than_the_terminal_nor_moves_on_it(scene):
    on = scene(columns=12)
    run(on.until(1), lambda: "reading a\x1b[2J very long name")
    assert on.written() == f"{ERASE}read...name{ERASE}"


@pytest.mark.parametrize(
    ("out", "term", "shown"),
    [
        ("terminal", "xterm", True),
        ("file", "xterm", True),
        ("pipe", "xterm", False),
        ("terminal", "dumb", False),
        ("terminal", "", False),
        ("terminal", None, False),
    ],
)
def test_only_a_terminal_that_can_erase_it_has_the_line(scene, monkeypatch, out, term, shown):
    on = scene(out=out)
    monkeypatch.delenv("TERM")
    if term is not None:
        monkeypatch.setenv("TERM", term)
    assert (run(on.until(1))._thread is not None) == shown
    assert bool(on.written()) == shown


def test_where_standard_error_is_no_terminal_there_is_none(scene, monkeypatch):
    on = scene()
    monkeypatch.setattr(sys, "stderr", on.pipe[1])
    assert run(on.until(1))._thread is None


class Recorder(Progress):
    """Progress line that records its start, end and text, and whether output was printed."""

    noted: ClassVar[list[tuple[str, str, bytes]]] = []

    def _note(self, what):
        sys.stdout.flush()
        self.noted.append((what, self.describe(), sys.stdout.buffer.getvalue()))

    def __enter__(self):
        self._note("begins")
        return super().__enter__()

    def __exit__(self, *error):
        self._note("ends")
        super().__exit__(*error)


@pytest.fixture
def noted(monkeypatch):
    """Return the records of `Recorder`."""
    for module in ("render.output", "snapshot.cluster"):
        monkeypatch.setattr(f"webhook.tools.{module}.Progress", Recorder)
    monkeypatch.setattr(Recorder, "noted", [])
    return Recorder.noted


READS = ["top", "explain p", "advise", f"report --policy {SHIPPED}", "check", "simulate"]


@pytest.mark.parametrize("command", READS)
def test_who_reads_a_cluster_says_how_far_it_is_until_the_answer_comes(command, api_server, noted):
    api_server.add(gfd_node("n"), whole("p", "n", namespace="default"))
    api_server.texts["/version"] = '{"gitVersion": "v1.36.2"}'
    arguments = [*command.split(), f"--kubeconfig={api_server.kubeconfig}"]
    done = runner().invoke(main, arguments)
    (begins, said, _), (ends, _, before) = noted
    assert (begins, ends, before) == ("begins", "ends", b"")
    assert said.startswith("reading the cluster")
    assert done.stdout


def test_where_the_cluster_cannot_be_read_the_line_is_gone_before_that_is_said(api_server, noted):
    api_server.fails(".*", 403, forever=True)
    done = runner().invoke(main, ["top", f"--kubeconfig={api_server.kubeconfig}"])
    assert (done.exit_code != 0, noted[-1][0]) == (True, "ends")


@pytest.mark.parametrize(
    ("listed", "said"),
    [(0, "reading the cluster"), (12_400, "reading the cluster: 12,400 objects")],
)
def test_of_a_cluster_is_said_how_many_objects_were_read(monkeypatch, listed, said):
    monkeypatch.setattr(Kube, "objects_listed", listed)
    assert cluster_progress() == said


def test_admit_says_how_many_files_it_judged_until_the_answer_comes(tmp_path, noted):
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(f"{{kind: ConfigMap, metadata: {{name: {name}}}}}")
    done = runner().invoke(main, ["admit", "-f", str(tmp_path)])
    assert done.exit_code == 0
    said = ["judged 0 of 2 files", "judged 2 of 2 files"]
    assert noted == [("begins", said[0], b""), ("ends", said[1], b"")]


def test_items_are_counted_off_and_then_the_line_is_gone(scene):
    on = scene()
    items = count_progress("ab", "judged {} of 2 files")
    assert (next(items), next(items), next(items, None)) == ("a", "b", None)
    assert on.written() == ""
