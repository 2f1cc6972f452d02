"""tools/tokenize: `python -m prun.tokenize --tokenizer tokenizer.json --out data corpus/*.jsonl`."""
from __future__ import annotations

from .tools import run_tool

if __name__ == "__main__":
    run_tool("tokenize")
