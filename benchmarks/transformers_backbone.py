"""The nearest that transformers has to our decode step: its own Qwen3 backbone of the same size, eager."""

from __future__ import annotations

import json
import time

import torch
from transformers import DynamicCache, Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3Model

from benchmarks.decoder_bench import Bench


def transformers_backbone(bench: Bench, batches: tuple[int, ...]) -> list[dict[str, float]]:
    """A decode step of transformers' own Qwen3Model of the same size, without the frame-local part: what is usual."""
    qwen3 = json.loads((bench.folder / "config.json").read_text())["qwen3_config"]
    config = Qwen3Config(**{key: value for key, value in qwen3.items() if key != "model_type"})
    with torch.device(bench.device):
        model = Qwen3Model(config).to(bench.dtype).eval()
    results = []
    with torch.inference_mode():
        for batch in batches:
            cache = DynamicCache(config=config)
            x = torch.randn(batch, bench.options.prompt, config.hidden_size, device=bench.device, dtype=bench.dtype)
            model(inputs_embeds=x, past_key_values=cache, use_cache=True)
            for count in range(30):
                if count == 10:
                    bench.wait()
                    started = time.perf_counter()
                model(inputs_embeds=x[:, :1], past_key_values=cache, use_cache=True)
            bench.wait()
            results.append({"batch": batch, "ms": 1e3 * (time.perf_counter() - started) / 20})
            print(f"transformers Qwen3Model alone, B {batch}: {results[-1]['ms']:.2f} ms a step", flush=True)
    return results
