"""A checkpoint for a benchmark out of a config alone: the stages make random weights, and here is the tokenizer.

The tokenizer is made, not trained: bytes, then strings of four letters, as many as the model has text tokens. So random
tokens become text of about the length that real ones have, and to spell and join it costs what it costs in service. The
words of the prompt are tokens as well, so that prompts are as long as real ones.
"""

from __future__ import annotations

import itertools
import json
import string
from pathlib import Path
from typing import Any

from backends.json_file import read_json

#: Of Qwen3-ASR, in the order of their ids behind the text.
CONTROL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|audio_start|>", "<|audio_end|>", "<|audio_pad|>", "<asr_text>",
)  # fmt: skip
#: As a byte-level vocabulary spells them.
_PROMPT = ("system", "user", "assistant", "language", "\u0120English")


def has_weights(folder: Path) -> bool:
    """Whether a checkpoint brings weights of its own."""
    return any(folder.glob("*.safetensors"))


def make_checkpoint(source: Path, target: Path) -> Path:
    """The folder ``target``: config.json of ``source`` (a Qwen3-ASR) and a tokenizer of the size that it asks for.

    The head is one of its own: random weights with a tied one repeat the last token of the prompt, which is no text. A
    step reads as much either way.
    """
    config = read_json(source / "config.json") | {"tie_word_embeddings": False}
    target.mkdir(parents=True)
    (target / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    words = min(config["eos_token_id"])  # the first control token of the published numbering
    (target / "tokenizer.json").write_text(json.dumps(_tokenizer(words), ensure_ascii=False), encoding="utf-8")
    return target


def _tokenizer(words: int) -> dict[str, Any]:
    """``words`` text tokens, then the control tokens."""
    spelled = [chr(code) for code in [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]]
    spelled += [*(chr(256 + place) for place in range(256 - len(spelled))), *_PROMPT]
    letters = ("\u0120" + "".join(four) for four in itertools.product(string.ascii_lowercase, repeat=4))
    vocabulary = [*spelled, *itertools.islice(letters, words - len(spelled))]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": words + place, "content": content, "special": content != "<asr_text>", **flags}
            for place, content in enumerate(CONTROL)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "ignore_merges": True,
            "vocab": {token: place for place, token in enumerate(vocabulary)},
            "merges": [],
        },
    }
