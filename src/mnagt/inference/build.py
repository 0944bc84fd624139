"""Building a model from settings that may be wrong: without initial weights, and of bounded size."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from mnagt.errors import InputError
from mnagt.graphs.features import Features
from mnagt.models.registry import build_model
from mnagt.nn.graph_model import GraphModel
from mnagt.tasks.base import Level


def build_or_explain(
    name: str,
    settings: Mapping[str, Any],
    features: Features,
    outputs: int,
    level: Level = "graph",
) -> GraphModel:
    """As ``build_model``; where PyTorch refuses a setting or lacks memory, an error that names the model."""
    try:
        return build_model(name, settings, features, outputs, level)
    except InputError:
        raise
    except (ValueError, RuntimeError, MemoryError) as error:
        raise InputError(f"model {name}: {' '.join(str(error).split())}; change its settings") from error


@contextmanager
def parameters_up_to(most: int) -> Iterator[None]:
    """Within the block, building more parameters is an error: settings may ask for a million layers."""
    created = 0

    def count(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        nonlocal created
        created += 1
        if created > most:
            raise InputError("its settings ask for more weights than the file holds; restore it or train again")

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


class SkipInit(TorchFunctionMode):
    """Weights stay uninitialised. On the meta device ``normal_`` would import torch's compiler: a second."""

    SKIPPED = (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_, Tensor.normal_, Tensor.uniform_)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.SKIPPED:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))
