"""The tables of what was timed, made from the files under results/."""

from figure_ledgers import NOTHING, format_table, read_results

HEAD = ["what", "`mnagt`", "compared with, in the same run", "ratio"]


def format_ratio(ratio: float) -> str:
    return f"{ratio:.0f}x" if ratio >= 9.95 else f"{ratio:.1f}x"


def format_ms(value: float) -> str:
    return f"{value:.0f}\N{NO-BREAK SPACE}ms" if value >= 9.95 else f"{value:.1f}\N{NO-BREAK SPACE}ms"


def build_speed() -> str:
    """The same precision on both sides."""
    return format_table(HEAD, list_speeds())


def build_speed_short() -> str:
    """README: of these the first on a GPU, and the ones with the smallest ratios."""
    rows = list_speeds()
    return format_table(HEAD, [*rows[:4], rows[6], rows[-1]])


def list_speeds() -> list[list[str]]:
    rows = []
    cpu, gpu = read_results("epoch-cpu.json")["epochs"], read_results("epoch-gpu.json")["epochs"]
    for data, of in cpu.items():
        ours, padded = (of["variants"][name]["ms"] for name in ("mnagt", "padded"))
        what = f"training step, {of['batch_size']} {data} graphs, 2 CPU cores, fp32"
        rows.append([what, format_ms(ours), f"same model, padded: {format_ms(padded)}", format_ratio(padded / ours)])
    for data, of in gpu.items():
        ours = of["variants"]["in tf32"]["ms"]
        for peer, words in {"padded": "same model, padded", "gps": "`GPSConv`"}.items():
            theirs = of["variants"][peer]["ms"]
            what = f"training step, {of['batch_size']} {data} graphs, one H200, tf32"
            rows.append([what, format_ms(ours), f"{words}: {format_ms(theirs)}", format_ratio(theirs / ours)])
    for data, of in read_results("attention-gpu.json")["attention"].items():
        if data in ("NCI1", "pypi_ast"):
            ours, theirs = of["ours, us"], of["flex, us"]
            what = f"attention alone, {data}, forward and backward, one H200, bf16"
            rows.append([what, f"{ours:.0f} µs", f"`flex_attention`: {theirs:.0f} µs", format_ratio(theirs / ours)])
    models = read_results("models-cpu.json")["models"]
    for name in ("gin", "gat"):
        ours, theirs = models[name]["ours, s"], models[name]["peer, s"]
        what = f"epoch of {name.upper()} on NCI1, 2 CPU cores, fp32"
        rows.append([what, f"{ours:.2f} s", f"PyTorch Geometric: {theirs:.2f} s", f"{theirs / ours:.2f}x"])
    return rows


def build_speed_more() -> str:
    """docs: everything else that is timed, with the script that did it."""
    batch, attention, rows = read_results("batching-cpu.json"), read_results("attention-cpu.json"), []
    for data, of in batch["batches"].items():
        ours, pyg, lean = of["mnagt, ms"], of["pyg, ms"], of["pyg, lean, ms"]
        other = f"PyTorch Geometric's `DataLoader` {pyg:.1f} ms; over a plain list with our columns {lean:.1f} ms"
        rows.append(
            [
                f"batch of {256 if data == 'NCI1' else 64} {data} graphs",
                f"{ours:.2f} ms",
                other,
                f"{format_ratio(pyg / ours)}; {format_ratio(lean / ours)}",
                "`batching.py`",
            ]
        )
    for data, of in attention["attention"].items():
        ours, padded = of["mnagt, ms"], of["padded, ms"]
        memory = [f"{of[f'{who}, peak MiB']:.0f} MiB" for who in ("mnagt", "padded")]
        rows.append(
            [
                f"attention, forward and backward, {data}, one thread",
                f"{format_ms(ours)}, {memory[0]}",
                f"padded SDPA {format_ms(padded)}, {memory[1]}",
                format_ratio(padded / ours),
                "`attention.py`",
            ]
        )
    rows += _rows_of_reading() + _rows_of_service()
    return format_table(["what", "`mnagt`", "compared with, in the same run", "ratio", "in `benchmarks/`"], rows)


