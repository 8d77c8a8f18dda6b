"""Is the server able to work? Triton's own health routes stay at 200 when a stage is dead, so a canary must sing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import grpc
from tritonclient.utils import InferenceServerException

from client.errors import SpeechError, sentence
from client.stream import no_server

if TYPE_CHECKING:
    from tritonclient.grpc.aio import InferenceServerClient

    from client.connection import Connection


@dataclass(frozen=True)
class Health:
    """What ``health()`` found.

    ok          the canary was answered, and nothing else was wrong
    live        the server answers
    ready       the server says that it is ready
    models      state by model name, as the server's index has it (``READY``, what is wrong, or "" for a model that it
                was not asked to load)
    latency_s   seconds until the canary's first chunk; None when none came
    problem     one sentence, "" when ok
    """

    ok: bool
    live: bool
    ready: bool
    models: dict[str, str]
    latency_s: float | None
    problem: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


async def check(client: Connection, triton: InferenceServerClient) -> Health:
    """Server live, server ready, models ready, then the client's canary."""
    seconds = client.deadlines.chunk
    live = ready = False
    models: dict[str, str] = {}
    try:
        live = bool(await triton.is_server_live(client_timeout=seconds))
        ready = bool(await triton.is_server_ready(client_timeout=seconds))
        models = await model_states(triton, seconds)
    except InferenceServerException as error:
        return Health(False, live, ready, models, None, _call_problem(client.url, error, seconds))
    problem = _model_problem(client.model, ready, models)
    if problem:
        return Health(False, live, ready, models, None, problem)
    try:
        latency = await client.canary()
    except SpeechError as error:
        problem = f"The server says it is ready, but it cannot {client.task}. {error}"
        return Health(False, live, ready, models, None, problem)
    return Health(True, live, ready, models, latency, "")


async def model_states(triton: InferenceServerClient, seconds: float) -> dict[str, str]:
    """``Health.models``. Raises what tritonclient raises."""
    index = await triton.get_model_repository_index(client_timeout=seconds)
    return {m.name: m.state if m.state == "READY" else f"{m.state} {m.reason}".strip() for m in index.models}


def _model_problem(model: str, ready: bool, models: dict[str, str]) -> str:
    # Without a state: in the repository, but never asked for (serve.py --pipelines).
    ill = [f"{name} is {state}" for name, state in sorted(models.items()) if state not in ("", "READY")]
    if not models.get(model):
        known = ", ".join(sorted(name for name, state in models.items() if state)) or "none"
        return f"The server has no model {model!r}; it has: {known}."
    if ill:
        return sentence(f"Not all models are ready: {'; '.join(ill)}")
    return "" if ready else "The server is not ready yet."


def _call_problem(url: str, error: InferenceServerException, seconds: float) -> str:
    # tritonclient turns the gRPC status into the text "StatusCode.NAME".
    status, details = str(error.status()), str(error.message())
    if status == str(grpc.StatusCode.DEADLINE_EXCEEDED):
        return f"The server at {url} did not answer within {seconds:g} s."
    if status == str(grpc.StatusCode.UNAVAILABLE):
        return str(no_server(url, details))
    return sentence(f"The server at {url} refused a health question ({status}: {details})")
