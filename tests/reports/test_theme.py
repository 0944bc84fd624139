import re

import pytest

from mnagt.reports.picture import STYLE
from mnagt.reports.theme import DARK, LIGHT, contrast_colour, interpolate_ramp, to_css_variables


def test_both_modes_name_the_same_colours_and_light_ones_differ():
    assert set(LIGHT) == set(DARK)
    assert len(set(LIGHT.values())) == len(LIGHT), "pictures are recoloured by them"


def test_the_style_of_matplotlib_has_the_colours_of_the_light_theme():
    found = re.findall(r": ([0-9a-f]{6})$", STYLE.read_text(), re.MULTILINE)
    assert len(found) == 5
    assert {f"#{colour}" for colour in found} <= set(LIGHT.values())


def test_colours_of_the_theme_become_variables_and_others_stay():
    assert to_css_variables("fill:#0069AD;stroke:#123456") == "fill:var(--series-0);stroke:#123456"


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9])
def test_a_ramp_has_as_many_colours_as_wanted(count):
    assert len(set(interpolate_ramp(count))) == count


def test_text_is_dark_on_light_colours_and_light_on_dark_ones():
    assert contrast_colour("#f4c54b") == "#111111"
    assert contrast_colour("#6f4ea8") == "#fefefe"
