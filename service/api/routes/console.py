"""/ and /console/…: the files of the console."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from service.api.console import POLICY, PREFIX, files
from service.api.embeddings.negotiation import accept_and_match, matches_tag
from service.api.problems import Problem

router = APIRouter(include_in_schema=False)


@router.api_route("/", methods=["GET", "HEAD"])
@router.api_route(PREFIX + "{name:path}", methods=["GET", "HEAD"])
async def get_page(request: Request) -> Response:
    """A browser keeps it, and asks each time whether it is still the same: an upgrade never mixes old and new files."""
    file = files().get(request.scope["path"])
    if file is None:
        raise Problem(404, "the console has no such file")
    headers = {"ETag": file.tag.decode(), "Cache-Control": "no-cache", "Content-Security-Policy": POLICY}
    if matches_tag(accept_and_match(request.scope["headers"])[1], file.tag):
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)
