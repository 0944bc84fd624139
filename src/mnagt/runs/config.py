"""The settings of a run."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from mnagt.data.table_config import TableConfig
from mnagt.errors import InputError, quote
from mnagt.registry import TASK_CHOICES
from mnagt.settings import (
    Fraction,
    Ge,
    Gt,
    Le,
    NonNegativeFloat,
    NonNegativeInt,
    OneOf,
    PositiveInt,
    Settings,
    describe_fields,
)


@dataclass(frozen=True)
class TrainConfig(Settings):
    """Settings of training.

    >>> from dataclasses import replace
    >>> replace(TrainConfig(), epochs=30, ema_decay=0.99).epochs
    30
    """

    epochs: PositiveInt = 100
    """Passes over the training graphs."""
    batch_size: PositiveInt = 256
    """Graphs in a batch, which is one training step."""
    lr: NonNegativeFloat = 1e-3
    """Learning rate after the warm-up, its highest value."""
    weight_decay: NonNegativeFloat = 1e-5
    """Weight decay of AdamW; norms and biases have none."""
    schedule: Literal["cosine", "inverse-sqrt", "constant"] = "cosine"
    """Learning rate after the warm-up: cosine to zero, inverse-sqrt (the original Transformer's), or constant."""
    warmup: Fraction = 0.05
    """Share of all steps over which the learning rate rises from zero."""
    clip: NonNegativeFloat = 1.0
    """Largest norm of the gradient; 0 for no limit."""
    selection_window: PositiveInt = 10
    """Keep the epoch with the best mean validation score over this many epochs; a shorter run keeps its last."""
    patience: NonNegativeInt = 0
    """Stop early: end training once so many epochs in a row have brought no better score; 0 to train to the end."""
    metric: str = "auto"
    """Validation score that chooses the epoch; auto is the data set's own. Two classes: accuracy, rocauc, ap, mcc, f1,
    brier, ece; more: accuracy, mcc, macro_f1, brier, ece; labels: ap, rocauc, mcc, f1, brier, ece; numbers: rmse, mae,
    r2, spearman; classes and numbers together: loss, or one of a column, such as rmse(logP)."""
    train_share: Annotated[float, Gt(0), Le(1)] = 1.0
    """Share of the training graphs that is used, drawn at random: for learning curves."""
    ema_decay: Fraction = 0.0
    """Validate and keep an exponential moving average of the weights with this decay a step (0.99); 0 for none."""
    class_weights: bool = False
    """Weight the classes in the loss inversely to their frequency in the training part."""
    target_weights: tuple[float, ...] = ()
    """Weight of each target column in the loss, in the order of the columns; all the same by default."""
    target_transform: Literal["standardise", "log", "rank", "none"] = "standardise"
    """How target numbers are transformed for training: standardised values, those of the logarithm, normal scores of
    the ranks, or the values as they are. It is fitted to the training part, and predictions are transformed back."""
    uncertainty: Literal["none", "mean-variance", "quantile", "evidential"] = "none"
    """What is predicted in addition to each number: its standard deviation, by the likelihood of a normal distribution
    (mean-variance) or of evidence (evidential), or quantiles; intervals are then wider for some graphs than others."""
    label_smoothing: Fraction = 0.0
    """Share of each target that the loss spreads evenly over all classes; 0 for none."""
    init_from: str | None = None
    """Folder of another run whose weights training starts from (transfer), with its settings of the model; the head
    starts anew where the targets are others."""
    freeze: Literal["none", "encoder"] = "none"
    """What is not trained: with encoder, all but the head."""
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

    kind: Literal[
        "auto",
        "official",
        "random",
        "stratified",
        "group",
        "time",
        "scaffold",
        "random-scaffold",
        "scaffold-folds",
        "group-folds",
        "butina",
        "kmeans",
        "kennard-stone",
        "files",
    ] = "auto"
    """The official split, that the data set or a column of it brings; random; one fold of a stratified k-fold; at
    random with the groups that a column names kept together; by the times in a column, the last tested; molecules by
    scaffold, the rarest tested or drawn at random; folds of whole scaffolds or groups; by Butina or k-means clusters of
    fingerprints, or in the order of Kennard and Stone; or index files. auto is the official one where there is one, by
    scaffold for other tables of molecules, and else random."""
    seed: NonNegativeInt = 0
    """Seed of the split, apart from that of the run."""
    folds: Annotated[int, Ge(3)] = 10
    """Folds of a split of kind stratified, scaffold-folds or group-folds."""
    fold: NonNegativeInt = 0
    """The fold that tests; the one after it validates."""
    folder: str | None = None
    """Where the index files train, valid and test lie (.csv.gz, .csv or .txt, one graph index a line)."""
    column: str | None = None
    """The column that says the part of each graph (train, valid or test); with --split group its group, with --split
    time its date (2024-05-31) or a number."""
    clusters: PositiveInt = 20
    """Clusters of a k-means split."""
    cutoff: Fraction = 0.4
    """Largest Tanimoto distance of a molecule to the centre of its Butina cluster."""
    sizes: tuple[float, ...] = (0.8, 0.1, 0.1)
    """Shares of training, validation and test part, of a split that is computed; folds have their own."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, kinds in _KINDS_OF_FIELDS.items():
            if self.kind not in kinds and getattr(self, name) != describe_fields(SplitConfig)[name].default:
                raise InputError(f"split.{name} is for a split of kind {kinds[0]!r}, and this one is {self.kind!r}")
        if len(self.sizes) != 3 or min(self.sizes) <= 0:
            raise InputError(f"split.sizes are three shares above 0 (0.8,0.1,0.1), got {quote(self.sizes)}")


_KINDS_OF_FIELDS = {
    "fold": ("stratified", "scaffold-folds", "group-folds"),
    "folder": ("files",),
    "column": ("group", "group-folds", "time", "auto", "official"),
    "clusters": ("kmeans",),
    "cutoff": ("butina",),
    "sizes": (
        *("random", "auto", "official", "group", "time"),
        *("scaffold", "random-scaffold", "butina", "kmeans", "kennard-stone"),
    ),
}
"""Fields that only some kinds of splits have."""


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
    """Settings of training."""
    split: SplitConfig = SplitConfig()
    """Settings of the split."""
    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto takes a GPU if there is one."""
    smiles: str | None = None
    """Column of SMILES in a table of molecules, where it cannot be guessed; of several components, their columns, with
    commas between them."""
    targets: tuple[str, ...] | None = None
    """Columns to learn in a table or in graphs of your own, where they cannot be guessed."""
    task: Annotated[str, OneOf(TASK_CHOICES)] = "auto"
    """What the columns of a table ask for: a class, yes or no to each, numbers, numbers and bounds (>10), a number
    for each atom (node-regression) or each bond (edge-regression); auto goes by what they hold."""
    table: TableConfig = TableConfig()
    """Settings of reading a table of molecules."""
    by_data: tuple[str, ...] = ()
    """Settings that follow the data (``runs/defaults.py``): those that neither a recipe nor an option sets."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.table.valid or self.table.test) and self.split.kind not in ("auto", "official"):
            raise InputError(f"--valid and --test are the split; leave out --split {self.split.kind}")
