#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""awkward_text.py FILE: a text that is hard to show: markup, control characters, UTF-8 whole and broken, long lines."""
import sys
from pathlib import Path

PIECES = [
    b"</script><script>console.error('out')</script>", b"<!-- <b>&amp;&lt; \"'`${1}{{data}} -->", b"\\u003c\\n\\x00 %3Cp%3E",
    bytes(range(32)), b"\x7f\x80\x9f\xa0\xfe\xff",
    "é ß 中文 ½ 🦋 א ا".encode(), "e\u0301 \u202eback\u202c \u200b\ufeff\u2028".encode(),
    b"\xc3\xc3\xa9\xe4\xb8\xf0\x9f", b"\r\n\t\tend\t \n\n\n", b"x" * 150 + b"\n", b" " * 90 + b"\n",
]

text = b"".join(PIECES)
Path(sys.argv[1]).write_bytes(text * (4096 // len(text) + 1))
