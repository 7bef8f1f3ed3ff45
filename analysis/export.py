"""Recorded runs as one table for other programs."""

from pathlib import Path

import msgspec

from adabench.analysis.load import load_frame
from adabench.results.record import RecordError
from adabench.results.store import SessionStore, write_atomically

FORMATS = ("csv", "parquet", "json")


def export_runs(store: SessionStore, form: str) -> Path:
    """Write every recorded run, including warm-ups and failures, into the session's folder.

    Parameters
    ----------
    store : SessionStore
        Session to export.
    form : str
        File format. ``csv`` and ``parquet`` have one column per field, names such as ``seconds.train`` for
        nested fields, and lists as JSON text. ``json`` has the unchanged records in one array.

    Raises
    ------
    RecordError
        If nothing is recorded, or parquet cannot be written here.
    """
    runs = store.runs()
    if not runs:
        raise RecordError(f"session {store.folder.name} has no runs to export")
    file = store.folder / f"runs.{form}"
    if form == "json":
        write_atomically(file, msgspec.json.format(msgspec.json.encode(runs), indent=1))
        return file
    frame = load_frame(store)
    for name in frame.columns:
        if frame[name].map(lambda value: isinstance(value, list | dict)).any():
            frame[name] = frame[name].map(lambda value: msgspec.json.encode(value).decode())
    if form == "csv":
        write_atomically(file, frame.to_csv(index=False).encode())
        return file
    write_atomically(file, frame.to_parquet(index=False))
    return file
