"""/v1/embeddings/{version}/embed and …/classify: vectors of new nodes and classes; computed by the encoder process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from fastapi import APIRouter, Request

from service.api.embeddings import neighbors
from service.api.embeddings.catalog import ServedVersion
from service.api.embeddings.examples import CLASSES
from service.api.embeddings.negotiation import ARROW, JSON, NPY, RAW, accept_and_match, negotiate
from service.api.embeddings.new_nodes import NewNodes, blamed_field, labelled, new_nodes
from service.api.embeddings.openapi import request_body, success
from service.api.embeddings.raw_response import RawResponse
from service.api.embeddings.request_body import read_body
from service.api.embeddings.responses import check_size, document, dumps, json_rows, matrix
from service.api.embeddings.schemas import Classify, ClassifyDocument, Embed, EmbedDocument, NewNodeNeighbors
from service.api.openapi import refusals
from service.api.problems import Problem, invalid, not_valid, unavailable
from service.api.routes.retrieval import ONE, about
from service.api.state import state_of
from service.embeddings.parquet import arrow_stream, ids_column, names_column
from trainer.errors import Infrastructure, InvalidInput

MOST_PREDICTED = 100_000  # as JSON
_RETRY = 5  # seconds
_SECTION = "neighbors."  # of the request
_REFUSED = (400, 404, 406, 408, 409, 413, 415, 422)

router = APIRouter(prefix=ONE, tags=["embeddings"])


@router.post(
    "/embed", response_model=None, summary="Embed new nodes", openapi_extra=request_body(Embed),
    responses={200: success("Their vectors.", EmbedDocument, (JSON, RAW, NPY), shaped=True), **refusals(*_REFUSED)},
)  # fmt: skip
async def embed_nodes(request: Request, version: str) -> RawResponse:
    """Vectors for nodes that were not in the graph, from their features and their edges to known nodes, as the trained
    encoder gives them; also for known nodes with other features or edges. With `neighbors` also their nearest nodes."""
    served, _ = await state_of(request).catalog.find(version)
    with about(served):
        form = negotiate(accept_and_match(request.scope["headers"])[0], (JSON, RAW, NPY))
        if not served.info.has_encoder:
            raise Problem(409, "this version was published without its encoder; train again to embed new nodes")
        wanted = await read_body(request, Embed)
        if wanted.neighbors is not None and form != JSON:
            raise invalid("neighbors", f"are available as {JSON} only; ask for that, or leave them out")
        count = len(wanted.nodes)
        check_size(count * served.info.dim, form, "nodes", "send fewer at a time", instead=NPY)
        if wanted.neighbors is not None:
            neighbors.check_answer(served, count, wanted.neighbors, form, within=_SECTION)
        gathers = state_of(request).gathers
        new = await gathers.run(new_nodes, served, wanted)
        try:
            vectors = await _computed(request, served, "embed", {"nodes": len(new.ids)}, new.arrays)
        except InvalidInput as error:
            raise not_valid([blamed_field(wanted, str(error))]) from None
        if form != JSON:
            return served.headers.respond(form, matrix(form, vectors), rows=len(vectors))
        searches = state_of(request).searches
        work = gathers if wanted.neighbors is None else searches
        return await work.run(_embedded, served, new, vectors, wanted.neighbors)


def _embedded(served: ServedVersion, new: NewNodes, vectors: Any, options: NewNodeNeighbors | None) -> RawResponse:
    members: dict[str, bytes | Iterator[bytes]] = {"ids": dumps(new.ids), "vectors": json_rows(vectors)}
    if options is not None:
        places = np.arange(len(vectors))
        names = [at if name is None else name for at, name in enumerate(new.ids)]
        exclude = None if options.include_self else new.replaces
        queries = neighbors.Queries(names, vectors, exclude, [], "nodes", places, _SECTION)
        members |= neighbors.members(neighbors.search(served, queries, options, options.filter))
    return served.headers.respond(JSON, document(served.headers, members), rows=len(vectors))


@router.post(
    "/classify", response_model=None, summary="Classify nodes",
    openapi_extra=request_body(Classify, examples=CLASSES),
    responses={200: success("Classes.", ClassifyDocument, (JSON, ARROW)), **refusals(*_REFUSED)},
)  # fmt: skip
async def classify_nodes(request: Request, version: str) -> RawResponse:
    """Trains a linear probe on the given labels and predicts the classes of other nodes, each with a confidence. Its
    accuracy is measured on labels that it has not seen."""
    served, _ = await state_of(request).catalog.find(version)
    with about(served):
        form = negotiate(accept_and_match(request.scope["headers"])[0], (JSON, ARROW))
        wanted = await read_body(request, Classify)
        count = served.info.rows - len(wanted.ids) if wanted.predict is None else len(wanted.predict)
        if form == JSON and count > MOST_PREDICTED:
            raise invalid("predict", f"these are {count:,} nodes; name up to {MOST_PREDICTED:,}, or accept {ARROW}")
        gathers = state_of(request).gathers
        given = await gathers.run(labelled, served, wanted)
        head = {"classes": len(given.classes), "seed": wanted.seed}
        try:
            found = await _computed(request, served, "classify", head, given.arrays)
        except InvalidInput as error:
            raise invalid("labels", str(error)) from None
        return await gathers.run(_classified, served, form, given.classes, found)


def _classified(served: ServedVersion, form: str, classes: list[int | str], found: dict[str, Any]) -> RawResponse:
    ids = served.ids.ids_of(found["rows"])
    if form == ARROW:
        columns = {
            "id": ids_column(ids, served.info.id_type), "label": names_column(found["classes"], classes),
            "confidence": found["confidence"],
        }  # fmt: skip
        return served.headers.respond(form, [arrow_stream(columns)])
    labels = [classes[number] for number in found["classes"].tolist()]
    members: dict[str, bytes | Iterator[bytes]] = {"classes": dumps(classes)}
    members |= {name: dumps(found.get(name)) for name in ("accuracy", "deviation", "majority", "reason", "protocol")}
    members |= {"ids": dumps(ids), "labels": dumps(labels), "confidence": dumps(found["confidence"])}
    return served.headers.respond(form, document(served.headers, members))


async def _computed(request: Request, served: ServedVersion, what: str, document: dict[str, Any], arrays: Any) -> Any:
    """What the encoder process answers.

    Raises:
        InvalidInput: it cannot be computed as asked.
        Problem: 503, not now; 429, the key has too many waiting; 404, the version was deleted meanwhile.
    """
    state = state_of(request)
    try:
        with state.inferences.take():
            return await getattr(state.encoder, what)(served.version, document, arrays)
    except (Infrastructure, TimeoutError) as error:
        await state.catalog.find(served.version)  # 404 if that is why
        raise unavailable(str(error) or "it took too long", seconds=_RETRY) from error
