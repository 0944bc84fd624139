"""The picture of accuracies on the paper's data sets, from the ledgers."""

from statistics import mean

from figure_ledgers import find_fresh_scores
from svg import Canvas

from mnagt.experiments.reproduce_tables import TU

MODELS = {"gin": "GIN", "wl-linear": "wl-linear", "mnagt-wl": "mnagt-wl"}
LOWEST, HIGHEST = 76, 92
"""Ends of the axis, in percent."""


def draw_accuracy() -> Canvas:
    """A dot for the test accuracy of each split, and a line for the mean."""
    canvas = Canvas(720, 420, "Test accuracy of GIN, wl-linear and mnagt-wl on the splits of three data sets")
    canvas.text(24, 34, "Subtree counts bring the accuracy", size=18, bold=True)
    left, width, top, row = 190, 500, 58, 32
    for tick in range(LOWEST, HIGHEST + 1, 4):
        x = left + width * (tick - LOWEST) / (HIGHEST - LOWEST)
        canvas.line((x, top), (x, top + 312), colour="line", width=1)
        canvas.text(x, top + 330, f"{tick} %", size=13, anchor="middle", colour="soft")
    for group, data in enumerate(TU):
        y = top + 22 + group * 104
        canvas.text(24, y + row, data, size=15, bold=True)
        for number, (model, name) in enumerate(MODELS.items()):
            scores, level, colour = list(find_fresh_scores(data, model).values()), y + number * row, f"series-{number}"
            places = [left + width * (score - LOWEST) / (HIGHEST - LOWEST) for score in scores]
            canvas.text(left - 12, level + 5, name, size=14, anchor="end")
            for x in places:
                canvas.circle(x, level, 5, fill=colour, opacity=0.45)
            canvas.line((mean(places), level - 11), (mean(places), level + 11), colour="ink", width=3)
    canvas.text(24, 408, "A dot is a split; a line is their mean. The splits chose nothing.", size=13, colour="soft")
    return canvas
