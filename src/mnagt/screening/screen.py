"""Predictions for tables of molecules of any size: shard by shard, in many processes, resumable at any moment."""

import hashlib
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from mnagt.data.readers.molecule_reader import close_readers, shared_reader
from mnagt.data.readers.smiles import get_function
from mnagt.data.readers.text_table import Table
from mnagt.errors import InputError, join_names, quote
from mnagt.experiments.config import RayConfig
from mnagt.experiments.executors import run_parallel
from mnagt.files import hold_lock, make_folder, read_json, write_record
from mnagt.graphs.molecules import choose_row_format, find_molecule_format
from mnagt.inference.model_folder import TrainedModel
from mnagt.inference.predict import find_smiles_columns
from mnagt.inference.weights import CALIBRATION, CONFIG, DOMAIN, WEIGHTS
from mnagt.runs.folder import list_runs
from mnagt.screening.chunks import Chunk
from mnagt.screening.config import ScreenConfig
from mnagt.screening.inputs import InputFile, Shard, check_unchanged, cut_shards, find_inputs, scan_file
from mnagt.screening.outputs import BestRow, keep_best, name_type, write_best
from mnagt.screening.shards import Screen, load_once, predict_chunk, prepare_chunk, screen_shard
from mnagt.tasks.target_column import parse_number

PLAN, PROGRESS, BEST = "plan.json", "progress.json", "top.csv"
"""In the folder of the output: the plan, the shards that are finished, and the best rows."""
_SHARDS_PER_JOB = 4
"""Shards of each process at least, if there are enough rows, so that none waits long for the others."""
_SECONDS_BETWEEN_REPORTS = 5

_log = logging.getLogger(__name__)


@dataclass
class Progress:
    """The shards that are finished, and the best rows of them."""

    finished: dict[str, dict[str, int]] = field(default_factory=dict)
    """By the number of the shard: its rows, those without predictions, and the bytes of its file."""
    best: list[BestRow] = field(default_factory=list)

    def total(self, name: str) -> int:
        """The sum over the finished shards."""
        return sum(record[name] for record in self.finished.values())


@dataclass(frozen=True)
class Screening:
    """A screening that is finished."""

    files: int
    rows: int
    refused: int
    """Rows without predictions; the column ``note`` says why."""
    new_rows: int
    """Rows of this call; others were finished before."""
    seconds: float


def screen(
    model: Path | str,
    inputs: Sequence[Path | str],
    out: Path | str,
    config: ScreenConfig = ScreenConfig(),
    *,
    jobs: int | None = None,
    ray: RayConfig | None = None,
    device: str = "auto",
) -> Screening:
    """Predict for every row of tables of molecules of any size, in constant memory.

    The rows are divided into shards. Each is written to a file of ``out`` that appears whole or not at all. The same
    call goes on where another ended, by whatever cause; a shard that is finished is not done again.

    Args:
        model: The folder of a run, or of several (an ensemble).
        inputs: Files (.csv, .tsv, .smi, each also .gz; .parquet), folders of such files, and patterns.
        out: The folder of the output.
        config: The column of SMILES, the best rows to keep, the form of the output.
        jobs: Processes; one a CPU by default. Each has another one for RDKit.
        ray: Screen on this cluster, all nodes of which see the same files under the same paths.
        device: cpu, cuda, ...; auto takes a GPU if there is one.

    >>> from mnagt import screen
    >>> from mnagt.screening.config import ScreenConfig
    >>> screen("runs/mine", ["my.csv"], "screened", ScreenConfig(top_k=5, by="distance", lowest=True)).rows
    30
    """
    start, out, model = time.monotonic(), Path(out).resolve(), Path(model).resolve()
    jobs = jobs or count_cpus()
    make_folder(out)
    with ExitStack() as stack:
        stack.callback(close_readers)
        stack.enter_context(
            hold_lock(out / ".lock", f"{out}: another process screens into it; wait, or choose another folder (--out)")
        )
        trained = load_once(str(model), config.level is not None, device)
        if find_molecule_format(trained.model.features) is None:
            raise InputError(f"{model}: screened are molecules, and this model reads other graphs; use mnagt predict")
        fingerprint, paths = _digest_model(model), find_inputs([str(name) for name in inputs], out)
        if not (out / PLAN).exists():
            plan = _make_plan(trained, fingerprint, paths, out, config, jobs)
            write_record(out / PLAN, plan)
        with _explain_edits(out / PLAN):
            plan = read_json(out / PLAN)
            _check_plan(plan, out, fingerprint, paths, config)
            files, shards = _read_shards(plan)
            job = Screen(str(model), str(out), tuple(plan["smiles"]), plan["added"], config, device)
        with _explain_edits(out / PROGRESS):
            progress = _load_progress(job, shards)
        before = progress.total("rows")
        _screen_shards(job, shards, progress, jobs, ray)
    rows, refused = progress.total("rows"), progress.total("refused")
    return Screening(len(files), rows, refused, rows - before, time.monotonic() - start)


