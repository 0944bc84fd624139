"""What is said of a model's parts is read off the built model."""

from importlib import import_module

import pytest

from mnagt.graphs.features import Features
from mnagt.models.config import SklearnConfig, WidthConfig
from mnagt.models.description import describe_parts
from mnagt.models.registry import MODELS, build_model

PARTS = {
    "mnagt": ("GnnHop(0), GnnHop(1)", "adaptive", "-", "GIN block"),
    "mnagt-ensemble": ("GnnHop(0), GnnHop(1)", "adaptive", "-", "GINE block"),
    "mnagt-wl": ("GnnHop(0), GnnHop(1)", "adaptive", "-", "GIN block"),
    "mnagt-paper": ("Hop(0), Hop(1), Hop(2)", "adaptive", "-", "ÂX"),
    "transformer": ("Hop(0)", "-", "-", "X"),
    "graphtrans": ("Hop(0)", "-", "-", "X"),
    "sat": ("Structural(StructureExtractor) in DegreeScaledAttention", "-", "-", "X"),
    "graphit": ("Hop(0) in TiedAttention", "-", "diffusion", "X"),
    "grpe": ("Hop(0) in RelativeAttention", "-", "-", "X"),
    "grover": ("SeparateGnns(DyMpn)", "-", "-", "X"),
    "gophormer": ("Hop(0)", "-", "proximity", "X"),
    "san": ("Hop(0) in RealAndVirtualAttention", "-", "non-edge", "X"),
}
OWN_STACK = {"gt", "graphormer", "gps"}


@pytest.mark.parametrize("name", [name for name, entry in MODELS.items() if entry.family == "transformer"])
def test_parts_are_those_of_the_built_model(name):
    parts = describe_parts(build_model(name, {}, MODELS[name].reads or Features(), 1))
    assert parts == PARTS.get(name)
    assert (parts is None) == (name in OWN_STACK)
    module = import_module(MODELS[name].build.__module__)
    assert ("stack of its own" in (module.__doc__ or "")) == (name in OWN_STACK)


def test_settings_change_the_parts():
    model = build_model("mnagt", {"max_hop": 0, "residual": "conv", "conv": "gcn"}, Features(), 1)
    assert describe_parts(model) == ("GnnHop(0)", "-", "-", "GCN")
    model = build_model("graphit", {"kernel": "random-walk"}, Features(), 1)
    assert describe_parts(model) == ("Hop(0) in TiedAttention", "-", "random-walk", "X")


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_summarised_in_one_line_and_has_the_common_settings(name):
    entry = MODELS[name]
    assert 10 < len(entry.summary) < 120
    assert issubclass(entry.config, SklearnConfig if entry.is_fitted_by_sklearn else WidthConfig)
