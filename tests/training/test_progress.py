"""What is shown while a model trains."""

import io

import pytest

from mnagt.training.progress import Lines, clock


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (179.9, "3 min 00 s"),
        (3599.9, "1 h 00 min"),
        (5400, "1 h 30 min"),
    ],
)
def test_time_is_told_as_a_person_tells_it(seconds, said):
    assert clock(seconds) == said


def test_a_line_tells_score_best_epoch_and_time_left():
    stream = io.StringIO()
    lines = Lines(stream, every=0.0)
    lines.begin(3, 3, [])
    for epoch, score, best in ((1, 0.75, None), (2, 0.815, 0.7), (3, 0.812, 0.7)):
        lines.epoch({"epoch": epoch, "loss": 0.5, "lr": 0.1, "valid_rocauc": score}, best)
    first, second, last = stream.getvalue().splitlines()
    assert first == "epoch 1/3, validation ROC-AUC 0.750, 0 s left"
    assert second == "epoch 2/3, validation ROC-AUC 0.815, epoch 2 is kept (0.815), 0 s left"
    assert last == "epoch 3/3, validation ROC-AUC 0.812, epoch 2 is kept (0.815)"


def test_a_resumed_run_says_where_it_goes_on():
    stream = io.StringIO()
    Lines(stream).begin(5, 3, [{"epoch": 1}, {"epoch": 2}])
    assert stream.getvalue() == "going on after epoch 2 of 5\n"
