"""Draws the pictures of README and docs into docs/pictures/.

    python tools/pictures.py

They follow the reader's light or dark mode. A test compares the files with what is drawn here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pictures_accuracy import draw_accuracy
from pictures_data import draw_calibration, draw_cuda_graphs, draw_packed, draw_padding, draw_splits
from pictures_model import draw_idea, draw_idea_narrow, draw_layer, draw_spectral, draw_wl
from svg import Canvas, style_modes

from mnagt.files import write_text
from mnagt.reports.theme import to_css_variables

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "pictures"


@dataclass(frozen=True)
class Chart:
    """A chart that `mnagt reproduce` wrote, in both modes."""

    path: str
    """Below results/."""

    def render(self) -> str:
        opening, _, rest = (ROOT / "results" / self.path).read_text(encoding="utf-8").partition(">")
        return f"{opening}><style>{style_modes()}</style>{to_css_variables(rest.rstrip())}\n"


PICTURES: dict[str, Callable[[], Canvas | Chart]] = {
    "idea": draw_idea,
    "idea-narrow": draw_idea_narrow,
    "layer": draw_layer,
    "spectral": draw_spectral,
    "wl": draw_wl,
    "packed": draw_packed,
    "padding": draw_padding,
    "splits": draw_splits,
    "cuda-graphs": draw_cuda_graphs,
    "calibration": draw_calibration,
    "accuracy": draw_accuracy,
    "paper-hops": partial(Chart, "hops/figures/nci1-hops.svg"),
    "paper-heads": partial(Chart, "heads/figures/nci1-heads.svg"),
    "paper-layers": partial(Chart, "layers/figures/nci1-layers.svg"),
    "paper-mixers": partial(Chart, "ablation/figures/collab-ablation-mnagt-paper.svg"),
}


def main() -> None:
    for name, draw in PICTURES.items():
        write_text(OUT / f"{name}.svg", draw().render())


if __name__ == "__main__":
    main()
