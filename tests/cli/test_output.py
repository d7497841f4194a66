# SPDX-License-Identifier: Apache-2.0
import pytest

from sfumato.cli.options import human_size, printable, progress_bar


@pytest.mark.parametrize(
    ("count", "shown"), [(12, "12 bytes"), (1500, "1.5 kB"), (2_500_000, "2.5 MB"), (4e15, "4000.0 TB")]
)
def test_sizes_for_people(count, shown):
    assert human_size(count) == shown


def test_progress_passes_everything_on_and_stays_off_a_pipe(capsys):
    assert list(progress_bar("working", None)([1, 2, 3])) == [1, 2, 3]
    assert list(progress_bar("working", 2)(iter("ab"))) == ["a", "b"]
    assert capsys.readouterr().out == ""


def test_what_is_shown_does_not_act():
    assert printable("a\x1b[2J\nb é") == r"a\x1b[2J\nb é"


def test_a_bar_tells_how_many_a_second(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    monkeypatch.setenv("COLUMNS", "150")
    assert list(progress_bar("matching", 3, unit="pairs")("abc")) == ["a", "b", "c"]
    assert "pairs/s" in capsys.readouterr().err
    assert list(progress_bar("matching", 3)("abc")) == ["a", "b", "c"]
    assert "/s" not in capsys.readouterr().err
