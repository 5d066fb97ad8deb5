"""The bench runs: its shortest table with the smallest settings."""

from __future__ import annotations

import pytest

from tests.bench import decisions, placement, run, settings


@pytest.mark.process
def test_a_run_prints_the_tables_that_were_asked_for(monkeypatch, capsys):
    monkeypatch.setattr(settings, "ONLY", ["decide"])
    monkeypatch.setattr(settings, "ROUNDS", 1)
    monkeypatch.setattr(settings, "BASELINE", "")
    monkeypatch.setattr(decisions, "CALLS", 1)
    run.main()
    _, title, _, _, columns, *rows = capsys.readouterr().out.splitlines()
    assert title == "[decide]"
    heads = [(part, "base", "x") for part in ("read", "decide", "write", "all")]
    assert columns.split() == [head for group in heads for head in group]
    assert [row.strip()[:36].strip() for row in rows] == [name for name, *_ in decisions.CASES]
    for row in rows:
        read, *without, decide, _, _, write, _, _, both, _, _ = row[38:].split()
        assert without == ["-", "-"]
        total = float(read) + float(decide) + float(write)
        assert float(both) == pytest.approx(total, abs=0.2)  # each is rounded


def test_a_table_that_does_not_exist_is_named(monkeypatch):
    monkeypatch.setattr(settings, "ONLY", ["decide", "http"])
    with pytest.raises(SystemExit, match="no table http; there are decide, tls, create, "):
        run.main()


@pytest.mark.process
def test_a_replica_has_figures_beside_few_pods():
    """The table uses internal names of the client, and breaks when they change."""
    *figures, _ = placement._in_a_child("measured", 3, 32)
    assert len(figures) == 8
    assert all(figure > 0 for figure in figures)
