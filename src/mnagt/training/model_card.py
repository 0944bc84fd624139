"""A model card: what there is to know about a trained model, as Markdown beside its weights."""

from collections.abc import Mapping, Sequence
from typing import Any

from mnagt.graphs.features import Columns, Features
from mnagt.tasks import Task, task_to_dict
from mnagt.version import __version__

_SHOWN = 12
_PURPOSE = {"valid": "validate"}


def model_card(
    name: str,
    settings: Mapping[str, Any],
    task: Task,
    features: Features,
    parameters: int,
    origin: Mapping[str, Any],
    columns: Mapping[str, Sequence[str]],
) -> str:
    """The card of the model ``name``. ``origin`` may lack anything; what it does not tell is left out."""
    dataset = origin.get("dataset", "graphs in memory")
    rows = {
        "answers": _question(task),
        "reads": f"{_read(features.nodes, 'node', columns)}; {_read(features.edges, 'edge', columns)}",
        "trained on": _data(dataset, origin),
        "score": _score(origin),
        "date": origin.get("date", ""),
        "size": f"{parameters:,} parameters",
        "written by": f"mnagt {__version__}",
    }
    table = "\n".join(f"| {what} | {_cell(told)} |" for what, told in rows.items() if told)
    run = origin.get("run", {})
    judged = " The test part was scored once, at the epoch that validation chose." if rows["score"] else ""
    return (
        f"""# {name} on {_cell(dataset)}

A model of whole graphs.

| | |
| --- | --- |
{table}

## Use

```python
from mnagt import Trained, load_dataset

model = Trained.from_pretrained("the path of this folder")
graphs = load_dataset("my.jsonl", columns=model.columns or None)
print(model.predict(graphs))
```

or `mnagt predict FOLDER GRAPHS`: a file of graphs like those it was trained on, with the columns named above.

## Know before you trust it

It knows graphs like those it was trained on, and no others.{judged} Probabilities are the model's own unless
`calibration.json` is there.

The folder holds JSON and safetensors, nothing that could run. `model.safetensors` keeps a fingerprint of itself and of
`config.json`: mnagt refuses the model if either has changed.

## Settings

{_listed("Model", settings)}
{_listed("Training", run.get("train", {}))}
{_listed("Split", run.get("split", {}))}""".rstrip()
        + "\n"
    )


def _question(task: Task) -> str:
    told = task_to_dict(task)
    names = [str(each) for each in told.get("classes") or told.get("names") or told.get("words", ())]
    shown = ", ".join(f"`{each}`" for each in names[:_SHOWN]) + (
        f", ... ({len(names):,})" if len(names) > _SHOWN else ""
    )
    return f"{task.kind}: {shown}"


def _read(has: Columns, kind: str, columns: Mapping[str, Sequence[str]]) -> str:
    labels, values = columns.get(f"{kind}_labels", ()), columns.get(f"{kind}_values", ())
    told = [f"`{name}` ({count} categories)" for name, count in zip(labels, has.labels, strict=False)]
    told += [f"`{name}` (a number)" for name in values]
    if not told and has:
        told = [f"{len(has.labels)} categorical and {has.values} continuous columns"]
    return f"{kind}s: {', '.join(told) or 'nothing'}"


def _data(dataset: str, origin: Mapping[str, Any]) -> str:
    parts = origin.get("parts", {})
    sizes = ", ".join(f"{count:,} graphs to {_PURPOSE.get(part, part)}" for part, count in parts.items())
    split = origin.get("run", {}).get("split", {}).get("kind")
    return f"{dataset}: {sizes}{f' (split: {split})' if split else ''}" if sizes else ""


def _score(origin: Mapping[str, Any]) -> str:
    result = origin.get("result")
    if not result:
        return ""
    test = ", ".join(f"test {name} {score:.4f}" for name, score in result["test"].items())
    return f"{test} (validation {result['metric']} {result['valid']:.4f}, epoch {result['epoch']})"


def _listed(title: str, settings: Mapping[str, Any]) -> str:
    if not settings:
        return ""
    return f"{title}: {', '.join(f'`{name}` {_cell(str(value))}' for name, value in settings.items())}.\n"


def _cell(text: str) -> str:
    """Text that stays in its place: a name from a stranger's file may hold anything."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")
