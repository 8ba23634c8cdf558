"""From a request as OpenAI shapes it to what a worker is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .cluster.models import Model
from .errors import BadRequest, NotSupported, PromptTooLong
from .protocol import NEUTRAL_VALUES, ChatRequest, CompletionRequest, GenerationRequest
from .template import TemplateRefused
from .upstream import GenerationBody

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's, for /v1/completions


@dataclass(frozen=True, slots=True)
class Text:
    """Raw text, tokenised as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages for the model's chat template."""

    messages: tuple[Mapping[str, str], ...]


@dataclass(frozen=True, slots=True)
class Tokens:
    token_ids: tuple[int, ...]


Prompt = Text | Conversation | Tokens


@dataclass(frozen=True, slots=True)
class Generation:
    """One checked request."""

    prompt: Prompt
    request: GenerationRequest
    max_tokens: int | None  # None: as many as the context has room for
    max_tokens_field: str

    @property
    def streams(self) -> bool:
        return bool(self.request.stream)

    @property
    def includes_usage(self) -> bool:
        options = self.request.stream_options
        return options is not None and bool(options.include_usage)

    def encode(self, model: Model) -> list[int]:
        """Token ids of the prompt, which fit the context; slow, off the loop. Raises BadRequest and
        PromptTooLong."""
        if isinstance(self.prompt, Tokens):
            token_ids = list(self.prompt.token_ids)
        elif isinstance(self.prompt, Text):
            self._check_size(model, self.prompt.text)
            token_ids = model.encode_text(self.prompt.text)
        else:
            text = self._render(model, self.prompt)
            self._check_size(model, text)
            token_ids = model.encode_rendered(text)
        self._room(model, len(token_ids))
        return token_ids

    def body(self, model: Model, token_ids: list[int], *, seed: int) -> GenerationBody:
        """What the worker is asked; `seed` where the client gave none, so that all workers that
        have a part in the answer sample alike. Raises PromptTooLong and BadRequest, naming both
        counts."""
        request = self.request
        stop = [request.stop] if isinstance(request.stop, str) else request.stop
        return GenerationBody(
            prompt=token_ids,
            model=model.name,
            max_tokens=self._room(model, len(token_ids)),
            stream=True,
            stream_options={"include_usage": True},
            return_token_ids=True,
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            seed=seed if request.seed is None else request.seed,
            stop=stop or None,
            ignore_eos=request.ignore_eos,
        )

    def _render(self, model: Model, conversation: Conversation) -> str:
        if model.template is None:
            raise BadRequest(
                f"model {model.name!r} has no chat template: use /v1/completions", field="model"
            )
        try:
            return model.template.render(conversation.messages)
        except TemplateRefused as error:
            raise BadRequest(str(error), field="messages") from error

    @property
    def _prompt_field(self) -> str:
        return "messages" if isinstance(self.prompt, Conversation) else "prompt"

    def _check_size(self, model: Model, text: str) -> None:
        """Refuses what cannot fit before any time is spent on it."""
        fewest = model.fewest_tokens(text)
        if fewest >= model.context_tokens:
            raise PromptTooLong(
                f"the prompt has {len(text)} characters, which are {fewest} tokens at least; model "
                f"{model.name!r} has a context of {model.context_tokens}",
                field=self._prompt_field,
            )

    def _room(self, model: Model, num_tokens: int) -> int:
        field = self._prompt_field
        if num_tokens == 0:
            raise BadRequest("the prompt has 0 tokens; it must have at least 1", field=field)
        room = model.context_tokens - num_tokens
        if room < 1:
            raise PromptTooLong(
                f"the prompt has {num_tokens} tokens; model {model.name!r} has a context of "
                f"{model.context_tokens}, of which the answer needs at least 1",
                field=field,
            )
        if self.max_tokens is None:
            return room
        if self.max_tokens > room:
            raise PromptTooLong(
                f"the prompt has {num_tokens} tokens and {self.max_tokens_field} is "
                f"{self.max_tokens}: together {num_tokens + self.max_tokens}; model "
                f"{model.name!r} has a context of {model.context_tokens}",
                field=self.max_tokens_field,
            )
        return self.max_tokens


def from_completion(request: CompletionRequest) -> Generation:
    """Raises BadRequest, NotSupported."""
    _refuse_unsupported(request)
    return Generation(
        _completion_prompt(request.prompt),
        request,
        DEFAULT_COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens,
        "max_tokens",
    )


def from_chat(request: ChatRequest) -> Generation:
    """Raises BadRequest, NotSupported."""
    _refuse_unsupported(request)
    for number, message in enumerate(request.messages):
        _refuse_unsupported(message, within=f"messages[{number}].")
    names = "max_completion_tokens", "max_tokens"
    given = {name: value for name in names if (value := getattr(request, name)) is not None}
    if len(set(given.values())) > 1:
        raise BadRequest(
            f"max_tokens is {request.max_tokens} and max_completion_tokens "
            f"{request.max_completion_tokens}: give one",
            field="max_tokens",
        )
    field, limit = next(iter(given.items()), ("max_tokens", None))
    messages = tuple(
        {"role": m.role, "content": m.text()} | ({"name": m.name} if m.name else {})
        for m in request.messages
    )
    return Generation(Conversation(messages), request, limit, field)


def _completion_prompt(prompt: str | list[str | int | list[int]]) -> Prompt:
    if isinstance(prompt, str):
        return Text(prompt)
    numbers = [item for item in prompt if isinstance(item, int)]
    if numbers and len(numbers) == len(prompt):
        return Tokens(tuple(numbers))
    if len(prompt) != 1:
        raise BadRequest(
            f"prompt is a list of {len(prompt)} prompts; one request takes 1", field="prompt"
        )
    only = prompt[0]
    if isinstance(only, str):
        return Text(only)
    assert isinstance(only, list)
    return Tokens(tuple(only))


def _refuse_unsupported(request: object, within: str = "") -> None:
    for name, neutral in NEUTRAL_VALUES.items():
        value = getattr(request, name, None)
        if value is None or any(_same(value, one) for one in neutral):
            continue
        shown = repr(value)
        shown = shown if len(shown) <= 80 else f"{shown[:80]}…"
        allowed = ", ".join(map(repr, neutral)) or "null"
        raise NotSupported(
            f"{within}{name}={shown} is not supported: leave it out or give {allowed}",
            field=within + name,
        )


def _same(value: object, neutral: object) -> bool:
    """0.0 is 0, but false is not."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
