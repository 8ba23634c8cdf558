"""Chat templates, rendered as `transformers` renders them: a sandboxed Jinja environment with
`trim_blocks`, `lstrip_blocks`, loop controls, `raise_exception`, `strftime_now`, a `tojson` that
leaves text readable, and the `generation` tag (which only marks text).

A template comes from a worker and is trusted to end; message text is data to it. As in vLLM, the
rendered text is tokenised with its special tokens, wherever they stand: a message that contains
`<|im_end|>` ends its turn.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class TemplateRefused(Exception):
    """The template cannot be compiled, or refuses these messages; the text says why."""


class ChatTemplate:
    """A compiled template, usable from any thread. Raises TemplateRefused when `source` is none."""

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateRefused(f"the model's chat template is broken: {error}") from error

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt text up to where the assistant speaks. Raises TemplateRefused."""
        try:
            return self._template.render(
                messages=list(messages),
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._tokens,
            )
        except (jinja2.TemplateError, TypeError, ValueError, LookupError) as error:
            raise TemplateRefused(
                f"the model's chat template refuses these messages: {error}"
            ) from error


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks what the assistant said, for training masks;
    here it stands for its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().astimezone().strftime(format)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The signature that templates call, without the HTML escapes of Jinja's own filter."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
