"""A model card: what there is to know about a trained model, as Markdown beside its weights."""

from collections.abc import Mapping, Sequence
from typing import Any

from mnagt.graphs.features import Columns, Features
from mnagt.tasks import Task
from mnagt.version import __version__

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
    """The card of the model ``name``. Whatever ``origin`` lacks is left out."""
    dataset = origin.get("dataset", "graphs in memory")
    rows = {
        "predicts": task.describe(),
        "reads": "; ".join(_describe_columns(features, kind, columns) for kind in ("node", "edge")),
        "trained on": _describe_data(dataset, origin),
        "score": _score(origin),
        "date": origin.get("date", ""),
        "size": f"{parameters:,} parameters",
        "written by": f"mnagt {__version__}",
    }
    table = "\n".join(f"| {field} | {_cell(text)} |" for field, text in rows.items() if text)
    run = origin.get("run", {})
    scored = " The test part was scored once, at the epoch that validation chose." if rows["score"] else ""
    return (
        f"""# {name} on {_cell(dataset)}

A model of whole graphs.

| | |
| --- | --- |
{table}

## Use

```python
from mnagt import TrainedModel, load_dataset

model = TrainedModel.from_pretrained("the path of this folder")
graphs = load_dataset("my.jsonl", columns=model.columns or None)
print(model.predict(graphs))
```

or `mnagt predict FOLDER GRAPHS`: a file of graphs like those it was trained on, with the columns named above.

## Know before you trust it

It knows graphs like those it was trained on, and no others.{scored} Probabilities are the model's own unless
`calibration.json` is there.

The folder holds JSON and safetensors, nothing that could run. `model.safetensors` keeps a fingerprint of itself and of
`config.json`: mnagt refuses the model if either has changed.

## Settings

{_list_settings("Model", settings)}
{_list_settings("Training", run.get("train", {}))}
{_list_settings("Split", run.get("split", {}))}""".rstrip()
        + "\n"
    )


def _describe_columns(features: Features, kind: str, columns: Mapping[str, Sequence[str]]) -> str:
    has: Columns = getattr(features, f"{kind}s")
    labels, values = columns.get(f"{kind}_labels", ()), columns.get(f"{kind}_values", ())
    parts = [f"`{name}` ({count} categories)" for name, count in zip(labels, has.labels, strict=False)]
    parts += [f"`{name}` (a number)" for name in values]
    if not parts and has:
        parts = [f"{len(has.labels)} categorical and {has.values} continuous columns"]
    return f"{kind}s: {', '.join(parts) or 'nothing'}"


def _describe_data(dataset: str, origin: Mapping[str, Any]) -> str:
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


def _list_settings(title: str, settings: Mapping[str, Any]) -> str:
    if not settings:
        return ""
    return f"{title}: {', '.join(f'`{name}` {_cell(str(value))}' for name, value in settings.items())}.\n"


def _cell(text: str) -> str:
    """Text escaped for a cell of a table: a name from a file may hold anything."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")
