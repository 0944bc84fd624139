"""Draws docs/architecture.svg: the way of a graph from a file to a prediction, with file and function names.

    python tools/architecture_figure.py

The picture follows the reader's light or dark mode. A test checks that every file and name in it exists.
"""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from svg import style_modes

from mnagt.files import write_text
from mnagt.reports.picture import Picture
from mnagt.reports.theme import CARD, INK, LINE, SOFT, series_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OUT = Path(__file__).parents[1] / "docs" / "architecture.svg"
WIDTH, HEIGHT, GAP, LEFT = 154, 62, 20, 92


class Step(NamedTuple):
    """A box: what happens, and the file (below src/mnagt) and the name that does it."""

    title: str
    file: str = ""
    name: str = ""


ROWS: dict[str, list[Step]] = {
    "read": [
        Step("a file"),
        Step("data set", "data/registry.py", "load_dataset"),
        Step("packed graphs", "data/packed.py", "PackedDataset"),
        Step("split", "runs/split.py", "make_split"),
        Step("batch", "graphs/batch.py", "GraphBatch"),
    ],
    "model": [
        Step("build", "models/registry.py", "build_model"),
        Step("encoder", "nn/encoders.py", "NodeEncoder"),
        Step("layers", "nn/layer.py", "Layer"),
        Step("readout", "nn/readouts.py", "Readout"),
        Step("head: outputs", "nn/graph_model.py", "GraphModel"),
    ],
    "one layer": [
        Step("norm", "nn/norms.py", "BatchNorm"),
        Step("kernels", "attention/kernels.py", "Hop"),
        Step("attention", "attention/attend.py", "attend"),
        Step("mixer", "attention/mixers.py", "Adaptive"),
        Step("residual", "nn/layer.py", "PropagatedResidual"),
    ],
    "train": [
        Step("run", "training/run.py", "train"),
        Step("epochs", "training/trainer.py", "Trainer"),
        Step("loss, scores", "tasks/base.py", "Task.loss"),
        Step("optimiser", "training/optim.py", "adamw"),
        Step("model folder", "inference/model_folder.py", "TrainedModel.save"),
    ],
    "predict": [
        Step("load", "inference/model_folder.py", "load_model"),
        Step("graphs", "inference/predict.py", "predict"),
        Step("outputs", "inference/outputs.py", "compute_outputs"),
        Step("decode", "tasks/base.py", "Task.decode"),
        Step("predictions"),
    ],
}


def draw(ax: "Axes") -> None:
    """Boxes in rows, an arrow between neighbours."""
    from matplotlib.patches import FancyBboxPatch

    figure = ax.get_figure(root=True)
    assert figure is not None
    figure.set_layout_engine("none")
    ax.set_position((0, 0, 1, 1))
    ax.set_axis_off()
    width, height = size()
    ax.set(xlim=(0, width), ylim=(height, 0))
    for row, (label, steps) in enumerate(ROWS.items()):
        y, colour = 6 + row * (HEIGHT + GAP), series_style(0 if row in (1, 2) else 1 if row == 3 else 2).colour
        ax.text(4, y + HEIGHT / 2, label, va="center", fontweight="bold", color=INK)
        for column, step in enumerate(steps):
            x = LEFT + column * (WIDTH + GAP)
            shape = f"round,pad=0,rounding_size={8 if step.file else 30}"
            ax.add_patch(FancyBboxPatch((x, y), WIDTH, HEIGHT, shape, facecolor=CARD, edgecolor=LINE, linewidth=1.5))
            if step.file:
                ax.plot([x + 10, x + 30], [y + 24, y + 24], color=colour)
            lines = [(step.title, 17, INK, "bold", 12.5), (step.name, 40, INK, "normal", 11.5)]
            for text, offset, ink, weight, font in [*lines, (step.file, 54, SOFT, "normal", 9.5)]:
                position = (x + 10, y + offset) if step.file else (x + WIDTH / 2, y + HEIGHT / 2 + 4)
                ax.text(
                    *position, text, ha="left" if step.file else "center", fontweight=weight, fontsize=font, color=ink
                )
            if column:
                arrow = {"arrowstyle": "->", "color": SOFT, "linewidth": 1.5, "shrinkA": 2, "shrinkB": 2}
                ax.annotate("", (x, y + HEIGHT / 2), (x - GAP, y + HEIGHT / 2), arrowprops=arrow)


def size() -> tuple[float, float]:
    """Width and height of the picture."""
    columns = max(map(len, ROWS.values()))
    return LEFT + columns * (WIDTH + GAP) - GAP + 6, 12 + len(ROWS) * (HEIGHT + GAP) - GAP


def main() -> None:
    svg = Picture("The way of a graph from a file to a prediction", size(), draw).to_svg()
    style = f"<style>{style_modes()}</style>"
    opening, _, rest = str(svg).partition(">")
    page = '<rect width="100%" height="100%" rx="10" fill="var(--page)"/>'  # the reader's may be in the other mode
    write_text(OUT, f'{opening} xmlns="http://www.w3.org/2000/svg">{style}{page}{rest}\n')


if __name__ == "__main__":
    main()
