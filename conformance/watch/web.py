"""JSON over HTTP, for those who are told; nothing that is secret gets into a sentence."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage
from typing import IO, Any

_TIMEOUT = 30.0  # seconds between two pieces of an answer
_MOST = 20_000_000  # bytes of an answer


class NotTold(Exception):
    """Somebody could not be told; the message is a sentence."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The body, as JSON if it is any, and the address of the next page, if there is one."""

    data: Any
    link: str


def send(whom: str, method: str, url: str, headers: Mapping[str, str], data: Any = None) -> Answer:
    """Make one request; ``whom`` is what sentences call the other side.

    Raises:
        NotTold: there was no answer, or it was no success.
    """
    if not url.startswith(("https://", "http://")):
        raise NotTold(f"{whom} was not told: its address does not begin with https://.")
    body = None if data is None else json.dumps(data).encode()
    try:
        request = urllib.request.Request(url, body, {**headers}, method=method)
        if body is not None:
            request.add_header("Content-Type", "application/json")
        with _OPENER.open(request, timeout=_TIMEOUT) as answer:
            text = answer.read(_MOST)
            link = answer.headers.get("Link", "")
    except urllib.error.HTTPError as error:
        error.close()
        raise NotTold(
            f"{whom} was not told: it answers {error.code}{_advice(error.code)}."
        ) from None
    except (OSError, ValueError, HTTPException) as error:
        # Neither the error's text nor the address: a webhook's is its password.
        reason = getattr(error, "reason", None)
        kind = type(reason if isinstance(reason, Exception) else error).__name__
        raise NotTold(f"{whom} was not told: it cannot be reached ({kind}).") from None
    try:
        return Answer(json.loads(text), link)
    except ValueError:
        return Answer(None, link)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirection ends in an error: urllib would give the token to whoever it leads to."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


def _advice(code: int) -> str:
    if code in (401, 403, 404):
        return ", so look at the token, what it may do, and the address"
    return ", as it has moved: use its new address" if 300 <= code < 400 else ""
