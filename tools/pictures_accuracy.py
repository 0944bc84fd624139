"""The picture of accuracies on the paper's data sets, from the ledgers."""

from statistics import mean

from figure_ledgers import find_fresh_scores
from svg import Canvas

from mnagt.experiments.reproduce_tables import TU

MODELS = {"gin": "GIN", "wl-linear": "wl-linear", "mnagt-wl": "mnagt-wl"}
LOWEST, HIGHEST = 76, 92
"""Ends of the axis, in percent."""


def draw_accuracy() -> Canvas:
    """A dot for the test accuracy of each split, and a line for the mean; narrow enough for a phone."""
    canvas = Canvas(480, 500, "Test accuracy of GIN, wl-linear and mnagt-wl on the splits of three data sets")
    canvas.text(20, 34, "Subtree counts bring the accuracy", size=18, bold=True)
    left, width, top, row = 110, 345, 52, 30
    for tick in range(LOWEST, HIGHEST + 1, 4):
        x = left + width * (tick - LOWEST) / (HIGHEST - LOWEST)
        canvas.line((x, top), (x, top + 390), colour="line", width=1)
        canvas.text(x, top + 408, f"{tick} %", size=14, anchor="middle", colour="soft")
    for group, data in enumerate(TU):
        y = top + 22 + group * 130
        canvas.text(20, y, data, size=15, bold=True)
        for number, (model, name) in enumerate(MODELS.items(), start=1):
            scores, level = list(find_fresh_scores(data, model).values()), y + number * row
            places = [left + width * (score - LOWEST) / (HIGHEST - LOWEST) for score in scores]
            canvas.text(left - 12, level + 5, name, size=15, anchor="end")
            for x in places:
                canvas.circle(x, level, 5, fill=f"series-{number - 1}", opacity=0.45)
            canvas.line((mean(places), level - 11), (mean(places), level + 11), colour="ink", width=3)
    canvas.text(20, 484, "A dot is a split; a line is their mean. The splits chose nothing.", size=14, colour="soft")
    return canvas
