"""The clients of `benchmarks.soak`: what they ask for, and how they judge what they get."""

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from app.events import parse_events

HANG_S = 60.0
TIE = 0.01  # log-probabilities closer than this are almost the same
WORDS = ("light", "door", "open", "close", "warm", "cold", "on", "off")
URL = "/v1/chat/completions"

Body = dict[str, Any]


@dataclass(frozen=True)
class Known:
    """What a model answered to a prompt while nobody else asked.

    Attributes:
        text: the answer.
        pieces: its tokens' texts.
        margins: by how much the best token was more likely than the second, per token.
    """

    text: str
    pieces: tuple[str, ...]
    margins: tuple[float, ...]


@dataclass
class Tally:
    """What happened; written by all clients."""

    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    examples: list[dict[str, Any]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: str) -> None:
        """One more of something."""
        with self.lock:
            self.counts[what] += 1

    def error(self, kind: str, example: Mapping[str, Any]) -> None:
        """One more of something that should not be; the first ones are kept."""
        with self.lock:
            self.errors[kind] += 1
            if len(self.examples) < 20:
                self.examples.append({"kind": kind, **example})


def ask_alone(http: httpx.Client, model: str, messages: Any, tokens: int) -> Known:
    """The answer while nobody else asks."""
    body = greedy(model, messages, tokens) | {"logprobs": True, "top_logprobs": 2}
    choice = http.post(URL, json=body).raise_for_status().json()["choices"][0]
    content = choice["logprobs"]["content"]
    margins = [
        token["top_logprobs"][0]["logprob"] - token["top_logprobs"][1]["logprob"]
        for token in content
    ]
    pieces = tuple(token["token"] for token in content)
    return Known(choice["message"]["content"], pieces, tuple(margins))


def greedy(model: str, messages: Any, tokens: int) -> Body:
    """A request whose answer is always the same."""
    return {"model": model, "messages": messages, "temperature": 0, "max_tokens": tokens}


@dataclass(frozen=True)
class Traffic:
    """What the clients share."""

    connect: Callable[[], httpx.Client]
    models: list[str]
    prompts: list[Any]
    known: dict[tuple[str, int], Known]
    tokens: int
    ends: float  # as time.monotonic counts
    tally: Tally = field(default_factory=Tally)
    wave: threading.Event = field(default_factory=threading.Event)


def connection(url: str, token: str, patience_s: float = HANG_S) -> httpx.Client:
    """A client with the token; it gives up on what makes no progress."""
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=url, headers=headers, timeout=patience_s)


def behave(traffic: Traffic, seed: int) -> None:
    """One client, until the end: a random request, then a pause."""
    draw = random.Random(seed)
    acts = [whole, streamed, hang_up, sampled, refused, looked]
    weights = [40, 25, 12, 10, 10, 3]
    with traffic.connect() as http:
        while time.monotonic() < traffic.ends:
            traffic.wave.wait()
            act = draw.choices(acts, weights)[0]
            try:
                act(traffic, http, draw)
            except httpx.ReadTimeout:
                engine = http.get("/healthz").json()["engine"]
                traffic.tally.error("hang", {"act": act.__name__, "engine": engine})
            except httpx.HTTPError as error:
                traffic.tally.error(type(error).__name__, {"act": act.__name__, "say": str(error)})
            traffic.tally.count(act.__name__)
            time.sleep(draw.expovariate(2.0))


def whole(traffic: Traffic, http: httpx.Client, draw: random.Random) -> None:
    """A greedy answer in one piece."""
    model, number = draw.choice(sorted(traffic.known))
    body = greedy(model, traffic.prompts[number], traffic.tokens)
    response = http.post(URL, json=body)
    if succeeded(traffic, response):
        compare(traffic, model, number, response.json()["choices"][0]["message"]["content"])


def streamed(traffic: Traffic, http: httpx.Client, draw: random.Random) -> None:
    """A greedy answer as it comes."""
    model, number = draw.choice(sorted(traffic.known))
    body = greedy(model, traffic.prompts[number], traffic.tokens) | {"stream": True}
    with http.stream("POST", URL, json=body) as response:
        if response.status_code != 200:
            response.read()
        if succeeded(traffic, response):
            text = "".join(deltas(traffic, response))
            compare(traffic, model, number, text)


