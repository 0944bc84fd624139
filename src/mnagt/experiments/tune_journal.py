"""A journal file of Optuna with heartbeats, which Optuna itself has for databases only."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages._heartbeat import BaseHeartbeat
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState


class HeartbeatJournal(JournalStorage, BaseHeartbeat):
    """A trial is stale when its heartbeat has not changed for ``grace_period`` seconds by the clock of this process.

    Clocks of machines differ, so what counts is how long this process has seen the same heartbeat.

    Args:
        path: The journal file.
        interval: Seconds between heartbeats.
        grace_period: Seconds without one after which a trial is stale.
        on_stale: Called with the study and each stale trial.
    """

    def __init__(
        self, path: Path, *, interval: int, grace_period: float, on_stale: Callable[[optuna.Study, Any], None]
    ) -> None:
        super().__init__(JournalFileBackend(str(path)))
        self._interval, self._grace_period, self._on_stale = interval, grace_period, on_stale
        self._last_change: dict[int, tuple[Any, float]] = {}

    def record_heartbeat(self, trial_id: int) -> None:
        with suppress(optuna.exceptions.UpdateFinishedTrialError):  # another process has failed it meanwhile
            self.set_trial_system_attr(trial_id, "heartbeat", time.time())

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        running = self.get_all_trials(study_id, deepcopy=False, states=(TrialState.RUNNING,))
        now, before = time.monotonic(), self._last_change
        beats = {trial._trial_id: trial.system_attrs.get("heartbeat") for trial in running}
        self._last_change = {
            trial: before[trial] if trial in before and before[trial][0] == beat else (beat, now)
            for trial, beat in beats.items()
        }
        return [trial for trial, (_, since) in self._last_change.items() if now - since > self._grace_period]

    def get_heartbeat_interval(self) -> int:
        return self._interval

    def get_heartbeat_stale_trial_callback(self) -> Callable[[optuna.Study, Any], None]:
        return self._on_stale
