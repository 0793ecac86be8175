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

from service.api.body import media_type, read_bytes
from service.api.embeddings import neighbors
from service.api.embeddings.catalog import Catalog, ServedVersion
from service.api.embeddings.examples import LOOKUPS, NEIGHBORS
from service.api.embeddings.negotiation import ARROW, JSON, NPY, RAW, asked, choose, has_it
from service.api.embeddings.openapi import BINARY, FILE_HEADERS, PARTIAL, UNCHANGED, answered, question
from service.api.embeddings.raw_response import RawResponse
from service.api.embeddings.request_body import SECONDS, as_matrix, parse_matrix, read_question
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
from service.api.state import state_of

ONE = "/v1/embeddings/{version}"
INLINE_ROWS = 64  # more of them are gathered in a thread: pages that are not in memory would keep everyone waiting
log = logging.getLogger("service.api")
_REPLACED = "\N{REPLACEMENT CHARACTER}"
_UNKNOWN = "unknown option; known are "
_POSTED = (400, 404, 406, 408, 409, 413, 415, 422)


def catalog_of(request: Request) -> Catalog:
    catalog = state_of(request).catalog
    return catalog


@contextmanager
def about(served: ServedVersion) -> Iterator[None]:
    """Refusals within tell which version they are about."""
    try:
        yield
    except Exception as error:
        problem = problem_of(error)
        if problem.status == 500:
            raise
        raise with_version(problem, served.version) from error


class NodeRoute(APIRoute):
    """An id is whatever follows, also with slashes and line breaks in it."""

    def __init__(self, path: str, endpoint: Any, **options: Any):
        super().__init__(path, endpoint, **options)
        self.path_regex = re.compile(r"/v1/embeddings/(?P<version>[^/]+)/nodes/(?P<node>.*)\Z", re.DOTALL)


async def show_node(request: Request, version: str, node: str) -> RawResponse:
    """One vector by the node's own id, percent-encoded."""
    catalog = state_of(request).catalog
    served, pinned = await catalog.find(version)
    row = served.ids.row_of(node)
    if row is None:
        raise with_version(Problem(404, "there is no node with this id in this version"), served.version)
    if _REPLACED in node and not _is_utf8(request.scope.get("raw_path") or b""):
        why = "the id is not UTF-8 once its percent signs are decoded; encode it as UTF-8"
        raise with_version(Problem(404, why), served.version)
    accept, match = asked(request.scope["headers"])
    try:
        form = JSON if accept is None else choose(accept, FORMS)
    except Problem as problem:
        raise with_version(problem, served.version) from None
    heads = served.heads
    tag = b'"%s-%d-%s"' % (heads.version, row, TAGS[form])
    if match is not None and has_it(match, tag):
        return heads.unchanged(form, pinned, tag)
    label = None
    if served.labels is not None and (number := int(served.labels[row])) >= 0:
        label = served.info.classes[number]  # type: ignore[index]
    name = int(node) if served.info.id_type == "int" else node
    body = node_body(heads, form, name, served.vectors[row], label)
    return RawResponse(body, heads.kept(form, pinned, tag, len(body[0])))


def _is_utf8(address: bytes) -> bool:
    """Whether an address, percent-encoded, is; the server has replaced whatever in it is not."""
    try:
        unquote_to_bytes(address).decode()
    except UnicodeDecodeError:
        return False
    return True


async def look_up(request: Request, version: str) -> RawResponse:
    """Vectors of up to 10,000 nodes. Binary forms have a row for every id, NaN (Arrow: null) for unknown ones."""
    served, _ = await catalog_of(request).find(version)
    with about(served):
        form = choose(asked(request.scope["headers"])[0], FORMS)
        ids = (await read_question(request, Lookup)).ids
        check_size(len(ids) * served.info.dim, form, "ids", "ask for fewer at a time", instead=NPY)
        if len(ids) <= INLINE_ROWS:
            return _looked_up(served, form, ids)
        in_flight = state_of(request).in_flight
        in_flight.check_room()
        gathers = state_of(request).gathers
        return await gathers.run(_looked_up, served, form, ids)


def _looked_up(served: ServedVersion, form: str, ids: list[int | str]) -> RawResponse:
    rows = served.ids.rows_of(ids)
    unknown = rows < 0
    body = lookup_body(served.heads, form, ids, served.table.take(rows), unknown)
    return served.heads.once(form, body, rows=len(ids), unknown=int(np.count_nonzero(unknown)))


