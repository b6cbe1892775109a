# SPDX-License-Identifier: Apache-2.0
"""Which policy and which budget for a model of transformers.

    python -m kvpolicy.evaluate MODEL --policies 'snapkv(window=32)' streaming_llm --budgets 1/8 1/4 --text FILE --html kept.html

Each policy answers questions about facts that stand in a prompt, once with the question at the end of the prompt and once
with a question that comes after the decision, and continues stretches of a text. The table has the shares of right answers
with their 95 % Wilson intervals, bits per byte, memory and time. The exit status is 2 if an argument was refused, and then
nothing is written.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, NoReturn, Sequence

from . import _page

POLICIES = ("streaming_llm", "snapkv(window=32)", "h2o", "knorm")
MOST_TEXT = 1 << 20  # characters of a text that are read


class Refused(Exception):
    """An argument that was refused: one line says why."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Refused(message)


def _parser() -> argparse.ArgumentParser:
    made = _Parser(prog="python -m kvpolicy.evaluate", description="Which policy and which budget for a model of transformers: recall, bits per byte, memory and time.")
    made.add_argument("model", help="a folder, or a name that transformers knows")
    made.add_argument("--policies", nargs="+", default=list(POLICIES), metavar="POLICY",
                      help="texts such as 'snapkv(window=32) | sinks(4)'; with a budget of its own a policy has one row")
    made.add_argument("--budgets", nargs="+", default=["1/8", "1/4"], metavar="BUDGET", help="parts of the prompt such as 1/8, or numbers of entries")
    made.add_argument("--text", metavar="FILE", help="what prompts are made of; without it a part of Python's own documentation")
    made.add_argument("--context", type=int, default=1024, metavar="N", help="tokens of a prompt (1024)")
    made.add_argument("--questions", type=int, default=12, metavar="N", help="questions, each asked in the prompt and later (12)")
    made.add_argument("--stretches", type=int, default=4, metavar="N", help="stretches of text that are continued (4)")
    made.add_argument("--length", type=int, default=64, metavar="N", help="tokens that continue a stretch (64)")
    made.add_argument("--quick", action="store_true", help="6 questions and 2 stretches")
    made.add_argument("--when", choices=("prefill", "forward"), help="when all policies decide; otherwise each as it is defined")
    made.add_argument("--gates", action="append", default=[], metavar="SCORER=FILE", help="weights of a scorer's gate, as trim_kv=gate.safetensors; repeatable")
    made.add_argument("--device", help="of the model: cpu or cuda; without it cuda if there is one")
    made.add_argument("--dtype", default="auto", help="of the model: auto, float32, bfloat16 or float16")
    made.add_argument("--threads", type=int, help="threads that decide")
    made.add_argument("--seed", type=int, default=7, help="which questions and stretches (7)")
    made.add_argument("--html", metavar="FILE", help="write the table, and what each policy kept of some texts, into this HTML file")
    made.add_argument("--docs", default="docs/evaluate.md", metavar="LINK", help="where the page's link to the documentation leads")
    return made


def _settle(given: argparse.Namespace) -> None:
    """Checks what can be checked without a model."""
    if given.quick:
        given.questions, given.stretches = 6, 2
    for name, least in (("context", 1), ("questions", 0), ("stretches", 0), ("length", 1)):
        if getattr(given, name) < least:
            raise Refused(f"--{name} = {getattr(given, name)}, but it is at least {least}")
    if given.questions + given.stretches == 0:
        raise Refused("--questions = 0, but without stretches nothing is measured")
    if given.html is not None:
        try:
            _page.check_replaceable(given.html)
        except ValueError as wrong:
            raise Refused(f"--html = {given.html}, but {wrong}") from None
        if given.text is not None and os.path.exists(given.html) and os.path.exists(given.text) and os.path.samefile(given.html, given.text):
            raise Refused(f"--html = {given.html}, but this run reads it")
    given.gates = dict(_gate(one) for one in given.gates)


def _gate(text: str) -> tuple[str, str]:
    scorer, _, file = text.partition("=")
    if not scorer or not file:
        raise Refused(f"--gates = {text}, but it is SCORER=FILE")
    return scorer, file


def _text(path: str | None) -> tuple[str, str]:
    """The text of prompts, and its name."""
    if path is not None:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                return file.read(MOST_TEXT), path.rsplit("/", 1)[-1]
        except OSError as failed:
            raise Refused(f"--text = {path}, but it cannot be read: {failed.strerror}") from None
    try:
        from pydoc_data.topics import topics  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise Refused("--text = missing, but this Python has no documentation from which prompts could be made") from None
    return "\n".join(topics[name] for name in sorted(topics))[:MOST_TEXT], "Python's documentation"


def _loaded(given: argparse.Namespace) -> tuple[Any, Any]:
    """The model and its tokenizer."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    dtype = given.dtype if given.dtype == "auto" else getattr(torch, given.dtype, None)
    if dtype != "auto" and not isinstance(dtype, torch.dtype):
        raise Refused(f"--dtype = {given.dtype}, but it is auto or a type of PyTorch such as bfloat16")
    device = given.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(given.model)
        model = transformers.AutoModelForCausalLM.from_pretrained(given.model, dtype=dtype).eval().to(device)
    except Exception as wrong:  # transformers and its hub raise many kinds
        raise Refused(f"model = {given.model}, but it cannot be loaded: {_line(wrong)}") from None
    return model, tokenizer


def _line(error: BaseException) -> str:
    """The first line of what an error says."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _run(given: argparse.Namespace) -> str:
    try:
        from ._evaluation import Evaluation, rows_of
    except ImportError as missing:
        raise Refused(f"{missing}: pip install 'kvpolicy[hf]'") from None
    _settle(given)
    text, text_name = _text(given.text)
    try:
        rows = rows_of(given.policies, given.budgets, given.context, given.gates, given.when)
        model, tokenizer = _loaded(given)
        evaluation = Evaluation(model, tokenizer, rows, text, context=given.context, questions=given.questions, stretches=given.stretches, length=given.length,
                                seed=given.seed, threads=given.threads, name=given.model.rstrip("/").rsplit("/", 1)[-1], text_name=text_name)
    except ValueError as wrong:
        raise Refused(_line(wrong)) from None
    _with_bar(evaluation)
    if given.html is not None:
        _page.replace(given.html, evaluation.page(given.docs))
    return str(evaluation.table())


def _with_bar(evaluation: Any) -> None:
    """Runs it under a progress bar: on a terminal it moves all the time, elsewhere a line appears now and then."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    with tqdm(total=evaluation.steps, unit="case", mininterval=0.2 if sys.stderr.isatty() else 15, file=sys.stderr) as bar:

        def advance(what: str) -> None:
            bar.set_description(what, refresh=False)
            bar.update()

        evaluation.run(advance)


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        print(_run(_parser().parse_args(arguments)))
    except Refused as refused:
        print(f"kvpolicy.evaluate: {refused}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except Exception as failed:
        print(f"kvpolicy.evaluate: {type(failed).__name__}: {_line(failed)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
