"""The tables of docs/reliability.md: what was done to break it, how often, and what came of it."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from figure_ledgers import NOTHING, RESULTS, format_table, read_results


class Row(NamedTuple):
    """What was tried, what came of it, and by which command."""

    what: str
    figure: str
    command: str


Content = Mapping[str, Any]
"""What a file under results/ holds."""


def build_reliability() -> str:
    """Rows for each file there is, with the version and the date that it names."""
    cells = []
    for file, make_rows in ROWS.items():
        if not (RESULTS / file).exists():
            continue  # not measured yet
        content = read_results(file)
        origin = f"{content['machine']['mnagt']}, {content['date'][:10]}"
        cells += [[row.what, row.figure, f"`{row.command}`", origin] for row in make_rows(content)]
    return format_table(["what", "figure", "command", "version, date"], cells)


def _make_crashes(crash: Content) -> list[Row]:
    kills, disks, races = (crash[name] for name in ("kills", "full disks", "races"))
    went_on = _count(disks, "went on without a cache")
    stopped = _count(disks, "stopped at")
    in_races = _count(races, "race for") + _count(races, "race with")
    phases = [(name.removeprefix("kill in "), count) for name, count in kills.items() if name.startswith("kill in ")]
    by_phase = ", ".join(f"{phase} {count}" for phase, count in phases)
    command = "tests/reliability/crash.py"
    return [
        Row(
            "killed by `kill -9`, resumed and compared",
            f"{crash['kills in all']} times ({by_phase}), {_format_wrong(kills, 'nothing lost')}",
            command,
        ),
        Row(
            "disk full, or files limited in size",
            f"{stopped + went_on} times: {stopped} stopped with the file named, {went_on} went on without a cache; "
            + _format_wrong(disks, "all went on to the same end"),
            command,
        ),
        Row(
            "races of four processes for a cache or a ledger",
            f"{in_races}, a process killed in {races.get('racer killed', 0)}; "
            + _format_wrong(races, "one result each"),
            command,
        ),
    ]


def _count(outcomes: Mapping[str, Any], text: str) -> int:
    return sum(count for name, count in outcomes.items() if text in name)


def _format_wrong(outcomes: Mapping[str, Any], otherwise: str) -> str:
    return f"{len(outcomes['wrong'])} of them wrong" if outcomes["wrong"] else otherwise


def _make_flips(flips: Content) -> list[Row]:
    noticed, harmless = (sum(each.get(what, 0) for each in flips["kinds"].values()) for what in ("noticed", "harmless"))
    figure = f"{flips['flips']:,} over {len(flips['kinds'])} kinds of files: {noticed:,} noticed, {harmless:,} "
    figure += f"harmless, {len(flips['silent']) or 'none'} silent"
    return [Row("one bit flipped in a file that is read", figure, "tests/reliability/bit_flips.py")]


def _make_fuzz(fuzz: Content) -> list[Row]:
    found = f"{len(fuzz['findings'])} findings" if fuzz["findings"] else "no crash, no traceback"
    refused = sum(each["refused"] for each in fuzz["readers"].values()) / fuzz["inputs"]
    slowest = max(each["slowest_seconds"] for each in fuzz["readers"].values())
    figure = f"{fuzz['inputs']:,} over {len(fuzz['readers'])} readers in {fuzz['seconds']:,.0f} s: {found}, at most "
    figure += f"{fuzz['most_mib']:,} MiB and {slowest:.1f} s for one; {100 * refused:.0f} % refused"
    return [Row("broken inputs read or refused", figure, "tests/reliability/fuzz.py")]


def _make_hostile(hostile: Content) -> list[Row]:
    statuses = hostile["statuses"]
    failed = sum(count for status, count in statuses.items() if status.startswith("5") and status != "503")
    grown = hostile["mib"]["after"] - hostile["mib"]["before"]
    figure = f"{hostile['requests']:,}: {failed or 'no'} status of the 500s but {statuses.get('503', 0)} times 503, "
    figure += f"{len(hostile['wrong']) or 'none'} answered wrongly, slowest {hostile['slowest_s']:.2f} s where "
    figure += f"{hostile['limit_s']:g} s are the limit, memory {grown:+.0f} MiB (load {hostile['machine']['load']:.0f})"
    return [Row("hostile requests", figure, "tests/reliability/hostile.py")]


def _make_rates(content: Content) -> list[Row]:
    names, rows = {"mnagt": "`mnagt serve`", "mlserver": "MLServer"}, []
    for server, rates in content["rates"].items():
        figure = "; ".join(f"{rate}: {_format_rate(each)}" for rate, each in rates.items())
        figure += f" (load before {content['load before']:.1f})"
        rows.append(Row(f"requests a second to {names[server]} on one core", figure, "benchmarks/serving_rates.py"))
    return rows


def _format_rate(found: Mapping[str, Any]) -> str:
    p99 = f"{found['p99_ms']:.0f} ms" if found["p99_ms"] else NOTHING
    return f"{found['answered_per_second']:.0f} answered, p99 {p99}"


def _make_ranks(content: Content) -> list[Row]:
    figures, command = content["figures"], "tests/reliability/ranks.py"
    gradients = {name: each["gradients"] for name, each in figures.items()}
    single = "; ".join(
        f"{name}: {each['float32']:.1e}, and one process {each['float32 of one process']:.1e} from float64"
        for name, each in gradients.items()
    )
    apart = max(each["float64"] for each in gradients.values())
    speeds = "; ".join(
        f"{name}: {each['1']:.0f} and {each['2']:.0f} ({each['2'] / each['1']:.2f} times as many)"
        for name, each in ((name, each["graphs_per_second"]) for name, each in figures.items())
    )
    busiest = "; ".join(
        f"{name}: {100 * (each['by_cost'] - 1):.1f} % more than the mean (divided by count "
        f"{100 * (each['by_count'] - 1):.0f} %)"
        for name, each in ((name, each["busiest_beside_mean"]["8"]) for name, each in figures.items())
    )
    return [
        Row(
            "gradients of two ranks compared with those of one process",
            f"{apart:.0e} of their norm apart in float64; in float32 {single}".replace("e-0", "e-"),
            command,
        ),
        Row("graphs a second with one and two ranks", speeds, command),
        Row("work of the busiest of eight ranks", busiest, command),
    ]


def _make_lost_node(trials: Content) -> list[Row]:
    lost, figures = trials["disturbed"], "same figures" if trials["same_figures"] else "figures differ"
    once = set(trials["ledger_lines"].values()) == {trials["trials"]}
    ledger = "each in the ledger once" if once else "not each in the ledger once"
    figure = f"noticed in {lost['noticed_s']:.2f} s, {lost['retried']:.0f} of {trials['trials']} trials begun anew, "
    figure += f"{ledger}, {figures}; {lost['wall_s']:.0f} s, {trials['undisturbed']['wall_s']:.0f} undisturbed"
    return [Row("a Ray node killed in the middle", figure, "tests/reliability/lost_node.py")]


def _make_lost_replica(service: Content) -> list[Row]:
    wrong, failed = service["outcomes"].get("wrong", 0), round(service["failed_share"] * service["requests"])
    figure = f"{service['requests']:,} requests at {service['per_second']:g} a second: {wrong or 'none'} answered "
    figure += f"wrongly, {failed or 'none'} failed; 95th percentile {service['p95_before_ms']:.0f} ms before the kill, "
    figure += f"{service['p95_after_ms']:.0f} after (load {service['machine']['load']:.0f})"
    return [Row("a Ray Serve node killed under load", figure, "tests/reliability/lost_replica.py")]


def _make_soak(soak: Content) -> list[Row]:
    parts = []
    for name in ("training", "serving"):
        memory, allocator = soak["memory"][name], soak["allocators"][name]
        growth = f"{memory['growth_mib']:+.0f} MiB on {memory['settled_mib']:,.0f}"
        parts.append(f"{name} with {allocator['name']} {growth}")
    faults = {status: count for status, count in soak["answers"].items() if status.endswith("wrong")}
    lost = sum(count for status, count in faults.items() if not status[0].isdigit())  # an exception of the client
    wrong = sum(faults.values()) - lost
    figure = f"{'; '.join(parts)}; {sum(soak['answers'].values()):,} requests, {wrong or 'none'} answered wrongly"
    figure += f", {lost} lost" * bool(lost)
    variable = "MNAGT_ALLOCATOR=system " if soak["allocators"]["training"]["name"] == "glibc" else ""
    command = f"{variable}tests/reliability/soak.py --minutes {soak['minutes']:g}"
    return [Row(f"{soak['minutes']:g} minutes of training and serving", figure, command)]


def _make_allocators(content: Content) -> list[Row]:
    figure = "; ".join(f"{name} {100 * each['cost']:+.1f} %" for name, each in content["models"].items())
    figure += f" (load before {content['load before']:.0f})"
    what = "processor time of training with jemalloc compared with glibc"
    return [Row(what, figure, "tests/reliability/allocators.py")]


def _refer(what: str, command: str) -> Callable[[Content], list[Row]]:
    """A row for what has a table of its own."""
    return lambda content: [Row(what, "see below", command)]


ROWS: dict[str, Callable[[Content], list[Row]]] = {
    "crash-cpu.json": _make_crashes,
    "bit-flips-cpu.json": _make_flips,
    "fuzz-cpu.json": _make_fuzz,
    "hostile-cpu.json": _make_hostile,
    "serving-rates-cpu.json": _make_rates,
    "soak-cpu.json": _make_soak,
    "soak-glibc-cpu.json": _make_soak,
    "allocators-cpu.json": _make_allocators,
    "ranks-cpu.json": _make_ranks,
    "lost-node-cpu.json": _make_lost_node,
    "lost-replica-cpu.json": _make_lost_replica,
    "threads-cpu.json": _refer("one thread and two", "tests/reliability/threads.py"),
    "out-of-core-cpu.json": _refer("data mapped from files", "tests/reliability/out_of_core.py"),
    "large-graphs-cpu.json": _refer("one large graph", "tests/reliability/large_graphs.py"),
    "large-graphs-gpu.json": _refer("the same on a GPU", "tests/reliability/large_graphs.py --device cuda"),
}


# --- tables of their own ---


def build_threads() -> str:
    """How far losses with one thread and with two are apart: a row for each learning rate."""
    rows = read_results("threads-cpu.json")["rows"]
    apart = {(row["precision"], row["epsilon"], row["lr"]): row["apart"] for row in rows}
    variants = list(dict.fromkeys((precision, epsilon) for precision, epsilon, _ in apart))
    names = [f"{precision}, epsilon {_format_power(epsilon)}" for precision, epsilon in variants]
    rates = list(dict.fromkeys(rate for _, _, rate in apart))
    cells = [[_format_power(rate), *(_format_apart(apart[*each, rate]) for each in variants)] for rate in rates]
    return format_table(["lr", *names], cells)


def _format_power(value: float) -> str:
    return f"{value:.0e}".replace("e-0", "e-")


def _format_apart(value: float) -> str:
    return "none" if value == 0 else f"{100 * value:.2g} %" if value >= 1e-4 else _format_power(value)


def build_out_of_core() -> str:
    """Times of an epoch from mapped data, as multiples of that from memory."""
    kinds = ("mapped", "mapped, by blocks", "from disk, by blocks")
    figures = read_results("out-of-core-cpu.json")["figures"]
    cells = [[name, *(f"{each['times'][kind]:.2f}" for kind in kinds)] for name, each in figures.items()]
    return format_table(["", "mapped", "shuffled by blocks", "every page dropped before it"], cells)


def build_large_graphs() -> str:
    """Memory and time of a training step on one graph, the largest that was tried."""
    kinds = {
        "softmax": "`mnagt`",
        "linear": "`--attention linear`",
        "linear, layers worked out again": "`--attention linear --activation-checkpointing true`",
    }
    rows = []
    for kind, name in kinds.items():
        for device, machine in (("cpu", "one core"), ("gpu", "H200")):
            sizes = read_results(f"large-graphs-{device}.json")["figures"].get(kind, {})
            for nodes in sorted(sizes, key=int)[-1:]:
                mib, seconds = sizes[nodes]["mib"], sizes[nodes]["seconds"]
                time = f"{seconds:.0f} s" if seconds >= 1 else f"{seconds:.2f} s"
                rows.append([f"{name}, {machine}", f"{int(nodes):,}", f"{mib / 1024:.1f} GiB", time])
    return format_table(["", "nodes", "memory", "time"], rows)
