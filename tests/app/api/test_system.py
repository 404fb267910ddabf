"""Health and the page at the service's address."""

from __future__ import annotations

import httpx

from tests.app.serving import Service


def test_health_needs_no_token_and_names_the_model(service: Service) -> None:
    response = httpx.get(f"{service.url}/healthz")
    assert response.status_code == 200
    assert response.json()["status"] == "ok"
    assert response.json()["engine"]["model"] == "tiny"


def test_page_lists_every_endpoint_and_runs_no_script(service: Service) -> None:
    response = httpx.get(service.url)
    assert response.status_code == 200
    assert "/v1/chat/completions" in response.text
    assert "/v1/training/jobs/{job_id}/events" in response.text
    assert "<script" not in response.text
    assert "default-src 'none'" in response.headers["content-security-policy"]


def test_openapi_document_needs_the_token(service: Service, http: httpx.Client) -> None:
    assert httpx.get(f"{service.url}/openapi.json").status_code == 401
    assert "/v1/tasks" in http.get("/openapi.json").json()["paths"]
