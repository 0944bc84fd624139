"""Draws the pictures of README and docs into docs/pictures/.

    python tools/pictures.py

They follow the reader's light or dark mode. A test compares the files with what is drawn here.
"""

from collections.abc import Callable
from pathlib import Path

from pictures_data import draw_calibration, draw_cuda_graphs, draw_packed, draw_padding, draw_splits
from pictures_model import draw_idea, draw_layer, draw_spectral, draw_wl
from svg import Canvas

from mnagt.files import write_text

OUT = Path(__file__).parents[1] / "docs" / "pictures"
PICTURES: dict[str, Callable[[], Canvas]] = {
    "idea": draw_idea,
    "layer": draw_layer,
    "spectral": draw_spectral,
    "wl": draw_wl,
    "packed": draw_packed,
    "padding": draw_padding,
    "splits": draw_splits,
    "cuda-graphs": draw_cuda_graphs,
    "calibration": draw_calibration,
}


def main() -> None:
    for name, draw in PICTURES.items():
        write_text(OUT / f"{name}.svg", draw().render())


if __name__ == "__main__":
    main()
