"""A typed client of the running service, for the demo, the command line and scripts.

One client may be used by many threads at once. The service's errors are raised as `ServiceError`
with the message it gave; a service that cannot be reached as `ServiceUnreachable`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import time
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx
from pydantic import BaseModel

from app.api.chat_schemas import ChatCompletion, ModelPublic
from app.api.grading_schemas import Regraded, TrustReport
from app.api.schemas import (
    EpisodePublic,
    ExpertDetail,
    ExpertPublic,
    GradePublic,
    GraderInfo,
    GraderValid,
    Health,
    JobEventPublic,
    JobPublic,
    SchedulePublic,
    TaskPublic,
)
from app.api.wire import Deleted, Json, Listed
from app.config import Settings
from app.events import ServerEvent, parse_events
from app.security import read_token

TIMEOUT_S = 600.0  # a chat request may wait for its turn; the service itself answers or refuses
STREAM_TIMEOUT_S = 60.0  # event streams send a keep-alive every 15 s
CONNECT_TIMEOUT_S = 5.0

Model = TypeVar("Model", bound=BaseModel)


class ServiceError(Exception):
    """The service refused; the parts of its error body."""

    def __init__(self, status: int, message: str, kind: str, code: str | None, param: str | None):
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.code = code
        self.param = param


class ServiceUnreachable(Exception):
    """No service answers at this address, or it went away."""


class Client:
    """The endpoints as methods. Use as a context manager, or `close` it."""

    def __init__(self, url: str, token: str, timeout_s: float = TIMEOUT_S) -> None:
        self.url = url.rstrip("/")
        self.token = token
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=None),
            trust_env=False,  # a proxy has no business between a program and its own computer
        )

    @classmethod
    def of(cls, settings: Settings, url: str | None = None) -> Self:
        """A client of the service of these settings, with the token of its data folder.

        Raises ServiceUnreachable when the folder has no token: no service ever ran there.
        """
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        try:
            token = read_token(settings.token)
        except FileNotFoundError as error:
            raise ServiceUnreachable(
                "no service has run with this data folder yet: start one with `nightowl serve`"
            ) from error
        return cls(url or f"http://{host}:{settings.port}", token)

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes."""
        self.close()

    # system

    def health(self) -> Health:
        """What the service is doing, healthy or not."""
        response = self._send("GET", "/healthz", good=(200, 503))
        return Health.model_validate_json(response.content)

    def models(self) -> list[ModelPublic]:
        """The names a chat request can ask for."""
        return self._get("/v1/models", Listed[ModelPublic]).data

    def schedule(self) -> SchedulePublic:
        """When nights are run."""
        return self._get("/v1/schedule", SchedulePublic)

    def set_schedule(self, enabled: bool, at: time) -> SchedulePublic:
        """Changes when nights are run."""
        body = {"enabled": enabled, "at": at.strftime("%H:%M")}
        return self._call("PUT", "/v1/schedule", SchedulePublic, body)

    # tasks

    def create_task(self, name: str, grader: Json, **fields: Any) -> TaskPublic:
        """Defines a task; `fields` as in `TaskCreate`."""
        body = {"name": name, "grader": grader, **fields}
        return self._call("POST", "/v1/tasks", TaskPublic, body)

    def tasks(self) -> list[TaskPublic]:
        """All tasks."""
        return self._get("/v1/tasks", Listed[TaskPublic]).data

    def task(self, name: str) -> TaskPublic:
        """One task."""
        return self._get(f"/v1/tasks/{name}", TaskPublic)

    def update_task(self, name: str, **changes: Any) -> TaskPublic:
        """Changes a task; `changes` as in `TaskUpdate`."""
        return self._call("PATCH", f"/v1/tasks/{name}", TaskPublic, changes)

    def delete_task(self, name: str) -> Deleted:
        """Deletes a task with everything that belongs to it."""
        return self._call("DELETE", f"/v1/tasks/{name}", Deleted)

    def rollback(self, name: str) -> TaskPublic:
        """Goes back to the version that was active before."""
        return self._call("POST", f"/v1/tasks/{name}/rollback", TaskPublic)

    def regrade(self, name: str, *, errored: bool = False, cursor: str | None = None) -> Regraded:
        """Grades episodes that the current grader has not seen; go on with `next_cursor`."""
        body = {"errored": errored, "cursor": cursor}
        return self._call("POST", f"/v1/tasks/{name}/regrade", Regraded, body)

    def trust(self, name: str) -> TrustReport:
        """Whether the task's grader can be satisfied without doing the task."""
        return self._get(f"/v1/tasks/{name}/trust", TrustReport)

    # episodes and graders

    def add_episode(self, episode: Mapping[str, Any]) -> EpisodePublic:
        """Stores one episode, as in `EpisodeCreate`; it comes back graded."""
        return self._call("POST", "/v1/episodes", EpisodePublic, dict(episode))

    def add_episodes(self, episodes: Sequence[Mapping[str, Any]]) -> list[EpisodePublic]:
        """Stores all of these episodes, or none; they come back graded, in the same order."""
        body = [dict(episode) for episode in episodes]
        return self._call("POST", "/v1/episodes", Listed[EpisodePublic], body).data

    def episodes(self, task: str | None = None) -> Iterator[EpisodePublic]:
        """All episodes, or those of a task, in order of arrival, fetched page by page."""
        return self._pages("/v1/episodes", Listed[EpisodePublic], task)

    def episode(self, id: str) -> EpisodePublic:
        """One episode."""
        return self._get(f"/v1/episodes/{id}", EpisodePublic)

    def delete_episode(self, id: str) -> Deleted:
        """Deletes one episode."""
        return self._call("DELETE", f"/v1/episodes/{id}", Deleted)

    def graders(self) -> list[GraderInfo]:
        """The grader types."""
        return self._get("/v1/graders", Listed[GraderInfo]).data

    def validate_grader(
        self, grader: Json, task: str | None = None, episodes: int = 100
    ) -> GraderValid:
        """The configuration with its defaults, if valid; tried on a task's last episodes."""
        body = {"grader": grader, "task": task, "episodes": episodes}
        return self._call("POST", "/v1/graders/validate", GraderValid, body)

    def run_grader(self, grader: Json, item: Json, model_sample: str | Json) -> GradePublic:
        """What a grader says of one answer."""
        body = {"grader": grader, "item": item, "model_sample": model_sample}
        return self._call("POST", "/v1/graders/run", GradePublic, body)

    # training

    def create_job(
        self,
        task: str,
        config: Json | None = None,
        seed: int | None = None,
        trigger: str = "api",
    ) -> JobPublic:
        """Queues a training run."""
        body = {"task": task, "config": config or {}, "seed": seed, "trigger": trigger}
        return self._call("POST", "/v1/training/jobs", JobPublic, body)

    def jobs(self, task: str | None = None) -> Iterator[JobPublic]:
        """All jobs, or those of a task, the newest first, fetched page by page."""
        return self._pages("/v1/training/jobs", Listed[JobPublic], task)

    def job(self, id: str) -> JobPublic:
        """One job."""
        return self._get(f"/v1/training/jobs/{id}", JobPublic)

    def cancel_job(self, id: str) -> JobPublic:
        """Ends a job for good."""
        return self._call("POST", f"/v1/training/jobs/{id}/cancel", JobPublic)

    def pause_job(self, id: str) -> JobPublic:
        """Stops a job, to be resumed later."""
        return self._call("POST", f"/v1/training/jobs/{id}/pause", JobPublic)

    def resume_job(self, id: str) -> JobPublic:
        """Lets a paused job go on."""
        return self._call("POST", f"/v1/training/jobs/{id}/resume", JobPublic)

    def job_events(self, id: str, after: int = 0) -> Iterator[JobEventPublic]:
        """The job's events after number `after` as they happen, until the job is over.

        A connection that breaks is taken up again where it broke. Raises ServiceUnreachable when
        the service has gone away.
        """
        while True:
            for event in self._stream_once(f"/v1/training/jobs/{id}/events", after):
                if event.type == "end":
                    return
                parsed = JobEventPublic.model_validate_json(event.data)
                after = parsed.seq
                yield parsed

    # experts

    def experts(self, task: str | None = None) -> list[ExpertPublic]:
        """All versions, or those of a task."""
        query = {} if task is None else {"task": task}
        return self._get("/v1/experts", Listed[ExpertPublic], query).data

    def expert(self, id: str) -> ExpertDetail:
        """One version with its manifest."""
        return self._get(f"/v1/experts/{id}", ExpertDetail)

    def activate(self, id: str) -> ExpertPublic:
        """Makes a version answer for its task."""
        return self._call("POST", f"/v1/experts/{id}/activate", ExpertPublic)

    def delete_expert(self, id: str) -> Deleted:
        """Deletes a version and its files."""
        return self._call("DELETE", f"/v1/experts/{id}", Deleted)

    def download(self, id: str, file: str = "expert.safetensors") -> bytes:
        """One of a version's files: `expert.safetensors` or `manifest.json`."""
        return self._send("GET", f"/v1/experts/{id}/download", query={"file": file}).content

    # chat

    def chat(self, model: str, messages: Sequence[Json], **options: Any) -> ChatCompletion:
        """A whole answer; `options` as in `ChatCreate`."""
        body = {"model": model, "messages": list(messages), **options}
        return self._call("POST", "/v1/chat/completions", ChatCompletion, body)

    def chat_stream(self, model: str, messages: Sequence[Json], **options: Any) -> Iterator[str]:
        """The text of an answer as it comes. Closing the iterator ends the answer."""
        body = {"model": model, "messages": list(messages), "stream": True, **options}
        for event in self._events("POST", "/v1/chat/completions", body=body):
            if event.data == "[DONE]":
                return
            chunk = json.loads(event.data)
            if "error" in chunk:
                raise _service_error(500, chunk)
            for choice in chunk["choices"]:
                if choice["delta"].get("content"):
                    yield choice["delta"]["content"]
        raise ServiceUnreachable("the service broke off in the middle of an answer")

    # how it is sent

    def _get(self, path: str, model: type[Model], query: Mapping[str, str] | None = None) -> Model:
        return model.model_validate_json(self._send("GET", path, query=query).content)

    def _call(self, method: str, path: str, model: type[Model], body: Any = None) -> Model:
        return model.model_validate_json(self._send(method, path, body=body).content)

    def _pages(self, path: str, model: type[Listed[Model]], task: str | None) -> Iterator[Model]:
        query = {} if task is None else {"task": task}
        while True:
            page = self._get(path, model, query)
            yield from page.data
            if page.next_cursor is None:
                return
            query["cursor"] = page.next_cursor

    def _send(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        good: Sequence[int] = (),
    ) -> httpx.Response:
        try:
            response = self._http.request(method, path, json=body, params=dict(query or {}))
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        if not response.is_success and response.status_code not in good:
            raise _refusal(response)
        return response

    def _stream_once(self, path: str, after: int) -> Iterator[ServerEvent]:
        """Events until the stream ends or breaks; raises only if it could not be opened."""
        opened = False
        try:
            for event in self._events("GET", path, headers={"Last-Event-ID": str(after)}):
                opened = True
                yield event
        except ServiceUnreachable:
            if not opened:
                raise

    def _events(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[ServerEvent]:
        timeout = httpx.Timeout(STREAM_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        if body is not None:
            timeout = httpx.Timeout(TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        try:
            with self._http.stream(
                method, path, json=body, headers=dict(headers or {}), timeout=timeout
            ) as response:
                if not response.is_success:
                    response.read()
                    raise _refusal(response)
                yield from parse_events(response.iter_lines())
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: httpx.TransportError) -> ServiceUnreachable:
        return ServiceUnreachable(f"no service answers at {self.url}: {error}")


def _refusal(response: httpx.Response) -> ServiceError:
    """The service's error as an exception."""
    try:
        body = response.json()
    except ValueError:
        body = {}
    return _service_error(response.status_code, body)


def _service_error(status: int, body: Any) -> ServiceError:
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict) or "message" not in error:
        return ServiceError(status, f"HTTP status {status}", "server_error", None, None)
    return ServiceError(
        status,
        str(error["message"]),
        str(error.get("type")),
        error.get("code"),
        error.get("param"),
    )
