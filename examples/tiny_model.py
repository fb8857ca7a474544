"""A language model of some ten thousand weights, made on the spot and taught in seconds to call a tool.

Its tokenizer knows bytes, and the pieces of a tool call as whole tokens, so that games stay short.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import chat_template_utils

TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool.function.name }} {% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>
{%- if message.role == 'tool' %}user
<tool_response>{{ message.content }}</tool_response>
{%- else %}{{ message.role }}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}<tool_call>{"name": "
{{- call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>
{%- endfor %}
{%- endif %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}

PIECES = ['<tool_call>{"name": "place", "arguments": {"row": ', ', "col": ', ', "value": ', "}}</tool_call>"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


class ChatTokenizer(PreTrainedTokenizerFast):
    """For versions of TRL that parse a turn without what stood before it."""

    def parse_response(self, response: Any, *args: Any, prefix: Any = None, **kwargs: Any) -> Any:
        if prefix is None:
            prefix = self("<|im_start|>assistant\n")["input_ids"]
        return super().parse_response(response, *args, prefix=prefix, **kwargs)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, the three special tokens, and the pieces of a call."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.add_tokens(PIECES)
    made = ChatTokenizer(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", padding_side="left"
    )
    made.chat_template = TEMPLATE
    made.response_template = RESPONSE_TEMPLATE
    made.response_schema = chat_template_utils.qwen3_schema  # older versions of TRL look whether it is there
    return made


def make_model(
    tokenizer: PreTrainedTokenizerFast, seed: int = 0, *, width: int = 32, layers: int = 1
) -> LlamaForCausalLM:
    """A model with random weights.

    Args:
        tokenizer: which the model is for.
        seed: of the weights.
        width: numbers a token; a multiple of 8.
        layers: number of layers.
    """
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def call_text(row: int, col: int, value: int) -> str:
    """A move as the model has to write it."""
    return f"{PIECES[0]}{row}{PIECES[1]}{col}{PIECES[2]}{value}{PIECES[3]}"


def any_move(draw: random.Random, prompt: str) -> str:
    """A move with digits from 1 to 4, whatever the board."""
    return call_text(*(draw.randint(1, 4) for _ in range(3)))


def teach(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompts: list[str],
    steps: int = 80,
    *,
    answer: Callable[[random.Random, str], str] = any_move,
    rate: float = 1e-2,
    on_step: Callable[[int, float], object] | None = None,
) -> float:
    """Teach it that an assistant's turn is one call. Returns the last loss.

    Args:
        model: trained in place.
        tokenizer: of the model.
        prompts: rendered conversations, up to the assistant's turn.
        steps: of 16 examples each.
        answer: makes the turn that follows a prompt.
        rate: of learning.
        on_step: is told the step, from 1, and its loss.
    """
    draw = random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    loss = torch.tensor(0.0)
    for step in range(1, steps + 1):
        rows = []
        for _ in range(16):
            prompt = draw.choice(prompts)
            told = tokenizer(prompt)["input_ids"]
            said = tokenizer(answer(draw, prompt) + "<|im_end|>")["input_ids"]
            rows.append((told, said))
        longest = max(len(told) + len(said) for told, said in rows)
        pad = tokenizer.pad_token_id
        ids = torch.tensor([[pad] * (longest - len(told) - len(said)) + told + said for told, said in rows])
        labels = torch.tensor([[-100] * (longest - len(said)) + said for _, said in rows])
        loss = model(input_ids=ids, attention_mask=(ids != pad).long(), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if on_step is not None:
            on_step(step, loss.item())
    return loss.item()
