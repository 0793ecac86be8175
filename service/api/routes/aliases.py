"""/v1/aliases: names that point to embedding versions, and move from one to another in one step."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from service.api.embeddings.documents import alias_document
from service.api.embeddings.openapi import request_body
from service.api.embeddings.request_body import read_body
from service.api.embeddings.schemas import AliasDocument, AliasPage, MoveAlias
from service.api.openapi import refusals
from service.api.problems import Problem, invalid
from service.api.responses import json_response
from service.api.security import caller_of
from service.api.state import AppState, State
from service.api.threads import in_thread
from service.store.records import ALIAS, VERSION, Alias

MAX_PAGE = 500
HISTORY = 100  # moves that are shown
_EXAMPLES: dict[str, Any] = {
    "back": {"summary": "To the version before the present one", "value": {"rollback": True}},
}

router = APIRouter(prefix="/v1/aliases", tags=["aliases"])


async def _find_alias(state: State, alias: str) -> Alias:
    found = await in_thread(state.store.aliases.get, alias) if ALIAS.fullmatch(alias) else None
    if found is None:
        raise Problem(404, "there is no alias of this name")
    return found


FoundAlias = Annotated[Alias, Depends(_find_alias)]


@router.get("", response_model=AliasPage, summary="List aliases", responses=refusals(422))
async def list_aliases(
    state: State,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    cursor: Annotated[str | None, Query(pattern=r"^[0-9a-z._-]{1,64}$", description="`next` of a page")] = None,
) -> Response:
    found, following = await in_thread(state.store.aliases.list, after=cursor, limit=limit)
    return json_response({"items": [alias_document(alias) for alias in found], "next": following})


@router.get("/{alias}", response_model=AliasDocument, summary="Show an alias and its history", responses=refusals(404))
async def get_alias(state: State, found: FoundAlias) -> Response:
    return await _shown(state, found)


@router.put(
    "/{alias}", response_model=AliasDocument, summary="Set, move or roll back an alias",
    openapi_extra=request_body(MoveAlias, examples=_EXAMPLES), responses=refusals(400, 404, 408, 409, 413, 415, 422),
)  # fmt: skip
async def set_alias(request: Request, state: State, alias: str) -> Response:
    """In one step: every request sees the version before or the one after. With `expected` it moves only if it
    points there now. `latest` and `latest.<data set>` follow the newest version and cannot be set."""
    if not ALIAS.fullmatch(alias) or VERSION.fullmatch(alias):
        raise invalid("alias", "should be 1 to 64 of a-z, 0-9, dot, dash and underscore, and not the id of a version")
    wanted, caller, aliases = await read_body(request, MoveAlias), caller_of(request), state.store.aliases
    options: dict[str, Any] = {
        "owner": caller.owner, "expected": wanted.expected, "may_change": caller.may_change,
    }  # fmt: skip
    if wanted.version is None:
        moved = await state.write(aliases.rollback, alias, **options)
    else:
        moved = await state.write(aliases.move, alias, wanted.version, **options)
    await state.catalog.refresh()
    return await _shown(state, moved)


@router.delete(
    "/{alias}", status_code=204, response_class=Response, summary="Remove an alias", responses=refusals(404, 409)
)
async def remove_alias(request: Request, state: State, found: FoundAlias) -> Response:
    """The version it points to stays, and so does the alias's history."""
    caller = caller_of(request)
    await state.write(state.store.aliases.remove, found.name, owner=caller.owner, may_change=caller.may_change)
    await state.catalog.refresh()
    return Response(status_code=204)


async def _shown(state: AppState, alias: Alias) -> Response:
    history = await in_thread(state.store.aliases.history, alias.name, limit=HISTORY)
    return json_response(alias_document(alias, history), headers={"Nml-Version": alias.version})