def add_retrieval(router: APIRouter) -> None:
    """Add the paths."""
    shared: dict[str, Any] = {"tags": ["embeddings"]}
    # what OpenAPI describes for GET holds for HEAD as well, without the body, which the server leaves out
    head: dict[str, Any] = {"methods": ["HEAD"], "include_in_schema": False}
    router.add_api_route(ONE + "/nodes/{node:path}", show_node, route_class_override=NodeRoute, **head)
    router.add_api_route(
        ONE + "/nodes/{node:path}", show_node, methods=["GET"], operation_id="get_node", summary="Get a node's vector",
        responses={
            200: answered("Its vector.", NodeDocument, FORMS, kept=True), 304: UNCHANGED, **refusals(404, 406, 409),
        },
        response_model=None, route_class_override=NodeRoute, **shared,
    )  # fmt: skip
    router.add_api_route(
        ONE + "/lookup", look_up, methods=["POST"], operation_id="look_up", summary="Get the vectors of many nodes",
        openapi_extra=question(Lookup, examples=LOOKUPS),
        responses={
            200: answered("Their vectors.", LookupDocument, FORMS, shaped=True, by_ids=True), **refusals(*_POSTED),
        },
        response_model=None, **shared,
    )  # fmt: skip

    @router.post(
        ONE + "/neighbors", operation_id="find_neighbors", summary="Find the nearest nodes", response_model=None,
        openapi_extra=question(Neighbors, binary=True, examples=NEIGHBORS),
        responses={200: answered("Best first.", NeighborsDocument, (JSON, ARROW), by_ids=True), **refusals(*_POSTED)},
        **shared,
    )  # fmt: skip
    async def neighbors(
        request: Request,
        version: str,
        k: Annotated[int | None, Query(ge=1, le=MOST_NEIGHBORS)] = None,
        metric: Annotated[Metric | None, Query()] = None,
        backend: Annotated[Backend | None, Query()] = None,
        include_vectors: Annotated[bool | None, Query()] = None,
        include_self: Annotated[bool | None, Query(description="as in the body; of vectors it changes nothing")] = None,
        labels: Annotated[list[str] | None, Query(max_length=1_000, description="only nodes with one of them")] = None,
    ) -> Response:
        """By ids or by vectors. A binary body holds vectors; then the options stand in the query."""
        given: dict[str, Any] = {
            "k": k, "metric": metric, "backend": backend, "include_vectors": include_vectors,
            "include_self": include_self, "labels": labels,
        }  # fmt: skip
        unknown = [FieldError(name, _UNKNOWN + ", ".join(given)) for name in request.query_params if name not in given]
        given = {name: value for name, value in given.items() if value is not None}
        served, _ = await catalog_of(request).find(version)
        with about(served):
            form = choose(asked(request.scope["headers"])[0], (JSON, ARROW))
            kind = media_type(request, (JSON, RAW, NPY))
            if kind == JSON and given:
                why = "belongs into the body; only with a binary body it stands in the query"
                raise not_valid([FieldError(name, why) for name in given])
            if kind != JSON and unknown:
                raise not_valid(unknown)
            searches = state_of(request).searches
            in_flight = state_of(request).in_flight
            if kind == JSON:
                wanted = await read_question(request, Neighbors)
                if wanted.include_vectors:
                    in_flight.check_room()
                return await searches.run(_searched, served, form, wanted)
            data = await read_bytes(request, seconds=SECONDS)
            if include_vectors:
                in_flight.check_room()
            names = given.pop("labels", None)
            chosen = Filter(labels=names) if names else None
            return await searches.run(_searched_for, served, form, kind, data, NeighborOptions(**given), chosen)

    @router.head(ONE + "/download", include_in_schema=False)
    @router.get(
        ONE + "/download", response_class=Response, operation_id="download_embeddings",
        summary="Download a whole table",
        responses={
            200: {
                "description": "npy: vectors [N, dim] in float32; ids: their ids, as .npy (whole numbers) or JSON "
                "(text), in the same order; parquet: both, and labels where there are any.",
                "content": {NPY: BINARY, "application/vnd.apache.parquet": BINARY, JSON: {"schema": {}}},
                "headers": FILE_HEADERS,
            },
            206: PARTIAL, 304: UNCHANGED, **refusals(400, 404, 409, 416, 422, 507),
        },
        **shared,
    )  # fmt: skip
    async def download(
        request: Request, version: str, format: Annotated[Literal["npy", "parquet", "ids"], Query()] = "npy"
    ) -> Response:
        """With ranges and entity tags, so that a broken download can go on."""
        catalog, tables = catalog_of(request), state_of(request).tables
        served, pinned = await catalog.find(version)
        try:
            file = await tables.open(served, format, pinned=pinned)
        except FileNotFoundError:  # deleted since, or the alias has moved
            await catalog.refresh()
            served, pinned = await catalog.find(version)
            try:
                file = await tables.open(served, format, pinned=pinned)
            except FileNotFoundError:
                log.exception("version %s is published, but its files are gone", served.version)
                raise unavailable("the files of this version cannot be read now", seconds=30) from None
        if has_it(asked(request.scope["headers"])[1], file.tag):
            file.close()
            return file.unchanged()
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
    return served.heads.once(form, neighbors.body(served, form, found), unknown=len(found.unknown))
