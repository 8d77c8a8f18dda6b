"""Sizes and switches of the decoder engine."""

from __future__ import annotations

from dataclasses import dataclass

from backends.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What an engine is built with; the stage's config.pbtxt documents each."""

    max_running: int = 16
    max_waiting: int = 256
    max_positions: int = 1024
    kv_pages: int = 0  # 0: enough for every slot at its longest
    page_rows: int = 16
    prefill_rows: int = 32
    prefill_pieces: int = 0  # 0: see pieces()
    deterministic: bool = True
    lookahead: bool = True
    lookahead_min_batch: int = 0  # 0: 1 on a GPU; never on a CPU, where host and device are one
    prefix_cache: bool = True
    cuda_graph: bool = True
    cuda_graph_min_free_gib: float = 2.0
    num_threads: int = 0
    nice: int = 0  # on a CPU: by how much the engine's thread gives way to those that queue and send
    force_frames: int = 0  # benchmarks: every request makes exactly so many frames
    check_integrity: bool = False

    def pieces(self, together: bool) -> int:
        """Pieces of prompts between two decode steps; ``together``: one pass reads them.

        0 means 1 of them, and 8 ... 16 together: three for every 16 places, so that short requests come in as fast as
        they go out (64 of 20 tokens each end at 3.2 a step, and a second of speech is 13 rows of a prompt).
        """
        return self.prefill_pieces or (min(16, max(8, 3 * self.max_running // 16)) if together else 1)

    def pages(self) -> int:
        """Pages of the KV cache. Raises InvalidArgument for sizes that do not fit together."""
        if self.prefill_rows % self.page_rows:
            raise InvalidArgument(
                "prefill_rows", f"{self.prefill_rows} is not a multiple of page_rows {self.page_rows}"
            )
        longest = -(-self.max_positions // self.page_rows)
        pages = self.kv_pages or self.max_running * longest
        if pages < longest:
            raise InvalidArgument("kv_pages", f"{pages} is below {longest}, what one request of max_positions needs")
        return pages
