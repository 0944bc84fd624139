"""Tasks: what is predicted for each graph. A new task is a class and a line in ``TASKS``."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from mnagt.errors import InputError
from mnagt.registry import TASK_CHOICES, add_entry, lookup
from mnagt.tasks.base import NO_CLASS, IntervalCoverage, Suggestion, Task
from mnagt.tasks.censored import CensoredRegression
from mnagt.tasks.columns import MultiLabel
from mnagt.tasks.evidential import Evidential
from mnagt.tasks.explained_output import ExplainedOutput
from mnagt.tasks.list_regression import EdgeRegression, NodeRegression
from mnagt.tasks.mean_variance import MeanVariance
from mnagt.tasks.mixed import Mixed
from mnagt.tasks.quantile import QuantileRegression
from mnagt.tasks.regression import Regression
from mnagt.tasks.single_label import SingleLabel
from mnagt.tasks.sub_tokens import END, UNKNOWN, SubTokens, word_key, word_keys
from mnagt.tasks.unlabelled import Unlabelled

__all__ = [
    "END",
    "NO_CLASS",
    "TASKS",
    "UNCERTAINTIES",
    "UNKNOWN",
    "CensoredRegression",
    "EdgeRegression",
    "Evidential",
    "ExplainedOutput",
    "IntervalCoverage",
    "MeanVariance",
    "Mixed",
    "MultiLabel",
    "NodeRegression",
    "QuantileRegression",
    "Regression",
    "SingleLabel",
    "SubTokens",
    "Suggestion",
    "Task",
    "Unlabelled",
    "register_task",
    "task_from_dict",
    "task_to_dict",
    "word_key",
    "word_keys",
]

TASKS: dict[str, type[Task]] = {
    task.kind: task
    for task in (
        *(SingleLabel, MultiLabel, Regression, CensoredRegression, NodeRegression, EdgeRegression),
        *(MeanVariance, QuantileRegression, Evidential),
        *(Mixed, SubTokens, Unlabelled),
    )
}
"""Tasks by kind. ``register_task`` adds one."""
UNCERTAINTIES: dict[str, type[Task]] = {task.kind: task for task in (MeanVariance, QuantileRegression, Evidential)}
"""What the setting ``uncertainty`` may be, beside none: tasks that tell how uncertain each number is."""


def register_task(kind: str) -> Callable[[type[Task]], type[Task]]:
    """Decorate a task of one's own, a frozen dataclass with ``kind`` as its class attribute.

    Models are saved with it, and the setting ``task`` takes its name if its targets can be read from columns.

    >>> from dataclasses import dataclass
    >>> from mnagt import register_task
    >>> @register_task("ranking")
    ... @dataclass(frozen=True)
    ... class Ranking(Regression):
    ...     kind = "ranking"
    >>> task_from_dict(task_to_dict(Ranking(("score",)))).kind
    'ranking'
    >>> del TASKS["ranking"], TASK_CHOICES[-1]
    """

    def add(task: type[Task]) -> type[Task]:
        add_entry(TASKS, kind, task, "task")
        if task.is_parsable and kind not in TASK_CHOICES:
            TASK_CHOICES.append(kind)
        return task

    return add


def task_to_dict(task: Task) -> dict[str, Any]:
    """The kind and the fields of a task, as files hold them.

    >>> task_to_dict(MultiLabel(("toxic",)))
    {'kind': 'multi-label', 'names': ('toxic',), 'target_weights': (), 'metric': 'ap', 'weights': ()}
    """
    content = {field.name: getattr(task, field.name) for field in fields(task)}  # type: ignore[arg-type]
    if "tasks" in content:  # of the columns of a ``Mixed`` task
        content["tasks"] = tuple(map(task_to_dict, content["tasks"]))
    return {"kind": task.kind, **content}


def task_from_dict(content: dict[str, Any]) -> Task:
    """The task that ``task_to_dict`` wrote.

    >>> task_from_dict({"kind": "regression", "names": ["weight"]}).num_outputs
    1
    """
    kind = content.get("kind", "")
    task = lookup(TASKS, kind, "task")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in content.items()}
    del values["kind"]
    if "tasks" in values:
        values["tasks"] = tuple(map(task_from_dict, values["tasks"]))
    try:
        return task(**values)
    except TypeError as error:
        raise InputError(f"task {kind!r}: {error}; it was written by another version of mnagt") from None
