"""A model card: what there is to know about a trained model, as Markdown beside its weights (``model_card.md``)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mnagt.graphs.features import Columns, Features
from mnagt.tasks import Task
from mnagt.version import __version__


def render_card(
    name: str,
    settings: Mapping[str, Any],
    task: Task,
    features: Features,
    parameters: int,
    origin: Mapping[str, Any],
    columns: Mapping[str, Sequence[str]],
) -> str:
    """The card of the model ``name``. Whatever ``origin`` lacks is left out."""
    from jinja2 import Environment, FileSystemLoader

    folder = FileSystemLoader(Path(__file__).parent)
    template = Environment(loader=folder, trim_blocks=True, finalize=_escape).get_template("model_card.md")
    return (
        template.render(
            name=name,
            dataset=origin.get("dataset", "graphs in memory"),
            task=task,
            inputs="; ".join(_describe_columns(features, kind, columns) for kind in ("node", "edge")),
            parameters=parameters,
            origin=origin,
            run=origin.get("run", {}),
            result=origin.get("result"),
            settings=settings,
            version=__version__,
        ).rstrip()
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


def _escape(value: Any) -> str:
    """Text for a cell of a table: a name from a file may hold anything."""
    return " ".join(str(value).split()).replace("|", "\\|").replace("<", "&lt;")
