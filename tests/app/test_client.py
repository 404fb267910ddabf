"""The typed client: discovery, errors, event streams, many threads."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from app.client import Client, ServiceError, ServiceUnreachable
from app.config import Settings
from app.main import listen, url_of
from app.security import TokenFileError
from tests.app.serving import GRADER, Service, episode, fresh, until

HI = [{"role": "user", "content": "hi"}]


def test_a_client_finds_the_token_in_the_data_folder(service: Service) -> None:
    port = int(service.url.rsplit(":", 1)[1])
    settings = service.parts.settings.model_copy(update={"port": port})
    with Client.of(settings) as client:
        assert client.url == service.url
        assert client.models()


def test_a_folder_no_service_has_used_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(ServiceUnreachable, match="nightowl serve"):
        Client.of(Settings(data_dir=tmp_path))


def test_a_token_file_open_to_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("x" * 43)
    (tmp_path / "token").chmod(0o644)
    with pytest.raises(TokenFileError):
        Client.of(Settings(data_dir=tmp_path))


def test_a_wrong_token_is_an_error_of_the_service(service: Service) -> None:
    with Client(service.url, "x" * 43) as client:
        assert client.health().status == "ok"
        with pytest.raises(ServiceError) as raised:
            client.models()
    assert (raised.value.status, raised.value.kind) == (401, "authentication_error")
    assert (raised.value.code, raised.value.param) == ("invalid_api_key", None)


def test_a_port_nobody_listens_on_is_unreachable() -> None:
    with listen("127.0.0.1", 0) as listener:
        url = url_of(listener)
    with Client(url, "x" * 43) as client:
        for ask in (client.models, lambda: list(client.job_events("j"))):
            with pytest.raises(ServiceUnreachable, match=url):
                ask()


def test_a_proxy_of_the_environment_is_not_used(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with Client(service.url, service.parts.token) as client:
        assert client.models()


def test_one_client_serves_many_threads(client: Client, task: str) -> None:
    def work(n: int) -> None:
        client.add_episode(episode(task, n))
        client.chat(task, HI, max_tokens=2)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    completions = sorted(stored.completion for stored in client.episodes(task))
    assert completions == sorted(f"on {n}" for n in range(24))


def test_iterating_episodes_goes_through_all_pages(client: Client, task: str) -> None:
    client.add_episodes([episode(task, n) for n in range(250)])
    assert [e.completion for e in client.episodes(task)] == [f"on {n}" for n in range(250)]


def test_streamed_text_is_the_whole_answer(client: Client) -> None:
    whole = client.chat("tiny", HI, max_tokens=16).choices[0].message.content
    assert "".join(client.chat_stream("tiny", HI, max_tokens=16)) == whole


def test_closing_a_stream_ends_the_answer(service: Service, client: Client) -> None:
    def rows() -> int:
        return int(service.parts.engine.health()["active_rows"])

    before = service.parts.engine.health()["tokens_generated"]
    stream = client.chat_stream("tiny", HI, max_tokens=4000)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    until(lambda: rows() == 0)
    assert service.parts.engine.health()["tokens_generated"] < before + 4000


def test_a_refused_stream_raises_what_the_service_said(client: Client) -> None:
    with pytest.raises(ServiceError) as raised:
        next(client.chat_stream("nothing", HI))
    assert raised.value.code == "model_not_found"


@contextmanager
def scripted(answers: list[list[str]], asked: list[str | None]) -> Iterator[str]:
    """A server that answers each request with the next list of chunks and hangs up."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers["Last-Event-ID"])
            self.send_response(200)
            self.end_headers()
            for chunk in answers.pop(0):
                self.wfile.write(chunk.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def job_event(seq: int) -> str:
    now = datetime.now(UTC).isoformat()
    data = json.dumps({"seq": seq, "type": "progress", "data": {}, "created_at": now})
    return f"id: {seq}\nevent: progress\ndata: {data}\n\n"


def test_a_broken_event_stream_is_taken_up_where_it_broke() -> None:
    answers = [
        [": keep-alive\n\n", job_event(1), job_event(2), job_event(3)[:30]],
        [],
        [job_event(3), "event: end\ndata: {}\n\n"],
    ]
    asked: list[str | None] = []
    with scripted(answers, asked) as url, Client(url, "x" * 43) as client:
        assert [event.seq for event in client.job_events("j")] == [1, 2, 3]
    assert asked == ["0", "2", "2"]


def test_a_bad_field_is_named_in_the_exception(client: Client) -> None:
    with pytest.raises(ServiceError, match=r"training\.sigma") as raised:
        client.create_task(fresh(), GRADER, training={"sigma": 7})
    assert (raised.value.status, raised.value.param) == (400, "training.sigma")
