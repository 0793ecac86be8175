"""What `client.vectors` asks about scores beyond neighbours: by examples, of pairs, of two versions; and all ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import httpx

from service.client._embedding_documents import NodeId
from service.client._paths import path_of
from service.client._payloads import JSON, accepting, as_json, node_ids
from service.client._session import CONNECT_SECONDS, Session

ANSWER_SECONDS = 300.0  # a search of everything, or an encoder that is loaded first, may take a while
PATIENT = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
EMBEDDINGS = "v1/embeddings"


class ScoreQuestions:
    """The part of `Embeddings` that gives answers as the service sends them."""

    _session: Session

    def ids(self, ref: str) -> Iterator[NodeId]:
        """All ids in the order of the rows, asked for page by page."""
        query: dict[str, Any] = {"limit": 10_000}
        while True:
            page = self._session.document("GET", path_of(EMBEDDINGS, ref, "ids"), params=query)
            yield from page["ids"]
            if page["next"] is None:
                return
            ref, query["cursor"] = page["version"], page["next"]  # an alias may move meanwhile

    def recommend(
        self,
        ref: str,
        positive: Iterable[NodeId],
        negative: Iterable[NodeId] = (),
        *,
        k: int = 10,
        min_score: float | None = None,
        labels: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        """Nodes that are like some and unlike others: `ids` and `scores`, best first, and `unknown` examples.

        Args:
            min_score: leave out those that score lower.
            labels: only nodes that carry one of these.
        """
        body: dict[str, Any] = {"positive": node_ids(positive), "negative": node_ids(negative), "k": k}
        body |= {} if min_score is None else {"min_score": min_score}
        return self._document(ref, "recommend", body if labels is None else body | {"filter": {"labels": [*labels]}})

    def scores(
        self,
        ref: str,
        ids: Iterable[NodeId],
        others: Iterable[NodeId] | None = None,
        *,
        metric: Literal["cosine", "dot"] = "cosine",
    ) -> dict[str, Any]:
        """`scores` of each of up to 1,000 nodes with each of others, or of the same; `unknown` ones are left out."""
        body: dict[str, Any] = {"ids": node_ids(ids), "metric": metric}
        return self._document(ref, "scores", body if others is None else body | {"others": node_ids(others)})

    def compare(self, ref: str, other: str, *, k: int = 10, sample: int = 200, seed: int = 0) -> dict[str, Any]:
        """How far two versions agree on a sample of nodes: `overlap` of neighbours and `drift`, and their means."""
        return self._document(ref, "compare", {"other": other, "k": k, "sample": sample, "seed": seed})

    def _document(self, ref: str, what: str, body: Any) -> dict[str, Any]:
        found: dict[str, Any] = self._session.parsed(self._ask(path_of(EMBEDDINGS, ref, what), body))
        return found

    def _ask(self, path: str, body: Any, accept: str = JSON) -> httpx.Response:
        """A question too long for a URL: it changes nothing, so it may be repeated."""
        headers = accepting(accept) | {"Content-Type": JSON}
        return self._session.request("POST", path, content=as_json(body), headers=headers, timeout=PATIENT)
