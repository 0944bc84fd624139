"""The settings of a run."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from mnagt.errors import InputError
from mnagt.settings import Fraction, Ge, NonNegativeFloat, NonNegativeInt, PositiveInt, Settings


@dataclass(frozen=True)
class TrainConfig(Settings):
    """Settings of training.

    >>> from dataclasses import replace
    >>> replace(TrainConfig(), epochs=30, ema_decay=0.99).epochs
    30
    """

    epochs: PositiveInt = 100
    """Times that every training graph is seen."""
    batch_size: PositiveInt = 256
    """Graphs in a step."""
    lr: NonNegativeFloat = 1e-3
    """Highest learning rate."""
    weight_decay: NonNegativeFloat = 1e-5
    """Decay of weights (AdamW); norms and biases are spared."""
    schedule: Literal["cosine", "inverse-sqrt", "constant"] = "cosine"
    """Learning rate after the warm-up: cosine to zero, inverse-sqrt (the original Transformer's), or constant."""
    warmup: Fraction = 0.05
    """Share of all steps over which the learning rate rises from zero."""
    clip: NonNegativeFloat = 1.0
    """Largest norm of the gradient; 0 for no limit."""
    selection_window: PositiveInt = 10
    """Keep the epoch with the best mean validation score over this many epochs; a shorter run keeps its last."""
    ema_decay: Fraction = 0.0
    """Validate and keep an exponential moving average of the weights with this decay a step (0.99); 0 for none."""
    class_weights: bool = False
    """Weight the classes in the loss inversely to their frequency in the training part."""
    label_smoothing: Fraction = 0.0
    """Share of each target that the loss spreads evenly over all classes; 0 for none."""
    precision: Literal["auto", "fp32", "tf32", "bf16"] = "auto"
    """Arithmetic of products: fp32, tf32 (fp32 that a GPU multiplies with 10 bits), bf16 (throughout; fastest on
    a GPU); auto is tf32 on a GPU, fp32 on a CPU."""
    cuda_graphs: Literal["auto", "never"] = "auto"
    """Capture the training step as a CUDA graph and replay it: auto does so on a GPU with Triton."""
    activation_checkpointing: bool = False
    """Compute layers again in the backward pass instead of keeping their activations: less memory, more time."""
    seed: NonNegativeInt = 0
    """Seed of weights, order and dropout."""
    checkpoint_seconds: Annotated[float, Ge(0)] = 30.0
    """Longest time between two checkpoints; 0 for one every step."""


@dataclass(frozen=True)
class SplitConfig(Settings):
    """How graphs are split into training, validation and test part.

    >>> SplitConfig("stratified", folds=5, fold=2).kind
    'stratified'
    """

    kind: Literal["auto", "official", "random", "stratified", "group", "scaffold", "files"] = "auto"
    """The official split, that the data set brings; random 8:1:1; one fold of a stratified k-fold; 8:1:1 with the
    groups that a column names kept together; molecules by their scaffold; or index files. auto is the official one
    where there is one, else random."""
    seed: NonNegativeInt = 0
    """Seed of the split, apart from that of the run."""
    folds: Annotated[int, Ge(3)] = 10
    """Folds of a stratified split."""
    fold: NonNegativeInt = 0
    """The fold that tests; the one after it validates."""
    folder: str | None = None
    """Where the index files train, valid and test lie (.csv.gz, .csv or .txt, one graph index a line)."""
    column: str | None = None
    """The column whose values are the groups, of a split by groups."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, kind in (("fold", "stratified"), ("folder", "files"), ("column", "group")):
            if self.kind != kind and getattr(self, name):
                raise InputError(f"split.{name} is for a split of kind {kind!r}, and this one is {self.kind!r}")


@dataclass(frozen=True)
class RunConfig(Settings):
    """Settings of a run: data set, model, training and split.

    >>> config = RunConfig("MUTAG", "gin", {"dim": 32}, TrainConfig(epochs=30))
    >>> config.split.kind
    'auto'
    """

    dataset: str = ""
    """Name of a data set, or path of one: in TU layout, in OGB's, a table of molecules, or graphs of your own."""
    model: str = "mnagt"
    """Name of a model."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the model that differ from its defaults."""
    train: TrainConfig = TrainConfig()
    split: SplitConfig = SplitConfig()
    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto takes a GPU if there is one."""
    smiles: str | None = None
    """Column of SMILES in a table of molecules, where it cannot be guessed."""
    targets: tuple[str, ...] | None = None
    """Columns to learn in a table or in graphs of your own, where they cannot be guessed."""
    task: Literal["auto", "single-label", "multi-label", "regression"] = "auto"
    """What the columns of a table ask for: a class, yes or no to each, or numbers; auto goes by what they hold."""
