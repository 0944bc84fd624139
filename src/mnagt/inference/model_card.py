"""The model card of a model folder: Markdown for people, and metadata that the Hugging Face Hub reads."""

import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mnagt.graphs.features import Columns
from mnagt.version import __version__

if TYPE_CHECKING:
    from mnagt.inference.model_folder import TrainedModel


def render_card(trained: "TrainedModel") -> str:
    """What there is to know about a model, as Markdown (``model_card.md``). Whatever its origin lacks is left out."""
    from jinja2 import Environment, FileSystemLoader

    folder = FileSystemLoader(Path(__file__).parent)
    template = Environment(loader=folder, trim_blocks=True, finalize=_escape).get_template("model_card.md")
    inputs = "; ".join(_describe_columns(trained, kind) for kind in ("node", "edge"))
    metadata = "".join(f"{key}: {json.dumps(value)}\n" for key, value in _metadata(trained).items())
    text = template.render(trained=trained, inputs=inputs, version=__version__)
    return f"---\n{metadata}---\n{text.rstrip()}\n"


def _metadata(trained: "TrainedModel") -> dict[str, Any]:
    """The head of the card, by which the Hub lists and finds the model. JSON is YAML."""
    metadata: dict[str, Any] = {
        "library_name": "mnagt",
        "pipeline_tag": "graph-ml",
        "tags": ["graph-ml", trained.name],
    }
    scores = (trained.origin.get("result") or {}).get("test", {})
    metrics = [
        {"type": name, "value": value, "name": f"test {name}"} for name, value in scores.items() if math.isfinite(value)
    ]
    if metrics:
        dataset = str(trained.origin.get("dataset", "graphs in memory"))
        result = {"task": {"type": "graph-ml"}, "dataset": {"name": dataset, "type": dataset}, "metrics": metrics}
        metadata["model-index"] = [{"name": f"{trained.name} on {dataset}", "results": [result]}]
    return metadata


def _describe_columns(trained: "TrainedModel", kind: str) -> str:
    has: Columns = getattr(trained.model.features, f"{kind}s")
    labels, values = (trained.columns.get(f"{kind}_{what}", ()) for what in ("labels", "values"))
    parts = [f"{name} ({count} categories)" for name, count in zip(labels, has.labels, strict=False)]
    parts += [f"{name} (a number)" for name in values]
    if not parts and has:
        parts = [f"{len(has.labels)} categorical and {has.values} continuous columns"]
    return f"{kind}s: {', '.join(parts) or 'nothing'}"


def _escape(value: Any) -> str:
    """Text for a cell of a table: a name from a file may hold anything."""
    return re.sub(r"([\\`|\[\]])", r"\\\1", " ".join(str(value).split())).replace("<", "&lt;")
