# SPDX-License-Identifier: Apache-2.0
"""The scheduler's side: blocks at the head of a request go back to the pool one step after the request was cut."""

from __future__ import annotations

from typing import Any, Sequence

from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

from .arithmetic import Course, first_cut


class CutManager(FullAttentionManager):
    def __init__(self, kv_cache_spec: Any, **kwargs: Any) -> None:
        super().__init__(kv_cache_spec, **kwargs)
        self.cuts = kv_cache_spec.cuts
        if self.cuts.during_prefill:  # else a prompt is held as a whole
            self.max_admission_blocks_per_request = kv_cache_spec.most_held
        self.courses: dict[str, Course] = {}
        self.begins: dict[str, tuple[int, int]] = {}  # the tokens of a request at the begin of the next step, and those of its prompt

    def remove_skipped_blocks(self, request_id: str, processed_computed_tokens: int, num_prompt_tokens: int | None = None) -> None:
        """What was cut in an earlier step leaves now. A step that cuts moves rows first, so its blocks stay until it is over."""
        self.begins[request_id] = (processed_computed_tokens, num_prompt_tokens or 0)
        course = self.courses.get(request_id)
        if course is not None and course.skip > 0 and request_id in self.req_to_blocks:
            self._remove_blocks_in_range(request_id, 0, course.skip)

    def add_local_computed_blocks(self, request_id: str, new_computed_blocks: Sequence[Any], *args: Any, **kwargs: Any) -> None:
        self.courses[request_id] = Course(self.cuts, shared=len(new_computed_blocks))
        super().add_local_computed_blocks(request_id, new_computed_blocks, *args, **kwargs)

    def allocate_new_blocks(self, request_id: str, num_tokens: int, num_tokens_main_model: int) -> list[Any]:
        """The request takes part in the next step: the worker cuts it there if its course says so."""
        begin, prompt = self.begins[request_id]
        course = self.courses.setdefault(request_id, Course(self.cuts))
        course.step(begin, begin >= prompt and num_tokens - begin == 1)
        return super().allocate_new_blocks(request_id, num_tokens, num_tokens_main_model)

    def cache_blocks(self, request: Any, num_tokens: int, *args: Any, **kwargs: Any) -> None:
        """Hashes the blocks into which no cut moves rows: all others change, or are computed without the whole context."""
        limit = self._intact(request)
        super().cache_blocks(request, num_tokens if limit is None else min(num_tokens, limit * self.block_size), *args, **kwargs)

    def _intact(self, request: Any) -> int | None:
        course = self.courses.get(request.request_id, Course(self.cuts))
        if course.began or course.intact > 0:
            return course.never_written()
        first = self.cuts.first(request.num_prompt_tokens, course.shared)
        if request.num_tokens > request.num_prompt_tokens:  # it was preempted, and may begin to decode anywhere behind its prompt
            return self.cuts.skipped(first)
        ahead = Course(self.cuts, course.shared)
        ahead.step(first, True)
        return ahead.never_written()

    def pop_blocks_for_free(self, request_id: str) -> list[Any]:
        self.courses.pop(request_id, None)
        self.begins.pop(request_id, None)
        return super().pop_blocks_for_free(request_id)

    @classmethod
    def find_longest_cache_hit(cls, block_hashes: Any, max_length: int, kv_cache_group_ids: list[int], block_pool: Any, kv_cache_spec: Any,
                               *args: Any, **kwargs: Any) -> tuple[tuple[list[Any], ...], int]:
        """A hit ends where the first cut begins to write, and leaves the tokens whose query rows this cut reads."""
        cut = first_cut(kv_cache_spec.cuts, max_length + 1)
        if cut is not None:
            block = kv_cache_spec.block_size
            longest = min(kv_cache_spec.cuts.skipped(cut), max(0, cut - kv_cache_spec.window) // block)
            max_length = max(0, min(max_length - 1, longest * block))  # two tokens or more are computed: one alone would look like a decode step
        return super().find_longest_cache_hit(block_hashes, max_length, kv_cache_group_ids, block_pool, kv_cache_spec, *args, **kwargs)
