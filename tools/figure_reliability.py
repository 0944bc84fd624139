"""The table of docs/reliability.md: what was done to break it, how often, and what came of it."""

from collections.abc import Mapping
from typing import Any

from figure_ledgers import format_table, read_results


def build_reliability() -> str:
    """A row for each results file."""
    rows = [*_rows_of_crashes(), _row_of_fuzz(), *_rows_of_ranks(), *_rows_of_lost_nodes(), *_rows_of_sizes()]
    return format_table(["what", "figure", "command"], [*rows, _row_of_soak()])


def _rows_of_crashes() -> list[list[str]]:
    crash = read_results("crash-cpu.json")
    kills, disks, races = (crash[name] for name in ("kills", "full disks", "races"))
    went_on = _count(disks, "went on without a cache")
    stopped = _count(disks, "stopped at")
    in_races = _count(races, "race for") + _count(races, "race with")
    return [
        [
            "killed by `kill -9`, resumed and compared",
            f"{crash['kills in all']} times, {_format_wrong(kills, 'nothing lost')}",
            f"`tests/reliability/crash.py --kills {crash['kills in all']}`",
        ],
        [
            "disk full, or files limited in size",
            f"{stopped + went_on} times: {stopped} stopped with the file named, {went_on} went on without a cache; "
            + _format_wrong(disks, "all went on to the same end"),
            '"',
        ],
        [
            "races of four processes for a cache or a ledger",
            f"{in_races}, {_format_wrong(races, 'one result each')}",
            '"',
        ],
    ]


def _count(outcomes: Mapping[str, Any], text: str) -> int:
    return sum(count for name, count in outcomes.items() if text in name)


def _format_wrong(outcomes: Mapping[str, Any], otherwise: str) -> str:
    return f"{len(outcomes['wrong'])} of them wrong" if outcomes["wrong"] else otherwise


def _row_of_fuzz() -> list[str]:
    fuzz = read_results("fuzz-cpu.json")
    found = f"{len(fuzz['findings'])} findings" if fuzz["findings"] else "no crash, no traceback"
    figure = f"{fuzz['inputs']:,} over {len(fuzz['readers'])} readers in {fuzz['seconds']:,.0f} s: {found}, at most "
    return ["broken inputs read or refused", f"{figure}{fuzz['most_mib']:,} MiB", "`tests/reliability/fuzz.py`"]


def _rows_of_ranks() -> list[list[str]]:
    figures = read_results("ranks-cpu.json")["figures"]
    apart = max(each["gradients"]["float64"] for each in figures.values())
    speeds = {name: each["graphs_per_second"] for name, each in figures.items()}
    text = "; ".join(
        f"{name}: {each['1']:.0f} and {each['2']:.0f} ({each['2'] / each['1']:.2f} times as many)"
        for name, each in speeds.items()
    )
    return [
        [
            "gradients of two ranks beside those of one process",
            f"{apart:.0e} of their norm apart in double precision".replace("e-0", "e-"),
            "`tests/reliability/ranks.py`",
        ],
        ["graphs a second with one and two ranks", text, '"'],
    ]


def _rows_of_lost_nodes() -> list[list[str]]:
    trials, service = read_results("lost-node-cpu.json"), read_results("lost-replica-cpu.json")
    lost, figures = trials["disturbed"], "same figures" if trials["same_figures"] else "figures differ"
    once = set(trials["ledger_lines"].values()) == {trials["trials"]}
    ledger = "each in the ledger once" if once else "not each in the ledger once"
    wrong, failed = service["outcomes"].get("wrong", 0), round(service["failed_share"] * service["requests"])
    return [
        [
            "a Ray node killed in the middle",
            f"noticed in {lost['noticed_s']:.2f} s, {lost['retried']:.0f} of {trials['trials']} trials begun anew, "
            f"{ledger}, {figures}",
            "`tests/reliability/lost_node.py`",
        ],
        [
            "a Ray Serve node killed under load",
            f"{service['requests']:,} requests at {service['per_second']:g} a second: {wrong or 'none'} answered "
            f"wrongly, {failed or 'none'} failed",
            "`tests/reliability/lost_replica.py`",
        ],
    ]


def _rows_of_sizes() -> list[list[str]]:
    out_of_core = read_results("out-of-core-cpu.json")["figures"]
    times = "; ".join(
        f"{name}: {each['times']['mapped, by blocks']:.2f} times the time of memory mapped, "
        f"{each['times']['from disk, by blocks']:.2f} from disk"
        for name, each in out_of_core.items()
    )
    cpu, gpu = (read_results(f"large-graphs-{device}.json")["figures"]["softmax"]["20000"] for device in ("cpu", "gpu"))
    return [
        [
            "data larger than memory",
            f"{times}; ten times the memory allowed still trains",
            "`tests/reliability/out_of_core.py`, `pytest -m slow tests/data/test_mapped.py`",
        ],
        [
            "one graph of 20,000 nodes, a training step",
            f"{cpu['mib'] / 1024:.1f} GiB, {cpu['seconds']:.0f} s of one core; on an H200 {gpu['mib'] / 1024:.1f} GiB, "
            f"{gpu['seconds']:.2f} s",
            "`tests/reliability/large_graphs.py`",
        ],
    ]


def _row_of_soak() -> list[str]:
    soak, glibc = (read_results(f"{name}-cpu.json") for name in ("soak-jemalloc", "soak"))
    service, training = (soak["memory"][name]["growth_mib"] for name in ("serving", "training"))
    grown = glibc["memory"]["training"]["growth_mib"]
    unanswered = sum(count for status, count in soak["answers"].items() if status not in ("200", "400", "413", "422"))
    return [
        "an hour of training and serving",
        f"service {service:+.1f} MiB over {sum(soak['answers'].values()):,} requests, {unanswered or 'none'} answered "
        f"wrongly; training {training:+.0f} MiB, with jemalloc for glibc 2.36 (with that, {grown:+.0f}: see below)",
        "`LD_PRELOAD=libjemalloc.so tests/reliability/soak.py`",
    ]
