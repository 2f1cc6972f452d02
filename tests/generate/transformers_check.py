#!/usr/bin/env python3
"""Greedy tokens and log-probabilities of `prun generate FOLDER` against transformers, for small random models that it
saves. Run by hand, in a virtual environment with torch and transformers: transformers_check.py PRUN
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

TOKENIZER = pathlib.Path(__file__).resolve().parent / "tokenizers/gpt2.json"
PROMPT, TOKENS, END = "the time of the sea", 60, 419
SIZES = {"vocab_size": 420, "hidden_size": 64, "intermediate_size": 120, "num_attention_heads": 4, "max_position_embeddings": 128, "eos_token_id": END}


def models():
    yield GPT2LMHeadModel(GPT2Config(vocab_size=420, n_positions=128, n_embd=64, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=END))
    yield LlamaForCausalLM(LlamaConfig(num_hidden_layers=3, num_key_value_heads=2, rope_theta=5e4, **SIZES))
    yield LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, head_dim=32, tie_word_embeddings=True, attention_bias=True, mlp_bias=True, **SIZES))


def of_transformers(model, ids):
    """What it makes after `ids`, greedily, with log-probabilities."""
    made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False, output_logits=True,
                          return_dict_in_generate=True)
    tokens = made.sequences[0, ids.shape[1]:].tolist()
    return tokens, [torch.log_softmax(logits[0].double(), -1)[token].item() for logits, token in zip(made.logits, tokens)]


def main():
    torch.manual_seed(0)
    worst = 0.0
    for number, model in enumerate(models()):
        with torch.no_grad(), tempfile.TemporaryDirectory(prefix="prun-transformers-") as folder:
            for parameter in model.parameters():
                parameter.mul_(3)  # so that one token is clearly the most likely
            model.eval().save_pretrained(folder)
            shutil.copy(TOKENIZER, pathlib.Path(folder) / "tokenizer.json")
            for ranks in ("1", "2"):
                words = [folder, "--nproc", ranks, "--prompt", PROMPT, "--tokens", str(TOKENS), "--temperature", "0", "--json"]
                ours = json.loads(subprocess.run([sys.argv[1], "generate", *words], capture_output=True, check=True).stdout)
                tokens, probabilities = of_transformers(model, torch.tensor([ours["prompt"]]))
                assert tokens == ours["ids"], (number, ranks, tokens, ours["ids"])
                worst = max([worst, *(abs(a - b) for a, b in zip(probabilities, ours["log_probabilities"]))])
    print(f"tokens are equal, log-probabilities to {worst:.1e}")
    return worst >= 1e-4


if __name__ == "__main__":
    sys.exit(main())
