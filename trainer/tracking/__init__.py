"""MLflow as one more reader of the journal: a run and its epochs, or a sweep and its trials (design section 2).

    tracker = Tracker()                    # MLFLOW_TRACKING_URI, else SQLite below NML_HOME (~/.nml)
    fit(spec, directory, callbacks=[tracker])
    tracker.summary()["error"]             # None, or why something is missing

All that MLflow is told is on disk, so an outage costs nothing but time: a thread reads the journal, sends what MLflow
does not have yet, and tries again as long as the run goes on. What is missing at the end is sent by the next attempt of
the run, or by `python -m trainer.tracking DIRECTORY`, which also closes the MLflow run of a process that was killed.
Beside the journal a directory keeps only tracking.json: which MLflow run is its own, and whether that is closed.
"""

from trainer.tracking.address import tracking_uri, ui_command
from trainer.tracking.tracker import Tracker

__all__ = ["Tracker", "tracking_uri", "ui_command"]
