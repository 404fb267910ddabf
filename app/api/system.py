"""Health, and the page a browser finds at the service's address."""

from html import escape
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response

from app.api.schemas import Health
from app.night.nightly import opens as opens_at
from app.state import Parts, Running

router = APIRouter()

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>nightowl</title>
<h1>nightowl</h1>
<p>Status: {status}. Base model: {model}. Rows being answered: {rows}.</p>
<h2>Endpoints</h2>
<pre>{endpoints}</pre>
<p>All but this page and /healthz need the token of the data folder.</p>
</html>
"""
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@router.get("/healthz", response_model=Health)
@router.head("/healthz", include_in_schema=False)
def healthz(parts: Running) -> Response:
    """200 while the engine can answer, else 503; `status` is ok, restarting, failed or stopped."""
    engine = parts.engine.health()
    health = Health(status=engine["status"], engine=engine | {"training": _training(parts)})
    return JSONResponse(
        health.model_dump(mode="json"), status_code=200 if health.status == "ok" else 503
    )


def _training(parts: Parts) -> dict[str, Any]:
    """When training may run, and until when it waits for the night."""
    opens = opens_at(parts.database, parts.settings)
    return {
        "when": parts.settings.training,
        "duty_cycle": parts.settings.duty_cycle,
        "waits_until": None if opens is None else opens.isoformat(),
    }


@router.get("/", response_class=HTMLResponse, include_in_schema=False)
def page(request: Request, parts: Running) -> HTMLResponse:
    """What this is and what it can be asked."""
    engine = parts.engine.health()
    paths: dict[str, list[str]] = {}
    for path, methods in request.app.openapi()["paths"].items():
        paths[path] = [method.upper() for method in methods]
    lines = [f"{' '.join(methods):<18} {path}" for path, methods in sorted(paths.items())]
    return HTMLResponse(
        _PAGE.format(
            status=escape(engine["status"]),
            model=escape(engine["model"]),
            rows=engine["active_rows"],
            endpoints=escape("\n".join(lines)),
        ),
        headers=_HEADERS,
    )
