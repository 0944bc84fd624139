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


def test_a_line_tells_loss_score_speed_and_time_left():
    stream = io.StringIO()
    lines = Lines(stream, every=0.0)
    lines.begin(2, 3, [])
    lines.step(1, 7)
    lines.epoch({"epoch": 1, "loss": 0.5, "lr": 0.1, "valid_accuracy": 0.75}, 0.7)
    for part in ("epoch 1/2", "loss 0.5000", "valid accuracy 0.7500 (best mean 0.7000)", "left", "graphs/s"):
        assert part in stream.getvalue()


def test_a_resumed_run_says_where_it_goes_on():
    stream = io.StringIO()
    Lines(stream).begin(5, 3, [{"epoch": 1}, {"epoch": 2}])
    assert stream.getvalue() == "going on after epoch 2 of 5\n"
