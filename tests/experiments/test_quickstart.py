"""The page and its pictures, from evidence made by hand: nothing is trained here."""

from dataclasses import replace

import numpy as np
import pytest
from markup import Elements, is_self_contained, numbers

from mnagt.experiments.quickstart import PUBLISHED, CrossValidation, Evidence, Fold, Molecule, build_page, compare
from mnagt.reports.graph_drawing import DrawnGraph
from mnagt.reports.picture import kernel_keys


def cross_validation(model: str, accuracies: list[float], epochs: int = 7, *, is_flat: bool = False) -> CrossValidation:
    folds = tuple(
        Fold(
            accuracy,
            history=[
                {"epoch": e + 1, "loss": 0.5 if is_flat else 1 / (1 + e + i), "valid_accuracy": accuracy}
                for e in range(epochs)
            ],
            predicted=[0, 1, 1, 0, 1],
            actual=[0, 1, 1, 1, 1],
        )
        for i, accuracy in enumerate(accuracies)
    )
    return CrossValidation(model, parameters=12_345, folds=folds)


def molecule(atoms: list[str], bonds: list[tuple[int, int, str]], layers: int = 2, kernels: int = 3) -> Molecule:
    drawn = np.random.default_rng(0).dirichlet(np.ones(kernels), (layers, len(atoms)))
    return Molecule(5, DrawnGraph(atoms, bonds), "mutagenic", "not mutagenic", 0.93, drawn.tolist())


KINDS = ("single", "double", "triple", "aromatic", "unheard of")
CHAIN = molecule(["C", "N", "O", "Cl", "C", "F"], [(i, i + 1, kind) for i, kind in enumerate(KINDS)])
EVIDENCE = Evidence(
    "MUTAG",
    188,
    ("not mutagenic", "mutagenic"),
    (cross_validation("mnagt", [0.9, 0.8, 0.97]), cross_validation("gin", [0.81, 0.83, 0.87])),
    [CHAIN],
    seconds=131.0,
    device="cpu",
)


def page(evidence: Evidence) -> str:
    return build_page(evidence)


def test_the_page_is_whole():
    written = page(EVIDENCE)
    assert written.startswith("<!doctype html>")
    Elements(written)


def test_it_holds_the_figure_of_each_model():
    said = Elements(page(EVIDENCE)).text
    for model in EVIDENCE.models:
        assert f"{100 * model.mean:.1f} ± {100 * model.deviation:.1f} %" in said
    for name, score, _ in PUBLISHED:
        assert f"{name}, published{score:.1f}" in said
    assert "80.0 %" in said, "4 of 5 graphs are of the larger class"


def test_nothing_comes_from_outside():
    assert is_self_contained(page(EVIDENCE))


def test_names_are_text_not_markup():
    nasty = ('<b>"bold"</b>', "</svg><script>alert(1)</script>")
    graph = replace(CHAIN.graph, nodes=["<i>", "&", "C", "C", "C", "C"])
    odd = replace(CHAIN, graph=graph, actual=nasty[0], predicted=nasty[1])
    evidence = replace(EVIDENCE, class_names=nasty, molecules=[odd], device="<cpu>", dataset="<u>")
    elements, ordinary = Elements(page(evidence)), Elements(page(EVIDENCE))
    assert {tag for tag, _ in elements.found} == {tag for tag, _ in ordinary.found}
    assert len(elements.all("b")) == len(ordinary.all("b"))
    assert nasty[0] in elements.text
    assert "<cpu>" in elements.text


def test_pictures_say_what_they_show():
    pictures = Elements(page(EVIDENCE)).all("svg")
    assert all(picture.get("aria-label") or picture.get("aria-hidden") == "true" for picture in pictures)
    assert sum("aria-label" in picture for picture in pictures) > 7


def test_confusion_counts_are_summed_over_folds():
    written = page(EVIDENCE)
    assert "9 mutagenic predicted as mutagenic: 75.0 %" in written
    assert "3 mutagenic predicted as not mutagenic: 25.0 %" in written
    assert "mnagt: 12 of 15 right" in written


def test_every_layer_is_there_and_the_last_is_chosen():
    elements = Elements(page(EVIDENCE))
    assert [choice["id"] for choice in elements.all("input")] == ["layer-0", "layer-1"]
    assert ["checked" in choice for choice in elements.all("input")] == [False, True]
    for i in range(2):
        assert len(elements.all("g", **{"class": f"layer layer-{i}"})) == 1


@pytest.mark.parametrize("kernels", [1, 2, 3, 5])
def test_any_number_of_kernels_has_colours_and_names(kernels):
    written = page(replace(EVIDENCE, molecules=[molecule(["C", "O"], [(0, 1, "double")], kernels=kernels)]))
    for key in kernel_keys(kernels):
        assert key.name in written


def test_equal_histories_need_no_room():
    flat = cross_validation("mnagt", [1.0, 1.0, 1.0], is_flat=True)
    written = page(replace(EVIDENCE, models=(flat, replace(flat, model="gin"))))
    assert np.isfinite(numbers(written)).all()
    assert "reach the same mean accuracy" in written


@pytest.mark.parametrize("epochs", [0, 1, 2, 61])
def test_any_number_of_epochs_is_drawn(epochs):
    models = tuple(cross_validation(name, [0.5, 0.7, 0.9], epochs) for name in ("mnagt", "gin"))
    written = page(replace(EVIDENCE, models=models))
    Elements(written)
    assert np.isfinite(numbers(written)).all()


def test_it_does_without_molecules_weights_or_rivals():
    for evidence in (
        replace(EVIDENCE, molecules=[]),
        replace(EVIDENCE, molecules=[replace(CHAIN, weights=[])]),
        replace(EVIDENCE, models=EVIDENCE.models[:1]),
    ):
        assert evidence.models[0].model in page(evidence)
        Elements(page(evidence))


@pytest.mark.parametrize(
    ("ours", "other", "says"),
    [
        ([0.8, 0.9, 0.7], [0.8, 0.9, 0.7], "reach the same"),
        ([0.8, 0.9, 0.7], [0.9, 0.8, 0.69], "mnagt is higher than gin, by 0.3 points"),
        ([0.8, 0.9, 0.7], [0.9, 0.8, 0.69], "does not show a difference"),
        ([0.8, 0.9, 0.7], [0.83, 0.92, 0.78], "gin is higher than mnagt, by 4.3 points"),
        ([0.8, 0.9, 0.7], [0.83, 0.92, 0.78], "With 3 folds that does not show a difference"),
        ([0.8, 0.9, 0.7, 0.8, 0.9, 0.7], [0.7, 0.6, 0.6, 0.7, 0.6, 0.6], "p = 0.031). That shows a difference"),
    ],
)
def test_the_comparison_follows_the_numbers(ours, other, says):
    assert says in compare(cross_validation("mnagt", ours), cross_validation("gin", other))