def count_cpus() -> int:
    """The CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _screen_shards(job: Screen, shards: Sequence[Shard], progress: Progress, jobs: int, ray: RayConfig | None) -> None:
    """Screen the shards that are left, and record each when it is written."""
    out, left = Path(job.out), [shard for shard in shards if str(shard.number) not in progress.finished]
    for file in {shard.file for shard in left}:
        check_unchanged(file)
    report = _Report(sum(shard.rows for shard in shards), progress.total("rows"))
    work, jobs = partial(screen_shard, job), min(jobs, max(1, len(left)))
    options = {"device": lambda shard: job.device, "kept": "finished shards are kept", "noun": "shard"}
    with run_parallel(work, left, jobs=jobs, ray=ray, **options) as outcomes:
        for shard, outcome in outcomes:
            record = outcome()
            progress.best = keep_best([*progress.best, *record.pop("best")], job.config)
            progress.finished[str(shard.number)] = record
            write_record(out / PROGRESS, asdict(progress))
            report.add(shard.rows)
    if job.config.top_k:
        write_best(out / BEST, progress.best, quotes_formulas=job.config.quote_formulas)
        if not progress.best:
            _log.warning("no row has a number in %s (--by): %s has only its header", quote(job.config.by or ""), BEST)


class _Report:
    """Logs how far the screening is, its rate and the time that is left."""

    def __init__(self, total: int, done: int) -> None:
        self.total, self.done, self.at_start = total, done, done
        self.start = self.last_report = time.monotonic()
        if done:
            _log.info("%s of %s rows are done already", f"{done:,}", f"{total:,}")

    def add(self, rows: int) -> None:
        self.done, now = self.done + rows, time.monotonic()
        if now - self.last_report > _SECONDS_BETWEEN_REPORTS:
            rate, self.last_report = (self.done - self.at_start) / (now - self.start), now
            left = timedelta(seconds=round((self.total - self.done) / rate))
            _log.info("%s of %s rows, %s a second, %s left", f"{self.done:,}", f"{self.total:,}", f"{rate:,.0f}", left)


# --- the plan: what was asked, and the shards ---


def _make_plan(
    trained: TrainedModel, fingerprint: str, paths: Sequence[Path], out: Path, config: ScreenConfig, jobs: int
) -> dict[str, Any]:
    """The settings of the screening, and how the files are cut into shards."""
    scanned, rows, last_report = [], 0, time.monotonic()
    for path in paths:
        scanned.append(scan_file(path))
        rows += scanned[-1][0].rows
        if time.monotonic() - last_report > _SECONDS_BETWEEN_REPORTS:
            last_report = time.monotonic()
            _log.info("%s rows in %d of %d files counted", f"{rows:,}", len(scanned), len(paths))
    files = [file for file, _ in scanned]
    for file in files[1:]:
        if file.columns != files[0].columns:
            raise InputError(
                f"{file.path}: its columns are {join_names(file.columns)}, and those of {files[0].path} "
                f"{join_names(files[0].columns)}; screen files with other columns by themselves"
            )
    table = Table(files[0].path, {name: [] for name in files[0].columns}, [])
    smiles = find_smiles_columns(table, trained, config.smiles)
    added = _find_added(trained, files[0].columns, smiles, config)
    shards = cut_shards(scanned, config.rows_per_shard, _SHARDS_PER_JOB * jobs)
    return {
        "model": fingerprint,
        "settings": asdict(config),
        "smiles": smiles,
        "added": added,
        "files": [asdict(file) for file in files],
        "shards": [[files.index(shard.file), shard.first, shard.rows, shard.offset] for shard in shards],
    }


def _find_added(
    trained: TrainedModel, columns: Sequence[str], smiles: Sequence[str], config: ScreenConfig
) -> dict[str, str]:
    """The columns that predictions add, found by predicting for methane, and their types."""
    row_format = choose_row_format(trained.model.features)
    methane = "[CH4:1]>>[CH4:1]" if row_format.is_reaction else "C"
    chunk = Chunk(0, {name: [methane if name in smiles else None] for name in columns}, {})
    prepared, job = prepare_chunk(trained, chunk, smiles), Screen("", "", tuple(smiles), {}, config, "cpu")
    with shared_reader() as reader:
        reader.send(prepared.texts, get_function(row_format))
        columns_of_methane = predict_chunk(trained, prepared, reader.receive(), job)
    added = {name: name_type(values) for name, values in columns_of_methane.items() if name not in columns}
    note = list(added)[-1]
    numbers = [name for name, values in columns_of_methane.items() if name != note and not _is_text(values[0])]
    if config.by is not None and config.by not in numbers:
        raise InputError(f"no column {quote(config.by)} of numbers (--by); there are: {join_names(numbers)}")
    return added | {note: "string"}


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and parse_number(value) is None


def _check_plan(
    plan: Mapping[str, Any], out: Path, fingerprint: str, paths: Sequence[Path], config: ScreenConfig
) -> None:
    """Refuse to go on with a screening that was begun with another model, other files or settings."""
    remedy = f"give what it was begun with, or choose another folder than {out} (--out)"
    if plan["model"] != fingerprint:
        raise InputError(f"the screening was begun with another model; {remedy}")
    settings = asdict(ScreenConfig()) | plan["settings"]  # of an older version, without those that were added since
    for name, value in asdict(config).items():
        if (old := settings[name]) != value:
            raise InputError(f"the screening was begun with {name} = {old!r}, and now it is {value!r}; {remedy}")
    begun, now = {file["path"] for file in plan["files"]}, {str(path) for path in paths}
    if differing := sorted(begun ^ now):
        verb = "is no longer among" if differing[0] in begun else "was not among"
        raise InputError(f"{differing[0]} {verb} the files of the screening; {remedy}")


def _read_shards(plan: Mapping[str, Any]) -> tuple[list[InputFile], list[Shard]]:
    files = [InputFile(**{**file, "columns": tuple(file["columns"])}) for file in plan["files"]]
    rows = enumerate(plan["shards"])
    return files, [Shard(number, files[file], *rest) for number, (file, *rest) in rows]


@contextmanager
def _explain_edits(path: Path) -> Iterator[None]:
    """An error for the user, where what is read from ``path`` has not the form in which a screening writes it."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError):
        raise InputError(
            f"{path}: not as a screening writes it; restore it, or choose another folder (--out)"
        ) from None


def _load_progress(job: Screen, shards: Sequence[Shard]) -> Progress:
    """What is finished, without shards whose files are gone or have another size."""
    path = Path(job.out) / PROGRESS
    progress = Progress(**read_json(path)) if path.exists() else Progress()
    numbers = {str(shard.number) for shard in shards}
    progress.finished = {number: record for number, record in progress.finished.items() if number in numbers}
    for shard in shards:
        written, record = job.path(shard), progress.finished.get(str(shard.number))
        if record and not (written.exists() and written.stat().st_size == record["bytes"]):
            _log.warning("%s is gone or was changed; its rows are predicted for again", written)
            del progress.finished[str(shard.number)]
            progress.best = [row for row in progress.best if row["shard"] != shard.number]
    return progress


def _digest_model(model: Path) -> str:
    """Of all files that predictions depend on."""
    digest = hashlib.blake2b(digest_size=16)
    for folder in dict.fromkeys([model, *list_runs(model)]):
        for name in (CONFIG, WEIGHTS, CALIBRATION, DOMAIN):
            digest.update((folder / name).read_bytes() if (folder / name).exists() else name.encode())
    return digest.hexdigest()
