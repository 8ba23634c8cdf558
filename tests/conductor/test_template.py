"""Chat templates are rendered as `transformers` renders them."""

from __future__ import annotations

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from moontide.conductor.template import ChatTemplate, TemplateRefused

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are helpful<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
WHITESPACE = """
{%- for message in messages %}
    {%- if message.role == 'skip' %}
        {%- continue %}
    {%- endif %}
    {% if message.role == 'assistant' %}
    {%- generation %}{{ message.content }}{% endgeneration %}
    {% else %}
    {{ message | tojson }} {{ bos_token }}
    {% endif %}
{%- endfor %}
"""
CONVERSATIONS = [
    [{"role": "user", "content": "Grüße <b> & 'quotes'"}],
    [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "<|im_end|>"},
        {"role": "assistant", "content": "a\nb"},
        {"role": "user", "content": " "},
    ],
    [{"role": "skip", "content": "x"}, {"role": "user", "content": "y"}],
]


@pytest.mark.parametrize("source", [CHATML, WHITESPACE], ids=["chatml", "whitespace"])
@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_rendered_as_transformers_does(source: str, messages: list[dict[str, str]]) -> None:
    expected, _ = render_jinja_template(
        conversations=[messages],
        chat_template=source,
        add_generation_prompt=True,
        bos_token="<s>",
        eos_token="</s>",
    )
    made = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    assert made.render(messages) == expected[0]


def test_a_broken_template_and_a_refusing_one_say_why() -> None:
    with pytest.raises(TemplateRefused, match="broken"):
        ChatTemplate("{% for %}")
    refusing = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(TemplateRefused, match="roles must alternate"):
        refusing.render([{"role": "user", "content": "x"}])
    with pytest.raises(TemplateRefused, match="refuses these messages"):
        ChatTemplate("{{ messages[3].content + 1 }}").render([{"role": "user", "content": "x"}])


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__['os'] }}",
        "{{ cycler.__init__.__globals__ }}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    with pytest.raises(TemplateRefused):
        ChatTemplate(source).render([{"role": "user", "content": "x"}])


def test_strftime_now_gives_todays_date() -> None:
    assert len(ChatTemplate("{{ strftime_now('%Y-%m-%d') }}").render([{}])) == 10
