"""/v1/embeddings/{version}/…: recommendations by examples, scores of pairs, comparison of versions, pages of ids."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from fastapi import APIRouter, Query, Request

from service.api.embeddings import scores
from service.api.embeddings.catalog import ServedVersion
from service.api.embeddings.examples import COMPARISONS, PAIRS, RECOMMENDATIONS
from service.api.embeddings.negotiation import JSON, accept_and_match, negotiate
from service.api.embeddings.openapi import request_body, success
from service.api.embeddings.raw_response import RawResponse
from service.api.embeddings.request_body import read_body
from service.api.embeddings.responses import document, dumps, json_rows
from service.api.embeddings.score_schemas import (
    MOST_IDS,
    Compare,
    CompareDocument,
    IdPage,
    Recommend,
    RecommendDocument,
    Scores,
    ScoresDocument,
)
from service.api.openapi import refusals
from service.api.problems import invalid
from service.api.routes.retrieval import ONE, about
from service.api.state import State

_POSTED = (400, 404, 406, 408, 409, 413, 415, 422)
router = APIRouter(prefix=ONE, tags=["embeddings"])


@router.post(
    "/recommend", response_model=None, summary="Find nodes by examples",
    openapi_extra=request_body(Recommend, examples=RECOMMENDATIONS),
    responses={200: success("Best first.", RecommendDocument, (JSON,), by_ids=True), **refusals(*_POSTED)},
)  # fmt: skip
async def recommend_nodes(request: Request, state: State, version: str) -> RawResponse:
    """Nodes that are like the positive and unlike the negative examples."""
    served, _ = await state.catalog.find(version)
    with about(served):
        _check_form(request)
        return await state.searches.run(_recommended, served, await read_body(request, Recommend))


@router.post(
    "/scores", response_model=None, summary="Score pairs of nodes",
    openapi_extra=request_body(Scores, examples=PAIRS),
    responses={200: success("Their scores.", ScoresDocument, (JSON,), by_ids=True), **refusals(*_POSTED)},
)  # fmt: skip
async def score_pairs(request: Request, state: State, version: str) -> RawResponse:
    """Of up to 1,000 nodes with up to 1,000 others. Unknown ids are listed in `unknown`, and the request still
    succeeds."""
    served, _ = await state.catalog.find(version)
    with about(served):
        _check_form(request)
        wanted = await read_body(request, Scores)
        state.in_flight.check_room()
        return await state.searches.run(_scored, served, wanted)


@router.post(
    "/compare", response_model=None, summary="Compare with another version",
    openapi_extra=request_body(Compare, examples=COMPARISONS),
    responses={200: success("How far they agree.", CompareDocument, (JSON,)), **refusals(*_POSTED)},
)  # fmt: skip
async def compare_versions(request: Request, state: State, version: str) -> RawResponse:
    """On a sample of the nodes that both have: how many neighbours are the same, and how far nodes have moved relative
    to each other."""
    served, _ = await state.catalog.find(version)
    with about(served):
        _check_form(request)
        wanted = await read_body(request, Compare)
        other, _ = await state.catalog.find(wanted.other)
        return await state.searches.run(_compared, served, other, wanted)


@router.get(
    "/ids", response_model=None, summary="List the ids of a version",
    responses={200: success("In the order of rows.", IdPage, (JSON,)), **refusals(404, 406, 409, 422)},
)  # fmt: skip
async def list_ids(
    request: Request,
    state: State,
    version: str,
    limit: Annotated[int, Query(ge=1, le=MOST_IDS)] = 1_000,
    cursor: Annotated[
        str | None, Query(pattern=r"^[0-9A-Za-z_-]{1,64}:[0-9]{1,15}$", description="`next` of the previous page")
    ] = None,
) -> RawResponse:
    """Page by page, all of one version: should an alias have moved since the first page, the next is refused."""
    served, _ = await state.catalog.find(version)
    with about(served):
        _check_form(request)
        start = 0
        if cursor is not None:
            of, _, text = cursor.partition(":")
            if of != served.version:
                raise invalid("cursor", "is of another version; begin anew, or ask for that version by its own name")
            start = int(text)
        return await state.gathers.run(_listed, served, start, limit)


def _check_form(request: Request) -> None:
    """Raises Problem 406 unless JSON will do."""
    negotiate(accept_and_match(request.scope["headers"])[0], (JSON,))


def _recommended(served: ServedVersion, wanted: Recommend) -> RawResponse:
    found, ids, values = scores.recommended(served, wanted)
    members = {
        "ids": dumps(ids), "scores": dumps(np.array(values, np.float32)), "unknown": dumps(list(found.unknown)),
        "unknown_in_filter": dumps(list(found.unknown_in_filter)),
    }  # fmt: skip
    return served.headers.respond(JSON, document(served.headers, members), unknown=len(found.unknown))


def _scored(served: ServedVersion, wanted: Scores) -> RawResponse:
    ids, others, values, unknown = scores.pairwise(served, wanted)
    members = {
        "metric": dumps(wanted.metric), "ids": dumps(list(ids)), "others": dumps(list(others)),
        "scores": json_rows(values) if others else dumps([[] for _ in ids]), "unknown": dumps(list(unknown)),
    }  # fmt: skip
    return served.headers.respond(JSON, document(served.headers, members), unknown=len(unknown))


def _compared(served: ServedVersion, other: ServedVersion, wanted: Compare) -> RawResponse:
    ids, overlap, drift = scores.compared(served, other, wanted)
    members = {
        "other": dumps(other.version), "k": dumps(wanted.k), "ids": dumps(list(ids)), "overlap": dumps(overlap),
        "mean_overlap": dumps(float(overlap.mean())), "drift": dumps(drift), "mean_drift": dumps(float(drift.mean())),
    }  # fmt: skip
    return served.headers.respond(JSON, document(served.headers, members))


def _listed(served: ServedVersion, start: int, limit: int) -> RawResponse:
    end = min(start + limit, served.info.rows)
    ids = served.ids.ids_of(np.arange(start, end)) if start < end else []
    following = f"{served.version}:{end}" if end < served.info.rows else None
    return served.headers.respond(JSON, document(served.headers, {"ids": dumps(ids), "next": dumps(following)}))
