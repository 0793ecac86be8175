"""A Parquet table of embeddings (id, vector, label) as CSV or as npz, row group by row group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from trainer.errors import InvalidInput
from trainer.files.atomic import write_atomically

ROWS = 16_384  # at a time


def write_csv(table: Path, out: Path) -> None:
    """Columns id, label if there is one, and v0, v1, …: a number each."""
    import pyarrow as pa
    import pyarrow.csv as pacsv
    import pyarrow.parquet as pq

    def batches(file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
        for batch in file.iter_batches(batch_size=ROWS):
            vectors = batch.column("vector").flatten().to_numpy().reshape(len(batch), -1)
            columns = {"id": batch.column("id")}
            if "label" in batch.schema.names:
                columns["label"] = batch.column("label")
            columns |= {f"v{j}": pa.array(column) for j, column in enumerate(vectors.T)}
            yield pa.RecordBatch.from_pydict(columns)

    def write(temporary: Path) -> None:
        with pq.ParquetFile(table) as file:
            rows = batches(file)
            first = next(rows)
            with pacsv.CSVWriter(temporary, first.schema) as writer:
                writer.write(first)
                for batch in rows:
                    writer.write(batch)

    _written(out, write)


def write_npz(table: Path, out: Path) -> None:
    """Arrays ids, vectors (float32) and, if there are labels, labels. In memory."""
    import numpy as np
    import pyarrow.parquet as pq

    found = pq.read_table(table)
    ids = found["id"].to_numpy()
    ids = ids.astype(np.str_) if ids.dtype == object else ids
    arrays = {"ids": ids, "vectors": np.stack(found["vector"].to_numpy())}
    if "label" in found.column_names:  # as text; empty where there is none
        arrays["labels"] = np.array(["" if name is None else str(name) for name in found["label"].to_pylist()])

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)

    _written(out, write)


def _written(out: Path, write: Callable[[Path], None]) -> None:
    try:
        write_atomically(out, write)
    except OSError as error:
        raise InvalidInput(f"{out}: cannot be written ({error.strerror}). Name another file.") from error
