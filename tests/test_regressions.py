"""`make benchmarks-check` notices what got slower, by how much, and nothing else."""

import json
import sys
import time
from pathlib import Path

import pytest

from mnagt.files import read_json

pytest.importorskip("torch_geometric")
sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import regressions  # type: ignore[import-not-found]

NAME = "batches / PyG Batch"


def test_an_injected_delay_is_noticed_and_the_same_code_is_not(capsys):
    pair = regressions.make_batches()

    def ours_with_a_delay() -> object:
        time.sleep(0.05)  # several times what the step takes
        return pair.ours()

    expected = regressions.expect([regressions.measure({NAME: lambda: pair}, 5)])
    expected[NAME]["band"] = 1.0  # for a machine that does other work
    assert regressions.check({NAME: lambda: pair}, expected, 5, "processor") == {}
    assert "SLOWER" not in capsys.readouterr().out
    slower = regressions.check({NAME: lambda: pair._replace(ours=ours_with_a_delay)}, expected, 5, "wall")
    assert slower[NAME] > 1
    assert "SLOWER" in capsys.readouterr().out


def test_bands_are_as_wide_as_measurements_differ():
    expected = regressions.expect([{"a": 1.0, "b": 2.0}, {"a": 9.0, "b": 2.01}, {"a": 1.1, "b": 2.0}])
    assert expected["a"] == {"ratio": 1.1, "band": pytest.approx(4 * 1.4826 * 0.1 / 1.1)}  # in spite of the 9
    assert expected["b"] == {"ratio": 2.0, "band": 0.1}
    assert regressions.find_slower({"a": 1.6, "b": 2.3}, expected) == {"b": pytest.approx(0.15)}


def test_a_slower_pair_ends_the_command_with_status_1(tmp_path, monkeypatch, capsys):
    file = tmp_path / "expected.json"
    monkeypatch.setattr(regressions, "PAIRS", {NAME: regressions.make_batches})
    words = ["regressions.py", "--rounds", "3", "--repeats", "2", "--expected", str(file)]
    monkeypatch.setattr(sys, "argv", [*words, "--update"])
    regressions.main()
    stored = read_json(file)
    assert stored["pairs"].keys() == {NAME}
    stored["pairs"][NAME]["ratio"] /= 10  # as if it had been ten times as fast
    file.write_text(json.dumps(stored))
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match=r"missed: batches / PyG Batch is .*% slower"):
        regressions.main()
    monkeypatch.setattr(regressions, "PAIRS", {NAME: regressions.make_batches, "new": regressions.make_batches})
    with pytest.raises(SystemExit, match="lacks new; store them with --update"):
        regressions.main()


def test_every_pair_has_an_expectation():
    assert read_json(regressions.EXPECTED)["pairs"].keys() == regressions.PAIRS.keys()