def _rows_of_reading() -> list[list[str]]:
    reading, smiles, rows = read_results("reading-cpu.json"), read_results("smiles-cpu.json"), []
    ours, pyg, cached = (reading["readers"][name] for name in ("mnagt", "pyg", "mnagt, from the cache"))
    rows.append(
        [
            "reading COLLAB.zip",
            f"{ours['seconds']:.1f} s, {ours['peak_gib']:.1f} GiB; {cached['seconds']:.2f} s from the cache",
            f"PyTorch Geometric {pyg['seconds']:.1f} s, {pyg['peak_gib']:.1f} GiB",
            format_ratio(pyg["seconds"] / ours["seconds"]),
            "`reading.py`",
        ]
    )
    ours, pyg = (
        smiles["readers"]["mnagt, 2 processes"]["per_second"],
        smiles["readers"]["pyg from_smiles"]["per_second"],
    )
    rows.append(
        [
            "SMILES to graphs, 2 processes against 1",
            f"{ours:,.0f} a second",
            f"PyTorch Geometric's `from_smiles` {pyg:,.0f} a second",
            format_ratio(ours / pyg),
            "`smiles.py`",
        ]
    )
    return rows


def _rows_of_service() -> list[list[str]]:
    serving, imports, rows = read_results("serving-cpu.json"), read_results("imports-cpu.json"), []
    rows.append(
        [
            "`mnagt serve`, 50 requests a second, 95th percentile",
            f"{format_ms(serving['load']['p95_ms'])}; ONNX {format_ms(serving['load_onnx']['p95_ms'])}",
            NOTHING,
            NOTHING,
            "`serving.py`",
        ]
    )
    ours, torch = (imports["cpu_seconds"][name] for name in ("from mnagt import train", "import torch"))
    rows.append(
        [
            "`from mnagt import train`, CPU time",
            f"{ours:.2f} s",
            f"`import torch` alone {torch:.2f} s",
            f"{ours / torch:.2f} times",
            "`imports.py`",
        ]
    )
    return rows


def build_conv_gpu() -> str:
    """docs: a training step with ``MNAGTConv``, eager and captured, beside one with ``GPSConv``."""
    found = read_results("conv-captured-gpu.json")
    fp32, tf32 = (found[steps]["256"] for steps in ("steps", "steps in tf32"))

    def describe(of: dict[str, float]) -> list[str]:
        return [f"{of['ms']:.0f} ms", format_ratio(of["speed_up"]), f"{of['peak MiB']:.0f} MiB"]

    names = {
        "gps": "`GPSConv`, eager",
        **{name: f"`MNAGTConv`{name.removeprefix('mnagt')}" for name in fp32 if name != "gps"},
    }
    rows = [[shown, *describe(fp32[name]), *describe(tf32[name])] for name, shown in names.items()]
    return format_table(["", "fp32", "speed-up", "memory", "tf32", "speed-up", "memory"], rows)


def build_speed_gpu() -> str:
    """docs: the attention kernels alone, and memory, on one H200."""
    rows = []
    for data, of in read_results("attention-gpu.json")["attention"].items():
        ours = of["ours, us"]
        peers = [
            f"{of[f'{name}, us']:.0f} µs ({format_ratio(of[f'{name}, us'] / ours)})"
            for name in ("padded", "flex", "varlen")
        ]
        rows.append([data, f"{ours:.0f} µs", *peers, f"{ours / of['floor, us']:.1f}"])
    head = [
        "forward and backward, bf16",
        "`mnagt`",
        "padded SDPA",
        "`flex_attention`",
        "FlashAttention varlen",
        "ours over the time to move the bytes",
    ]
    memory = []
    for data, of in read_results("epoch-gpu.json")["epochs"].items():
        cells = [
            f"{of['variants'][name]['MiB']:.0f} MiB" for name in ("recomputed", "mnagt", "in tf32", "padded", "gps")
        ]
        memory.append([f"training step, {of['batch_size']} {data} graphs", *cells])
    heads = [
        "peak memory",
        "`mnagt`, bf16, activation checkpointing",
        "`mnagt`, bf16",
        "`mnagt`, tf32",
        "same model, padded, tf32",
        "`GPSConv`, tf32",
    ]
    return f"{format_table(head, rows)}\n\n{format_table(heads, memory)}"


def build_screening() -> str:
    """What a molecule takes from SMILES to predictions, and a billion on paper."""
    rows = []
    variants = read_results("screening-cpu.json")["variants"]
    for name, of in sorted(variants.items(), key=lambda pair: pair[1]["processor_us"]):
        command, _, model = name.partition(", ")
        took = f"{of['processor_us']:,.0f} µs"
        days = f"{of['days_for_a_billion']:,.1f}"
        rows.append([f"`{command}`, {model}" if model else name, took, f"{of['per_second_on_two_cores']:,.0f}", days])
    return format_table(["", "processor, a molecule", "molecules a second, two cores", "days of a core, 10⁹"], rows)
