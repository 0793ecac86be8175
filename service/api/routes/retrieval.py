"""/v1/embeddings/{version}/…: vectors by node id, one or many, their neighbours, and whole tables."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal
from urllib.parse import unquote_to_bytes

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field

from service.api.body import media_type, read_bytes
from service.api.embeddings import neighbors
from service.api.embeddings.catalog import ServedVersion
from service.api.embeddings.documents import PREFIX
from service.api.embeddings.examples import LOOKUPS, NEIGHBORS
from service.api.embeddings.negotiation import ARROW, JSON, NPY, RAW, accept_and_match, matches_tag, negotiate
from service.api.embeddings.openapi import BINARY, FILE_HEADERS, NOT_MODIFIED, PARTIAL, request_body, success
from service.api.embeddings.raw_response import RawResponse
from service.api.embeddings.request_body import HEAD_BYTES, SECONDS, as_matrix, parse_matrix, read_body
from service.api.embeddings.responses import (
    FORMS,
    TAGS,
    check_size,
    lookup_body,
    node_body,
    with_version,
)
from service.api.embeddings.schemas import (
    MOST_NEIGHBORS,
    MOST_QUERIES,
    Backend,
    Filter,
    Lookup,
    LookupDocument,
    Metric,
    NeighborOptions,
    Neighbors,
    NeighborsDocument,
    NodeDocument,
)
from service.api.openapi import refusals
from service.api.problems import FieldError, Problem, not_valid, problem_of, unavailable
from service.api.state import State, state_of

ONE = PREFIX + "/{version}"
INLINE_ROWS = 64  # more of them are gathered in a thread: pages that are not in memory would keep everyone waiting
log = logging.getLogger("service.api")
_REPLACED = "\N{REPLACEMENT CHARACTER}"
_POSTED = (400, 404, 406, 408, 409, 413, 415, 422)


class NodeRoute(APIRoute):
    """An id may be any text: also one with slashes and line breaks."""

    def __init__(self, path: str, endpoint: Any, **options: Any):
        super().__init__(path, endpoint, **options)
        self.path_regex = re.compile(self.path_regex.pattern, re.DOTALL)


router = APIRouter(prefix=ONE, tags=["embeddings"], route_class=NodeRoute)


@contextmanager
def about(served: ServedVersion) -> Iterator[None]:
    """Errors raised within name the version they are about."""
    try:
        yield
    except Exception as error:
        problem = problem_of(error)
        if problem.status == 500:
            raise
        raise with_version(problem, served.version) from error


# HEAD is answered like GET, without the body, which the server leaves out.
@router.head("/nodes/{node:path}", include_in_schema=False)
@router.get(
    "/nodes/{node:path}", response_model=None, summary="Get a node's vector",
    responses={
        200: success("Its vector.", NodeDocument, FORMS, tagged=True), 304: NOT_MODIFIED, **refusals(404, 406, 409),
    },
)  # fmt: skip
async def get_node(request: Request, version: str, node: str) -> RawResponse:
    """One vector by the node's own id, percent-encoded."""
    served, pinned = await state_of(request).catalog.find(version)
    row = served.ids.row_of(node)
    if row is None:
        raise with_version(Problem(404, "there is no node with this id in this version"), served.version)
    if _REPLACED in node and not _is_utf8(request.scope.get("raw_path") or b""):
        why = "the percent-encoded id is not valid UTF-8; encode it as UTF-8"
        raise with_version(Problem(404, why), served.version)
    accept, match = accept_and_match(request.scope["headers"])
    try:
        form = JSON if accept is None else negotiate(accept, FORMS)
    except Problem as problem:
        raise with_version(problem, served.version) from None
    headers = served.headers
    tag = b'"%s-%d-%s"' % (headers.version, row, TAGS[form])
    if match is not None and matches_tag(match, tag):
        return headers.not_modified(form, pinned, tag)
    label = None
    if served.labels is not None and (number := int(served.labels[row])) >= 0:
        label = served.info.classes[number]  # type: ignore[index]
    name = int(node) if served.info.id_type == "int" else node
    body = node_body(headers, form, name, served.vectors[row], label)
    return RawResponse(body, headers.cacheable(form, pinned, tag, len(body[0])))


def _is_utf8(address: bytes) -> bool:
    """Whether a percent-encoded address is; the server has replaced whatever in it is not."""
    try:
        unquote_to_bytes(address).decode()
    except UnicodeDecodeError:
        return False
    return True


@router.post(
    "/lookup", response_model=None, summary="Get the vectors of many nodes",
    openapi_extra=request_body(Lookup, examples=LOOKUPS),
    responses={
        200: success("Their vectors.", LookupDocument, FORMS, shaped=True, by_ids=True), **refusals(*_POSTED),
    },
)  # fmt: skip
async def look_up(request: Request, version: str) -> RawResponse:
    """Vectors of up to 10,000 nodes. Unknown ids are listed in `unknown`, and the request still succeeds; binary
    formats have a row for every id, NaN (Arrow: null) for unknown ones."""
    state = state_of(request)
    served, _ = await state.catalog.find(version)
    with about(served):
        form = negotiate(accept_and_match(request.scope["headers"])[0], FORMS)
        ids = (await read_body(request, Lookup)).ids
        check_size(len(ids) * served.info.dim, form, "ids", "ask for fewer at a time", instead=NPY)
        if len(ids) <= INLINE_ROWS:
            return _looked_up(served, form, ids)
        state.in_flight.check_room()
        return await state.gathers.run(_looked_up, served, form, ids)


