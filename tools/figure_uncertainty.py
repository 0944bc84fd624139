"""The tables of calibration, coverage and explanations."""

from collections.abc import Callable, Sequence
from statistics import mean, stdev
from typing import Any

from figure_ledgers import PLUS_MINUS, format_table, read_results


def build_coverage() -> str:
    """Calibration and coverage of prediction sets, one model beside three."""
    found = read_results("coverage-cpu.json")["figures"]

    def row(name: str, write: Callable[[dict[str, Any]], str]) -> list[str]:
        return [name, *map(write, found.values())]

    def write_level(level: str) -> Callable[[dict[str, Any]], str]:
        def write(each: dict[str, Any]) -> str:
            classes = ", ".join(f"{share:.3f}" for share in each[level]["by_class"])
            return f"{each[level]['coverage']:.3f} ({classes}), {each[level]['size']:.2f}"

        return write

    rows = [
        row("accuracy", lambda each: f"{100 * each['accuracy']:.1f} %"),
        row(
            "Brier score, before and after", lambda each: f"{each['before']['brier']:.3f}, {each['after']['brier']:.3f}"
        ),
        row(
            "calibration error, before and after",
            lambda each: f"{each['before']['ece']:.3f}, {each['after']['ece']:.3f}",
        ),
    ]
    what = ("coverage at {} (each class), classes in a set", "coverage at {}", "coverage at {}")
    for words, level in zip(what, ("0.8", "0.9", "0.95"), strict=True):
        rows.append(row(words.format(level), write_level(f"level {level}")))
    count = sum(each["graphs"] for each in found["one model"]["before"]["bins"])
    return format_table([f"NCI1, GIN, 25 epochs, {count:,} test graphs of 4 splits", *found], rows)


def build_coverage_numbers() -> str:
    """Coverage and width of intervals of numbers, as the model gives them and conformal, means over splits."""
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for each in read_results("coverage-numbers-cpu.json")["figures"]:
        rows.setdefault((each["data"], each["uncertainty"]), []).append(each)

    def write(found: list[dict[str, Any]], way: str, levels: Sequence[str]) -> str:
        return ", ".join(f"{mean(each[way][level]['share'] for each in found):.3f}" for level in levels)

    def row(data: str, kind: str, found: list[dict[str, Any]]) -> list[str]:
        widths = [mean(each[way]["0.9"]["width"] for each in found) for way in ("model", "conformal")]
        name = f"`{kind}`" if kind != "none" else "30 samples of dropout"
        scores = [each["rmse"] for each in found]
        return [
            f"{data.replace('_', '-')}, {name}",
            f"{mean(scores):.2f}{PLUS_MINUS}{stdev(scores):.2f}",
            f"{write(found, 'model', ['0.9'])}, {widths[0]:.2f}",
            f"{write(found, 'conformal', ['0.9'])}, {widths[1]:.2f}",
            write(found, "conformal", ["0.8", "0.95"]),
        ]

    head = ["", "RMSE", "uncalibrated at 0.9: covered, width", "conformal at 0.9: covered, width", "at 0.8 and 0.95"]
    return format_table(head, [row(*key, found) for key, found in rows.items()])


def build_coverage_molhiv() -> str:
    """Coverage of labels on a split by scaffold, and on random halves of its two parts."""
    found = read_results("coverage-molhiv-cpu.json")["figures"]
    rows = []
    for level, scaffold in found["its own split"].items():
        halves = found["20 random halves"][level]
        mixed = f"{halves['yes']:.3f}, {halves['no']:.3f}, {halves['sets of both']:.2f}"
        cells = [f"{scaffold['yes']:.3f}", f"{scaffold['no']:.3f}", f"{scaffold['sets of both']:.2f}", mixed]
        rows.append([level.removeprefix("level "), *cells])
    head = ["level", "actives covered", "inactives covered", "sets with both labels"]
    return format_table([*head, "on random halves of both parts: actives, inactives, sets of both"], rows)


def build_deletion() -> str:
    """Area ratios of deletion, by integrated gradients and occlusion; in brackets against a contiguous random order."""
    found = read_results("deletion-cpu.json")
    ways = [(way, order) for way in ("silent", "cut") for order in ("integrated gradients", "occlusion")]
    rows = []
    for name, words in (("likeliest", "most probably active"), ("drawn at random", "drawn at random")):
        each = [found["figures"][name][way][order] for way, order in ways]
        rows.append([words, *(f"{one['ratio']:.2f} ({one['ratio to contiguous']:.2f})" for one in each)])
    head = [f"{'zero' if way == 'silent' else 'removed'}, {order}" for way, order in ways]
    return format_table([f"{found['data']}, {found['molecules']} test molecules, over chance:", *head], rows)