def hang_up(traffic: Traffic, http: httpx.Client, draw: random.Random) -> None:
    """A streamed answer that nobody waits for to the end.

    It is not very long: a model that says half characters only is silent until its last token.
    """
    body = random_body(traffic, draw) | {"stream": True, "max_tokens": 4 * traffic.tokens}
    with http.stream("POST", URL, json=body) as response:
        if response.status_code != 200:
            response.read()
        if succeeded(traffic, response):
            for number, _ in enumerate(deltas(traffic, response)):
                if number >= draw.randrange(8):
                    return


def sampled(traffic: Traffic, http: httpx.Client, draw: random.Random) -> None:
    """An answer at random, to a prompt of random length."""
    extra = {"temperature": draw.uniform(0.1, 2), "top_p": draw.uniform(0.1, 1)}
    extra |= {"top_k": draw.randrange(1, 100_000), "seed": draw.randrange(1 << 31)}
    succeeded(traffic, http.post(URL, json=random_body(traffic, draw) | extra))


def refused(traffic: Traffic, http: httpx.Client, draw: random.Random) -> None:
    """A request that is to be refused, and with which status."""
    body = random_body(traffic, draw)
    wrong: list[tuple[int, Callable[[], httpx.Response]]] = [
        (400, lambda: http.post(URL, content=b'{"model": "x", "messages": [')),
        (400, lambda: http.post(URL, json=body | {"messages": []})),
        (400, lambda: http.post(URL, json=body | {"max_tokens": 10**6})),
        (400, lambda: http.post(URL, json=body | {"temperature": "hot"})),
        (400, lambda: http.post(URL, json=body | {"functions": [{"name": "f"}]})),
        (400, lambda: http.post(URL, json=body | {"modalities": ["audio"]})),
        (400, lambda: http.post(URL, json=body | {"no_such_field": 1})),
        (404, lambda: http.post(URL, json=body | {"model": "nobody"})),
        (401, lambda: http.post(URL, json=body, headers={"Authorization": "Bearer x"})),
        (413, lambda: http.post(URL, content=b"x" * (3 << 20))),
        (404, lambda: http.get("/v1/nothing")),
    ]
    status, send = draw.choice(wrong)
    got = send().status_code
    if got != status:
        traffic.tally.error("not refused", {"expected": status, "got": got})


def looked(traffic: Traffic, http: httpx.Client, draw: random.Random) -> None:
    """Somebody looks at what there is."""
    succeeded(traffic, http.get(draw.choice(["/healthz", "/v1/models", "/v1/tasks"])))


def random_body(traffic: Traffic, draw: random.Random) -> Body:
    """A question of 1 to 300 random words to a random model."""
    words = draw.choices(WORDS, k=300)
    said = " ".join(words[: int(draw.lognormvariate(3, 1)) + 1])
    messages = [{"role": "user", "content": said}]
    return greedy(draw.choice(traffic.models), messages, draw.randrange(1, 2 * traffic.tokens))


def succeeded(traffic: Traffic, response: httpx.Response) -> bool:
    """Whether it is a 200; anything else is counted by its status and code."""
    if response.status_code == 200:
        return True
    code = response.json()["error"]["code"]
    traffic.tally.error(f"{response.status_code} {code}", {"say": response.text[:300]})
    return False


def deltas(traffic: Traffic, response: httpx.Response) -> Iterator[str]:
    """The texts of a streamed answer."""
    for event in parse_events(response.iter_lines()):
        if event.data == "[DONE]":
            return
        frame = json.loads(event.data)
        if "error" in frame:
            traffic.tally.error("broken off", {"say": event.data[:300]})
            return
        for choice in frame["choices"]:
            yield choice["delta"].get("content") or ""
    traffic.tally.error("no end", {})


def compare(traffic: Traffic, model: str, number: int, text: str) -> None:
    """Holds an answer against the known one."""
    known = traffic.known[model, number]
    if text == known.text:
        traffic.tally.count("compared, the same")
        return
    others = {m for (m, n), k in traffic.known.items() if n == number and k.text == text}
    margin = leaving(known, text)
    kind = "near-tie" if margin < TIE else "mismatch"
    if others and margin >= TIE:
        kind = "wrong expert"
    detail = {"model": model, "prompt": number, "margin": margin, "said": text}
    traffic.tally.error(kind, detail | {"known": known.text, "others": sorted(others)})


def leaving(known: Known, text: str) -> float:
    """By how much the known token was the likeliest where another text leaves the known one."""
    seen = ""
    for piece, margin in zip(known.pieces, known.margins, strict=True):
        seen += piece
        if not text.startswith(seen):
            return margin
    return known.margins[-1] if known.margins else float("inf")
