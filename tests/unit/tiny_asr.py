"""Tiny speech-to-text checkpoints with random weights, as transformers saves them, and requests for their decoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import (
    GenerationConfig,
    MossTranscribeDiarizeConfig,
    MossTranscribeDiarizeForConditionalGeneration,
    Qwen3ASRConfig,
    Qwen3ASRForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from backends.decoder.chunks import ChunkSchedule
from backends.decoder.engine import DecoderEngine
from backends.decoder.prompt_audio import PromptAudio
from backends.decoder.request import DecodeRequest
from backends.decoder.sampler import SamplingParams
from backends.models.text_rows import text_rows
from tests.unit import decoding
from tests.unit.decoding import Listener

AUDIO, ENDS, VOCABULARY = 2990, [2991, 2992], 3000
GREEDY = SamplingParams(0, 0.0, 1.0, 0, 1.0)
Tokens = np.ndarray[Any, Any]


def randomise(model: nn.Module, seed: int) -> None:
    """Weights large enough that a random model does not write the same token for ever."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                scale = 0.1 if "embed_tokens" in name else parameter[0].numel() ** -0.5
                scale = 1.0 if "decoder.embed_positions" in name else scale
                parameter.normal_(0.0, 1.2 * scale, generator=generator)
            elif name.endswith("bias"):
                parameter.normal_(0.0, 0.1, generator=generator)


def tiny_qwen3_asr(folder: Path, tied: bool = True) -> Qwen3ASRForConditionalGeneration:
    """A Qwen3-ASR of 0.3 million weights, saved to ``folder``. Eight chunks of 1 s are one window, as published."""
    config = Qwen3ASRConfig(
        audio_config={
            "model_type": "qwen3_asr_encoder", "num_mel_bins": 16, "encoder_layers": 2, "encoder_attention_heads": 4,
            "encoder_ffn_dim": 64, "d_model": 32, "output_dim": 64, "downsample_hidden_size": 8,
        },
        text_config={
            "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": VOCABULARY,
            "max_position_embeddings": 512, "tie_word_embeddings": tied,
        },
        audio_token_id=AUDIO, eos_token_id=ENDS, pad_token_id=ENDS[0], tie_word_embeddings=tied,
    )  # fmt: skip
    model = Qwen3ASRForConditionalGeneration(config).eval()
    randomise(model, seed=5)
    model.save_pretrained(folder)
    return model


# Of the tiny Whisper: a vocabulary that is no multiple of 16, its tokens, and what it may not write.
WHISPER_WORDS, START, NO_TIMESTAMPS, PREVIOUS, END = 2998, 2990, 2991, 2992, 2989
SUPPRESSED, FIRST_SUPPRESSED = [3, 5, 2990, 2991, 2992], [20, 2989]


def tiny_whisper(folder: Path) -> WhisperForConditionalGeneration:
    """A Whisper of 0.4 million weights that hears 2 s, saved to ``folder``."""
    config = WhisperConfig(
        vocab_size=WHISPER_WORDS, num_mel_bins=16, d_model=64, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96,
        max_source_positions=100, max_target_positions=128, decoder_start_token_id=START, bos_token_id=END,
        eos_token_id=END, pad_token_id=END, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).eval()
    randomise(model, seed=7)
    model.generation_config = GenerationConfig(
        suppress_tokens=SUPPRESSED, begin_suppress_tokens=FIRST_SUPPRESSED, no_timestamps_token_id=NO_TIMESTAMPS,
        prev_sot_token_id=PREVIOUS, is_multilingual=False, return_timestamps=False, decoder_start_token_id=START,
        bos_token_id=END, eos_token_id=END, pad_token_id=END,
    )  # fmt: skip
    model.save_pretrained(folder)
    return model


def tiny_moss_transcribe(folder: Path) -> MossTranscribeDiarizeForConditionalGeneration:
    """A MOSS-Transcribe-Diarize of 0.3 million weights with windows of 2 s, saved to ``folder``."""
    config = MossTranscribeDiarizeConfig(
        audio_config={
            "num_mel_bins": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
            "hidden_size": 32, "max_source_positions": 100,
        },
        text_config={
            "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": VOCABULARY,
            "max_position_embeddings": 512,
        },
        audio_token_id=AUDIO, audio_chunk_size=32_000, eos_token_id=ENDS[0],
    )  # fmt: skip
    model = MossTranscribeDiarizeForConditionalGeneration(config).eval()
    randomise(model, seed=9)
    model.save_pretrained(folder)
    return model


def byte_tokenizer(folder: Path) -> dict[str, int]:
    """A tokenizer of bytes with the control tokens of the Qwen family, saved to ``folder``; these tokens by name."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={byte: index for index, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = ["<|im_start|>", "<|im_end|>", "<|audio_start|>", "<|audio_end|>", "<|audio_pad|>"]
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    tokenizer.add_tokens([AddedToken("<asr_text>", special=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return {token.content: number for number, token in tokenizer.get_added_tokens_decoder().items()}


def request(
    stream: int,
    ids: list[int],
    audio: PromptAudio | None,
    tokens: int,
    sampling: SamplingParams = GREEDY,
    chunk: int = 3,
) -> tuple[Listener, DecodeRequest]:
    """A request for up to ``tokens`` tokens, in chunks of 1 ... ``chunk``."""
    listener = Listener()
    rows = torch.from_numpy(text_rows(ids)).long()
    return listener, DecodeRequest(stream, rows, sampling, tokens, ChunkSchedule(1, chunk), listener, audio)


def play(engine: DecoderEngine, requests: list[tuple[Listener, DecodeRequest]], together: bool) -> list[Tokens]:
    """The tokens of every request, all at once or one after another."""
    return [codes[:, 0] for codes in decoding.play(engine, requests, together)]


def without_end(tokens: Tensor, ends: list[int]) -> Tokens:
    """What transformers generated, without the token that ended it."""
    made: list[int] = tokens.tolist()
    return np.array(made[:-1] if made and made[-1] in ends else made, dtype=np.int32)
