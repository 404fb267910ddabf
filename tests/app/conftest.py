"""One service for all tests of this folder; each test uses task names of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from app.client import Client
from tests import tiny
from tests.app.serving import GRADER, Service, fresh, serving, settings_of

# As tests.tiny has it, but it shows tools, and refuses a conversation that begins with "refuse me".
CHAT_TEMPLATE = (
    "{% if messages[0]['content'] == 'refuse me' %}{{ raise_exception('no') }}{% endif %}"
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
) + tiny.CHAT_TEMPLATE


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random model with a context of 4096 tokens."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny.build(folder, max_position_embeddings=4096)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return folder


@pytest.fixture(scope="session")
def service(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A running service, shared."""
    with serving(settings_of(tmp_path_factory.mktemp("data"), tiny_model)) as running_service:
        yield running_service


@pytest.fixture
def client(service: Service) -> Client:
    """A typed client of the shared service."""
    return service.client


@pytest.fixture
def http(service: Service) -> Iterator[httpx.Client]:
    """A bare HTTP client of the shared service, with its token."""
    headers = {"Authorization": f"Bearer {service.parts.token}"}
    with httpx.Client(base_url=service.url, headers=headers, timeout=60) as bare:
        yield bare


@pytest.fixture
def openai(service: Service) -> Iterator[OpenAI]:
    """OpenAI's own client, without its retries."""
    with OpenAI(
        base_url=f"{service.url}/v1", api_key=service.parts.token, max_retries=0
    ) as official:
        yield official


@pytest.fixture
def task(client: Client) -> str:
    """A task of the test's own."""
    return client.create_task(fresh(), GRADER, system_prompt="Answer briefly.").name
