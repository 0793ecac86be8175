"""Published embeddings by node id: `client.vectors`. numpy arrays in and out; vectors are sent as raw float32.

vectors = client.vectors.lookup("latest", [42, "p-991"]).vectors                  # [2, dim]
found = client.vectors.neighbors("latest", ids=[42], k=10)                        # found.ids[0], found.scores[0]
client.vectors.download("latest", "vectors.npy")                                  # resumes where it was cut
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import httpx

from service.client import _embedding_documents as _read
from service.client._batches import ask_in_parts, id_sizes, row_sizes
from service.client._documents import Job, job_from
from service.client._downloads import Progress, save
from service.client._embedding_documents import Alias, Classified, Embedded, Lookup, Neighbors, NodeId, Version
from service.client._errors import ApiError, JobFailed
from service.client._paths import LONGEST_QUOTED, can_be_in_query, pages, path_of, quoted, segment
from service.client._payloads import (
    ARROW,
    JSON,
    NPY,
    accepting,
    array_from,
    as_json,
    as_npy,
    columns_from,
    matrix,
    node_ids,
    version_of,
)
from service.client._scores import EMBEDDINGS, PATIENT, ScoreQuestions
from service.client._session import Session, polls
from trainer.errors import Infrastructure, InvalidInput

if TYPE_CHECKING:
    import numpy as np

    Floats = np.ndarray[Any, np.dtype[np.float32]]

LOOKUP_IDS = 10_000  # the service takes so many at a time; more are asked for in parts
QUERIES = 1_000
PREDICTED = 100_000
_ALIASES = "v1/aliases"


class Embeddings(ScoreQuestions):
    """Published embeddings of one service.

    `ref` is a version (the id of the training job it comes from) or an alias, such as `latest` or `latest.DATASET`. An
    answer is always of one version, and says which. Node ids are the user's own; 42 and "42" are the same.
    """

    def __init__(self, session: Session):
        self._session = session

    # Versions

    def get(self, ref: str) -> Version:
        """All about a version."""
        return _read.version_from(self._session.document("GET", path_of(EMBEDDINGS, ref)))

    def list(self, dataset: str | None = None, *, limit: int | None = None) -> Iterator[Version]:
        """Versions, newest first; of one data set, by name or reference, if given."""
        return map(_read.version_from, pages(self._session, EMBEDDINGS, {"dataset": dataset}, limit))

    def publish(self, job: str | Job) -> Version:
        """Publish the embeddings of a job that has succeeded. Usually done by itself; a failed one is tried again."""
        name = job.id if isinstance(job, Job) else job
        return _read.version_from(self._send("POST", EMBEDDINGS, {"job": segment(name)}))

    def wait(self, job: str | Job | Version, timeout: float | None = None) -> Version:
        """The version that a training job makes, once it is ready.

        Raises:
            JobFailed: training or publishing failed; says why.
            TimeoutError: it is not ready within `timeout` seconds. It goes on.
        """
        name = job if isinstance(job, str) else job.id if isinstance(job, Job) else job.version
        trained = False
        for _ in polls(timeout):
            try:
                found = self.get(name)
                if found.state == "ready":
                    return found
                if found.state in ("failed", "damaged"):
                    what = "damaged" if found.state == "damaged" else "not published"
                    raise JobFailed(found.version, "infra", f"{what}: {found.failure or 'no reason given'}")
            except ApiError as error:
                if error.status != httpx.codes.NOT_FOUND or trained:
                    raise
                trained = self._has_trained(name, error)  # then its version exists by the next poll, or never will
        raise TimeoutError(f"the embeddings of {name} are not ready after {timeout:g} s")

    def delete(self, version: str) -> None:
        """Remove a version and its files; refused while somebody's alias points to it."""
        self._session.delete(path_of(EMBEDDINGS, version))

    def build_index(self, ref: str, kind: Literal["hnsw", "ivf"] = "hnsw") -> Version:
        """Have a search index built in the background; one that is there stays."""
        version = self.get(ref).version
        return _read.version_from(self._send("POST", path_of(EMBEDDINGS, version, "index"), {"kind": kind}))

    # By node id

    def vector(self, ref: str, node: NodeId) -> Floats:
        """float32 [dim] of one node.

        Raises:
            ApiError: 404, the version has no such node.
        """
        (node,) = node_ids([node])
        path, end = path_of(EMBEDDINGS, ref, "nodes"), quoted(node)
        if len(end) <= LONGEST_QUOTED:
            return array_from(self._session.request("GET", f"{path}/{end}", headers=accepting(NPY))).reshape(-1)
        found = self.lookup(ref, [node])  # too long for a URL
        if found.unknown:
            raise ApiError(httpx.codes.NOT_FOUND, "Not Found", "there is no node with this id in this version")
        return found.vectors.reshape(-1)

    def lookup(self, ref: str, ids: Iterable[NodeId] | np.ndarray[Any, Any]) -> Lookup:
        """Embeddings of any number of nodes, all of one version; nodes that it does not have are NaN rows and named."""
        import numpy as np

        nodes, parts, version = node_ids(ids), list[Any](), None

        def ask(part: Any) -> httpx.Response:
            return self._ask(path_of(EMBEDDINGS, version or ref, "lookup"), {"ids": part}, accept=NPY)

        for _, response in ask_in_parts(nodes, LOOKUP_IDS, ask, sizes=id_sizes(nodes), limits=("ids", "body")):
            version = version_of(response)
            parts.append(array_from(response))
        vectors = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if len(vectors) != len(nodes):
            raise Infrastructure(f"{self._session.url} sent {len(vectors)} vectors for {len(nodes)} ids")
        missing = np.flatnonzero(np.isnan(vectors[:, :1]).any(axis=1))
        return Lookup(str(version), vectors, [nodes[row] for row in missing])

    def neighbors(
        self,
        ref: str,
        ids: Iterable[NodeId] | np.ndarray[Any, Any] | None = None,
        *,
        vectors: Any = None,
        k: int = 10,
        metric: Literal["cosine", "dot"] = "cosine",
        min_score: float | None = None,
        labels: Sequence[str] | None = None,
        among: Iterable[NodeId] | None = None,
        include_vectors: bool = False,
        include_self: bool = False,
        backend: Literal["auto", "exact", "hnsw", "ivf"] = "auto",
    ) -> Neighbors:
        """The k nearest nodes of each query.

        Args:
            ids: nodes to ask about; or else
            vectors: [q, dim] or [dim], anything numpy reads.
            min_score: leave out neighbours that score lower.
            labels: only nodes that carry one of these; or else
            among: only these nodes.
            include_self: a node may be its own neighbour.
            backend: exact, or an index that was built; auto: chosen by size.
        """
        if (ids is None) == (vectors is None):
            raise InvalidInput("give either ids or vectors")
        if labels is not None and among is not None:
            raise InvalidInput("give either labels or among, not both")
        options: dict[str, Any] = {
            "k": k, "metric": metric, "include_vectors": include_vectors, "include_self": include_self,
            "backend": backend,
        }  # fmt: skip
        options |= {} if min_score is None else {"min_score": min_score}
        where = {"labels": [*labels]} if labels is not None else None if among is None else {"ids": node_ids(among)}
        queries: Any = node_ids(ids) if ids is not None else matrix(vectors)
        binary = ids is None and (where is None or can_be_in_query(where.get("labels", ())))
        found: Any = []

        def ask(part: Any) -> httpx.Response:
            path = path_of(EMBEDDINGS, found[0][1]["version"] if found else ref, "neighbors")
            if binary:
                return self._search(path, part, {**options, **(where or {})})
            body = {"vectors" if ids is None else "ids": part, **options}
            return self._ask(path, body if where is None else {**body, "filter": where})

        sizes = None if binary else row_sizes(queries) if ids is None else id_sizes(queries)
        limits = ("include_vectors",) if binary else ("include_vectors", "body")  # a binary body has a wrong shape
        for start, response in ask_in_parts(queries, QUERIES, ask, sizes=sizes, limits=limits):
            found.append((start, self._session.parsed(response)))
        return _read.neighbors_from(found, vectors=include_vectors, by_position=ids is None)

    # New nodes, and labels

    def embed(
        self, ref: str, nodes: Sequence[Mapping[str, Any]], neighbors: int | Mapping[str, Any] | None = None
    ) -> Embedded:
        """Embeddings of nodes that were not in the graph, by the version's own encoder.

        Args:
            nodes: {"id"?, "features": [F] or {"indices", "values"}, "edges": [id or {"node", "weight"?,
                "direction"?}]} each; features and weights may be numpy's.
            neighbors: so many nearest known nodes as well; or {"k", "metric"?, "filter"?}.
        """
        body: dict[str, Any] = {"nodes": [*nodes]}
        if neighbors is not None:
            body["neighbors"] = {"k": neighbors} if isinstance(neighbors, int) else dict(neighbors)
        document = self._session.parsed(self._ask(path_of(EMBEDDINGS, ref, "embed"), body))
        near = None
        if neighbors is not None:
            near = _read.neighbors_from([(0, document)], vectors=body["neighbors"].get("include_vectors", False))
        return Embedded(
            document["version"], document["ids"], _read.floats(document["vectors"], len(document["ids"])), near
        )

    def classify(
        self, ref: str, labels: Mapping[Any, Any], predict: Iterable[NodeId] | None = None, *, seed: int = 0
    ) -> Classified:
        """Labels for nodes without one, from labels of some: a probe trained on the vectors.

        Args:
            labels: of some nodes, by id; text or whole numbers.
            predict: ids to predict; none: all others. Of more than 100,000 the service is asked more than once, which
                takes longer and gives the same.
        """
        body: dict[str, Any] = {"ids": node_ids(labels), "labels": [*labels.values()], "seed": seed}
        if predict is None:
            return self._classify_others(self.get(ref), body)
        nodes, pages = node_ids(predict), list[Any]()

        def ask(part: Any) -> httpx.Response:
            path = path_of(EMBEDDINGS, pages[0]["version"] if pages else ref, "classify")
            return self._ask(path, {**body, "predict": part})

        for _, response in ask_in_parts(nodes, PREDICTED, ask, limits=("body",)):
            pages.append(self._session.parsed(response))
        return _read.classified_from(pages)

    def _classify_others(self, of: Version, body: Mapping[str, Any]) -> Classified:
        path = path_of(EMBEDDINGS, of.version, "classify")
        if (of.rows or 0) - len(body["ids"]) <= PREDICTED:
            return _read.classified_from([self._session.parsed(self._ask(path, body))])
        # So many come as a table only, which lacks the figures: those are asked for with a single node.
        figures = self._session.parsed(self._ask(path, {**body, "predict": body["ids"][:1]}))
        table = columns_from(self._ask(path, body, accept=ARROW))
        classes = {str(name): name for name in figures["classes"]}  # numbers beyond 64 bits come as text
        labels = [classes.get(str(label), label) for label in table["label"]]
        page = {**figures, "ids": table["id"], "labels": labels, "confidence": table["confidence"]}
        return _read.classified_from([page])

    # Files

    def download(
        self,
        ref: str,
        path: str | Path,
        format: Literal["npy", "parquet", "ids"] = "npy",
        progress: Progress | None = None,
    ) -> Version:
        """Store a whole table as a file and say which version it is; the same call after a cut goes on with the rest.

        Args:
            path: the file; until it is complete it grows beside it, as `path`.part. One that is there is replaced.
            format: npy: float32 [rows, dim]; ids: their ids, npy or JSON; parquet: both, and labels, in one table.
            progress: told the bytes so far, and those in all.
        """
        found = self.get(ref)  # an alias may move between two parts of a file; a version does not
        save(
            self._session, path_of(EMBEDDINGS, found.version, "download"), Path(path), progress=progress,
            params={"format": format},
        )  # fmt: skip
        return found

    # Aliases

    def alias(self, name: str) -> Alias:
        """Where an alias points, and pointed."""
        return _read.alias_from(self._session.document("GET", path_of(_ALIASES, name)))

    def aliases(self) -> Iterator[Alias]:
        """All aliases by name, the automatic ones too."""
        return map(_read.alias_from, pages(self._session, _ALIASES, {}, None))

    def set_alias(self, name: str, version: str, *, expected: str | None = None) -> Alias:
        """Point an alias to a version, for all at once.

        Args:
            expected: only if it points to this version now; "": only if there is none of that name.
        """
        body = {"version": version} | ({} if expected is None else {"expected": expected})
        try:
            return _read.alias_from(self._send("PUT", path_of(_ALIASES, name), body))
        except ApiError as error:
            found = self._moved(name, error)
            if found and found.version == version and not found.automatic:
                return found
            raise

    def rollback_alias(self, name: str) -> Alias:
        """Point an alias to the version before; again: one further back."""
        before = self.alias(name)
        try:
            return _read.alias_from(
                self._send("PUT", path_of(_ALIASES, name), {"rollback": True, "expected": before.version})
            )
        except ApiError as error:
            found = self._moved(name, error)
            if found and found.seq == before.seq + 1 and found.history[:1] and found.history[0]["reason"] == "rollback":
                return found
            raise

    def remove_alias(self, name: str) -> None:
        """Remove an alias; the version stays."""
        self._session.delete(path_of(_ALIASES, name))

    # Underneath

    def _send(self, method: str, path: str, body: Any) -> Any:
        return self._session.document(method, path, content=as_json(body), headers={"Content-Type": JSON})

    def _search(self, path: str, vectors: Floats, options: Mapping[str, Any]) -> httpx.Response:
        """As `_ask`, with vectors in binary form: a fifth of the bytes, and more of them may be sent."""
        headers, content = accepting(JSON) | {"Content-Type": NPY}, as_npy(vectors)
        return self._session.request("POST", path, content=content, params=options, headers=headers, timeout=PATIENT)

    def _has_trained(self, name: str, missing: ApiError) -> bool:
        """Whether the job has succeeded; `missing` is raised if there is no such job either."""
        try:
            job = job_from(Job, self._session.document("GET", path_of("v1/jobs", name)))
        except ApiError as error:
            if error.status != httpx.codes.NOT_FOUND:
                raise
            raise missing from None
        if job.is_terminal and job.state != "succeeded":
            raise JobFailed(job.id, job.failure_kind or job.state, job.failure_message or job.state)
        return job.is_terminal

    def _moved(self, name: str, error: ApiError) -> Alias | None:
        """Where an alias points after a conflict with what may be our own move, whose answer was lost.

        None: no attempt before the refused one can have moved it, so it was somebody else.
        """
        if error.status != httpx.codes.CONFLICT or not error.may_be_done:
            return None
        try:
            return self.alias(name)
        except ApiError:
            return None
