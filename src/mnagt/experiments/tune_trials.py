"""Runs the trials of a search: settings are drawn by Optuna, trained with every seed, and scored by validation."""

import gc
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING, Any

import torch

from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError
from mnagt.experiments.tune_result import OUTCOME, START, TrialResult, read_trial
from mnagt.experiments.tune_space import Range, with_settings
from mnagt.experiments.tune_study import Search, allow_experimental, import_optuna
from mnagt.runs.config import RunConfig
from mnagt.runs.split import make_split
from mnagt.training.fit_model import fit_model
from mnagt.training.progress import Reporter
from mnagt.training.trainer import Interrupted

if TYPE_CHECKING:
    import optuna

COMPARISONS = 10
"""Times that a training is compared with earlier ones. Each is a write to a storage that all processes share."""
MIN_FINISHED = 5
"""Finished trials before any is pruned."""
POLL_SECONDS = 0.5
"""Time between looks at the trials of other processes, when there is nothing left to start."""


@dataclass(frozen=True)
class Budget:
    """How long a search goes on."""

    trials: int
    """Trials in all."""
    deadline: float = float("inf")
    """``time.time()`` after which no trial is started."""
    waits_for_others: bool = False
    """Stay until trials of other processes are over: one of them may be lost, and is then started again."""


class PruningReporter(Reporter):
    """Reports the score of a trial to the study, and prunes it when most earlier ones were ahead at the same epoch.

    Args:
        trial: The trial.
        score: Name of the score in the records of epochs.
        window: Number of last epochs whose mean is the score of a training.
        seeds: Number of trainings of the trial.
    """

    def __init__(self, trial: "optuna.Trial", score: str, window: int, seeds: int) -> None:
        self.trial, self.score, self.window, self.seeds = trial, score, window, seeds
        self.scores: list[float] = []
        """Of the trainings that are done."""
        self.epochs = 0
        """Epochs trained, all seeds together."""

    def begin(self, epochs: int, steps: int, history: list[dict[str, float]]) -> None:
        self._length, self._epoch_scores = epochs, []

    def epoch(self, record: Mapping[str, float], best: float | None) -> None:
        self._epoch_scores.append(record[self.score])
        self.epochs += 1
        done = len(self._epoch_scores)
        scores = [*self.scores, mean(self._epoch_scores[-self.window :])]
        if done == self._length:
            self.scores = scores
        is_due = done == self._length or done % max(1, self._length // COMPARISONS) == 0
        if len(self.scores) < self.seeds and is_due:
            self.trial.report(mean(scores), self.epochs)
            if self.trial.should_prune():
                raise import_optuna().TrialPruned


class TrialRunner:
    """Runs trials of ``search`` in this process, one after another."""

    def __init__(
        self, search: Search, dataset: PackedDataset, budget: Budget, should_stop: Callable[[], bool] = lambda: False
    ) -> None:
        self.search, self.dataset, self.budget, self.should_stop = search, dataset, budget, should_stop
        self.storage = search.connect()
        self.distributions = {name: _distribution(entry) for name, entry in search.space.items()}
        self.study = import_optuna().load_study(
            study_name=search.name,
            storage=self.storage,
            pruner=import_optuna().pruners.MedianPruner(MIN_FINISHED, n_warmup_steps=search.config.train.epochs // 4),
        )

    def ask(self) -> "optuna.Trial | None":
        """The next trial with its settings, or none if there is nothing left to start."""
        while time.time() < self.budget.deadline:
            if self.should_stop():
                raise Interrupted
            with self.search.lock(self.storage), allow_experimental():
                import_optuna().storages.fail_stale_trials(self.study)
                trials = self.study.get_trials(deepcopy=False)
                states = Counter(trial.state.name for trial in trials)
                over = states["COMPLETE"] + states["PRUNED"]
                if over + states["RUNNING"] < self.budget.trials:
                    self.study.sampler = self._sampler(trials)
                    trial = self.study.ask(self.distributions)
                    self.study._storage.record_heartbeat(trial._trial_id)
                    return trial
            if over >= self.budget.trials or not self.budget.waits_for_others:
                break
            time.sleep(POLL_SECONDS)
        return None

    def _sampler(self, trials: "list[optuna.trial.FrozenTrial]") -> "optuna.samplers.BaseSampler":
        """Seeded by the number that the next trial would have if none had been lost, or were waiting."""
        new = sum("tries" not in trial.user_attrs and "retry_history" not in trial.system_attrs for trial in trials)
        index = new - sum(trial.state.name == "WAITING" for trial in trials)
        seed = (self.search.config.train.seed * 1_000_003 + index) % 2**32
        return import_optuna().samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)

    def run(self) -> TrialResult | None:
        """Draw settings, train them with every seed, and store the result; none if there is nothing left to start."""
        trial = self.ask()
        if trial is None:
            return None
        optuna, search = import_optuna(), self.search
        metric, window = self.dataset.task.metric, search.config.train.selection_window
        reporter = PruningReporter(trial, f"valid_{metric}", window, search.seeds)
        score, reason = None, ""
        try:
            config = with_settings(search.config, trial.params)
            with optuna.storages._heartbeat.get_heartbeat_thread(trial._trial_id, self.study._storage):
                for number in range(search.seeds):
                    self.train(search.with_seed(config, number), reporter)
            score = mean(reporter.scores)
        except optuna.TrialPruned:
            pass
        except optuna.exceptions.UpdateFinishedTrialError:  # others had waited for a heartbeat long enough
            return read_trial(self.study.trials[trial.number])
        except InputError as error:
            if trial.user_attrs.get(START):
                raise
            reason = str(error)
        finally:
            if torch.cuda.is_initialized():  # a training holds on to itself, and to its place on the GPU
                gc.collect()
                torch.cuda.empty_cache()
        outcome = {"figures": reporter.scores, "epochs": reporter.epochs, "reason": reason}
        return self.tell(trial, score, outcome)

    def tell(self, trial: "optuna.Trial", score: float | None, outcome: dict[str, Any]) -> TrialResult:
        """Store the result of a trial, unless it was given up meanwhile."""
        states = import_optuna().trial.TrialState
        with self.search.lock(self.storage):
            if not self.study.get_trials(deepcopy=False)[trial.number].state.is_finished():
                trial.set_user_attr(OUTCOME, outcome)
            state = states.PRUNED if score is None else states.COMPLETE
            return read_trial(self.study.tell(trial, score, state, skip_if_finished=True))

    def train(self, config: RunConfig, reporter: Reporter) -> None:
        """Train on the training part and score the validation part after each epoch."""
        split = make_split(config.split, self.dataset)
        fit_model(config, self.dataset, split, reporter=reporter, should_stop=self.should_stop, with_forest=False)


def _distribution(entry: Range | tuple) -> "optuna.distributions.BaseDistribution":
    kinds = import_optuna().distributions
    if not isinstance(entry, Range):
        return kinds.CategoricalDistribution(entry)
    kind = kinds.IntDistribution if isinstance(entry.low, int) else kinds.FloatDistribution
    return kind(entry.low, entry.high, log=entry.log)
