"""The demo's conversation: a real document, questions about it, and follow-ups.

With SmolLM2's tokenizer and chat template every prompt ends 1 to 28 tokens after a border of
64-token blocks, so what is left to compute on a hit is small; `check_border` proves it in every
run."""

from __future__ import annotations

from importlib import resources

import msgspec

from ..errors import LaunchError

BLOCK_TOKENS = 64
MAX_TAIL_TOKENS = 28
MIN_PROMPT_TOKENS = 1500

_SYSTEM = "You answer questions about a document that the user gives."

QUESTIONS = (
    "Who wrote this declaration, and to whom is it addressed?",
    "Which rights does the document call unalienable?",
    "Against whom are the complaints of this document directed?",
)

# (text, tokens it adds to a conversation with the template around it): one of them ends every
# conversation shortly after a border, wherever the answer before it ended.
_FOLLOW_UPS = (
    ("Say it in other words.", 17),
    (
        "Which sentence of the document says so? Quote that one sentence word by word, add nothing "
        "to it, and keep the old spelling of it.",
        41,
    ),
    (
        "Which sentence of the document says so? Quote that one sentence word by word, add nothing "
        "to it, and keep the old spelling of it. Then explain, in plain words that a child of ten "
        "years would understand, why you chose this one.",
        62,
    ),
)


class Message(msgspec.Struct, frozen=True):
    role: str
    content: str


def document() -> str:
    """The Declaration of Independence; source and licence stand beside it in `data/`."""
    folder = resources.files("moontide.conductor.launch") / "data"
    return (folder / "declaration.txt").read_text(encoding="utf-8")


def first_turn(question: str) -> list[Message]:
    return [Message("system", _SYSTEM), Message("user", f"{document()}\n{question}")]


def second_turn(first: list[Message], answer: str, *, tokens_before: int) -> list[Message]:
    """The conversation goes on. `tokens_before`: those of the first prompt and its answer."""
    text = _follow_up(tokens_before)
    return [*first, Message("assistant", answer), Message("user", text)]


def check_border(num_tokens: int) -> None:
    """Raises LaunchError unless a prompt of `num_tokens` is long enough and ends shortly after a
    block border."""
    tail = num_tokens % BLOCK_TOKENS
    if num_tokens < MIN_PROMPT_TOKENS or not 1 <= tail <= MAX_TAIL_TOKENS:
        raise LaunchError(
            f"a prompt of {num_tokens} tokens ends {tail} after a block border: the demo's prompts "
            f"need at least {MIN_PROMPT_TOKENS} tokens and 1 to {MAX_TAIL_TOKENS} after a border"
        )


def _follow_up(tokens_before: int) -> str:
    """The shortest that ends shortly after a border. One token of margin at both ends: an answer's
    end token may or may not be counted among `tokens_before`."""
    for text, tokens in _FOLLOW_UPS:
        if 2 <= (tokens_before + tokens) % BLOCK_TOKENS < MAX_TAIL_TOKENS:
            return text
    raise AssertionError("the lengths of the follow-ups leave a gap")
