"""Several models that answer as one, and how far they agree."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mnagt.errors import InputError
from mnagt.tasks import Regression, Task, task_to_dict
from mnagt.training.model_folder import Graphs, Trained, load_model


@dataclass(frozen=True, eq=False)
class Ensemble(Trained):
    """Models that were asked the same, such as runs with different seeds. Probabilities and numbers are averaged.

    For all but its answers it stands for its first member.
    """

    members: tuple[Trained, ...] = ()

    @classmethod
    def of(cls, members: Sequence[Trained]) -> "Ensemble":
        first = members[0]
        for number, other in enumerate(members[1:], start=2):
            if _asked(other.task) != _asked(first.task):
                raise InputError(
                    f"an ensemble answers one question, and model {number} was asked another than the first; "
                    "choose models of the same data"
                )
        own = {field.name: getattr(first, field.name) for field in fields(Trained) if field.name != "calibration"}
        return cls(**own, members=tuple(members))

    @classmethod
    def load(cls, folders: Sequence[Path | str]) -> "Ensemble":
        """The models in these folders."""
        return cls.of([load_model(folder) for folder in folders])

    def outputs(
        self, graphs: Graphs, indices: Int[Tensor, "some"] | None = None, device: torch.device | str = "cpu"
    ) -> Float[Tensor, "some outputs"]:
        """Outputs that say what the members say on average, each calibrated if it has been."""
        return pooled(self.task, self._each(graphs, indices, device))

    def predict(
        self,
        graphs: Graphs,
        indices: Int[Tensor, "some"] | None = None,
        device: torch.device | str = "cpu",
        *,
        level: float | None = None,
    ) -> dict[str, list]:
        """As of one model, and in columns called 'spread' the deviation between the members."""
        each = self._each(graphs, indices, device)
        return self.answers(pooled(self.task, each), level) | spread(self.task, each)

    def _each(
        self, graphs: Graphs, indices: Int[Tensor, "some"] | None, device: torch.device | str
    ) -> Float[Tensor, "members some outputs"]:
        outputs = (member.tempered(member.outputs(graphs, indices, device)) for member in self.members)
        return torch.stack([_in_units_of(self.task, m.task, out) for m, out in zip(self.members, outputs, strict=True)])


def pooled(task: Task, each: Float[Tensor, "members some outputs"]) -> Float[Tensor, "some outputs"]:
    """Outputs whose probabilities, or numbers, are the means of the members'."""
    return task.said(task.belief(each.double()).mean(dim=0)).to(each.dtype)


def spread(task: Task, each: Float[Tensor, "members some outputs"]) -> dict[str, list]:
    """The deviation between members of each probability or number in the table of answers."""
    columns = [task.decode(output) for output in each]
    numbers = [name for name, values in columns[0].items() if not any(isinstance(value, str) for value in values)]
    return {
        f"spread {name}": torch.tensor([column[name] for column in columns]).std(dim=0, correction=0).tolist()
        for name in numbers
    }


def _asked(task: Task) -> dict:
    """What is asked, without what was taken from training targets."""
    return {name: value for name, value in task_to_dict(task).items() if name not in ("mean", "std", "weights")}


def _in_units_of(task: Task, other: Task, output: Float[Tensor, "some outputs"]) -> Float[Tensor, "some outputs"]:
    """Members may have learned numbers on scales of their own."""
    if not isinstance(task, Regression) or not isinstance(other, Regression) or task == other:
        return output
    values = torch.tensor(list(other.decode(output).values())).T
    return (values - torch.tensor(task.mean)) / torch.tensor(task.std)