def _looked_up(served: ServedVersion, form: str, ids: list[int | str]) -> RawResponse:
    rows = served.ids.rows_of(ids)
    unknown = rows < 0
    body = lookup_body(served.headers, form, ids, served.table.take(rows), unknown)
    return served.headers.respond(form, body, rows=len(ids), unknown=int(np.count_nonzero(unknown)))


class NeighborQuery(BaseModel):
    """Options of a search whose body is binary."""

    k: int | None = Field(None, ge=1, le=MOST_NEIGHBORS)
    metric: Metric | None = None
    backend: Backend | None = None
    min_score: float | None = Field(None, allow_inf_nan=False, description="as in the body")
    include_vectors: bool | None = None
    include_self: bool | None = Field(None, description="as in the body; has no effect with vectors")
    labels: list[str] | None = Field(None, max_length=1_000, description="only nodes with one of these labels")


@router.post(
    "/neighbors", response_model=None, summary="Find the nearest nodes",
    openapi_extra=request_body(Neighbors, binary=True, examples=NEIGHBORS),
    responses={200: success("Best first.", NeighborsDocument, (JSON, ARROW), by_ids=True), **refusals(*_POSTED)},
)  # fmt: skip
async def find_neighbors(
    request: Request, state: State, version: str, query: Annotated[NeighborQuery, Query()]
) -> Response:
    """By ids or by vectors. A binary body holds vectors; its options go in the query string."""
    options = query.model_dump(exclude_none=True)
    served, _ = await state.catalog.find(version)
    with about(served):
        form = negotiate(accept_and_match(request.scope["headers"])[0], (JSON, ARROW))
        kind = media_type(request, (JSON, RAW, NPY))
        if kind == JSON:
            if options:
                why = "belongs in the body; only with a binary body it goes in the query string"
                raise not_valid([FieldError(name, why) for name in options])
            wanted = await read_body(request, Neighbors)
            if wanted.include_vectors:
                state.in_flight.check_room()
            return await state.searches.run(_searched, served, form, wanted)
        known = NeighborQuery.model_fields
        if unknown := [name for name in request.query_params if name not in known]:
            why = f"unknown option (expected one of {', '.join(known)})"
            raise not_valid([FieldError(name, why) for name in unknown])
        most = MOST_QUERIES * 8 * served.info.dim + HEAD_BYTES
        data = await read_bytes(request, seconds=SECONDS, most=most, remedy=f"; send up to {MOST_QUERIES:,} vectors")
        if query.include_vectors:
            state.in_flight.check_room()
        labels = options.pop("labels", None)
        chosen = Filter(labels=labels) if labels else None
        return await state.searches.run(_searched_for, served, form, kind, data, NeighborOptions(**options), chosen)


@router.head("/download", include_in_schema=False)
@router.get(
    "/download", response_class=Response, summary="Download a whole table",
    responses={
        200: {
            "description": "npy: vectors [N, dim] in float32; ids: their ids, as .npy (whole numbers) or JSON "
            "(text), in the same order; parquet: both, and labels where there are any.",
            "content": {NPY: BINARY, "application/vnd.apache.parquet": BINARY, JSON: {"schema": {}}},
            "headers": FILE_HEADERS,
        },
        206: PARTIAL, 304: NOT_MODIFIED, **refusals(400, 404, 409, 416, 422, 507),
    },
)  # fmt: skip
async def download_embeddings(
    request: Request, state: State, version: str, format: Annotated[Literal["npy", "parquet", "ids"], Query()] = "npy"
) -> Response:
    """Supports ranges and entity tags, so that an interrupted download can be resumed."""
    served, pinned = await state.catalog.find(version)
    try:
        file = await state.tables.open(served, format, pinned=pinned)
    except FileNotFoundError:  # deleted since, or the alias has moved
        await state.catalog.refresh()
        served, pinned = await state.catalog.find(version)
        try:
            file = await state.tables.open(served, format, pinned=pinned)
        except FileNotFoundError:
            log.exception("version %s is published, but its files are gone", served.version)
            raise unavailable("the files of this version cannot be read now", seconds=30) from None
    if matches_tag(accept_and_match(request.scope["headers"])[1], file.tag):
        file.close()
        return file.not_modified()
    return file


def _searched(served: ServedVersion, form: str, wanted: Neighbors) -> RawResponse:
    if wanted.ids is not None:
        queries = neighbors.by_ids(served, wanted.ids, wanted)
    else:
        queries = neighbors.by_vectors(as_matrix(wanted.vectors or [], served.info.dim))
    return _answered(served, form, queries, wanted, wanted.filter)


def _searched_for(
    served: ServedVersion, form: str, kind: str, data: bytes, options: NeighborOptions, chosen: Filter | None
) -> RawResponse:
    """kind: of the body, `data`, that holds vectors."""
    queries = neighbors.by_vectors(parse_matrix(kind, data, served.info.dim, MOST_QUERIES))
    return _answered(served, form, queries, options, chosen)


def _answered(
    served: ServedVersion, form: str, queries: neighbors.Queries, options: NeighborOptions, chosen: Filter | None
) -> RawResponse:
    neighbors.check_answer(served, len(queries.names), options, form, instead=ARROW)
    found = neighbors.search(served, queries, options, chosen)
    return served.headers.respond(form, neighbors.body(served, form, found), unknown=len(found.unknown))
