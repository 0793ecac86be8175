"""/v1/aliases: names that point to versions, and move from one to another at once."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from service.api.embeddings.documents import alias_document
from service.api.embeddings.openapi import question
from service.api.embeddings.request_body import read_question
from service.api.embeddings.schemas import AliasDocument, AliasPage, MoveAlias
from service.api.openapi import refusals
from service.api.problems import Problem, invalid
from service.api.responses import json_response
from service.api.routes.retrieval import catalog_of
from service.api.security import caller_of
from service.api.state import state_of
from service.api.threads import in_thread
from service.store import Store
from service.store.records import ALIAS, VERSION, Alias

PREFIX = "/v1/aliases"
MAX_PAGE = 500
HISTORY = 100  # moves that are shown


def add_aliases(router: APIRouter) -> None:
    """Add the paths."""
    shared: dict[str, Any] = {"tags": ["aliases"]}
    one = PREFIX + "/{alias}"

    @router.get(
        PREFIX, response_model=AliasPage, operation_id="list_aliases", summary="List aliases",
        responses=refusals(422), **shared,
    )  # fmt: skip
    async def list_(
        request: Request,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
        cursor: Annotated[str | None, Query(pattern=r"^[0-9a-z._-]{1,64}$", description="`next` of a page")] = None,
    ) -> Response:
        found, following = await in_thread(state_of(request).store.aliases.list, after=cursor, limit=limit)
        return json_response({"items": [alias_document(alias) for alias in found], "next": following})

    @router.get(
        one, response_model=AliasDocument, operation_id="get_alias", summary="Show an alias and its history",
        responses=refusals(404), **shared,
    )  # fmt: skip
    async def show(request: Request, alias: str) -> Response:
        found = await _find(state_of(request).store, alias)
        if found is None:
            raise _unknown()
        return await _shown(request, found)

    @router.put(
        one, response_model=AliasDocument, operation_id="set_alias", summary="Set, move or roll back an alias",
        openapi_extra=question(MoveAlias, examples=_EXAMPLES),
        responses=refusals(400, 404, 408, 409, 413, 415, 422), **shared,
    )  # fmt: skip
    async def put(request: Request, alias: str) -> Response:
        """In one step: every request sees the version before or the one after. With `expected` it moves only if it
        points there now. `latest` and `latest.<data set>` move by themselves."""
        if not ALIAS.fullmatch(alias) or VERSION.fullmatch(alias):
            raise invalid("alias", "should be 1 to 64 of a-z, 0-9, dot, dash and underscore, and no version's name")
        wanted = await read_question(request, MoveAlias)
        aliases, caller = state_of(request).store.aliases, caller_of(request)
        asked: dict[str, Any] = {
            "owner": caller.owner, "expected": wanted.expected, "may_change": caller.may_change,
        }  # fmt: skip
        if wanted.version is None:
            moved = await state_of(request).write(aliases.rollback, alias, **asked)
        else:
            moved = await state_of(request).write(aliases.move, alias, wanted.version, **asked)
        await catalog_of(request).refresh()
        return await _shown(request, moved)

    @router.delete(
        one, status_code=204, response_class=Response, operation_id="remove_alias", summary="Remove an alias",
        responses=refusals(404, 409), **shared,
    )  # fmt: skip
    async def delete(request: Request, alias: str) -> Response:
        """The version it points to stays, and so does its history."""
        store, caller = state_of(request).store, caller_of(request)
        if await _find(store, alias) is None:
            raise _unknown()
        await state_of(request).write(store.aliases.remove, alias, owner=caller.owner, may_change=caller.may_change)
        await catalog_of(request).refresh()
        return Response(status_code=204)


async def _find(store: Store, name: str) -> Alias | None:
    return await in_thread(store.aliases.get, name) if ALIAS.fullmatch(name) else None


async def _shown(request: Request, alias: Alias) -> Response:
    history = await in_thread(state_of(request).store.aliases.history, alias.name, limit=HISTORY)
    return json_response(alias_document(alias, history), headers={"Nml-Version": alias.version})


def _unknown() -> Problem:
    return Problem(404, "there is no alias of this name")


_EXAMPLES: dict[str, Any] = {
    "back": {"summary": "To the version before the present one", "value": {"rollback": True}},
}
