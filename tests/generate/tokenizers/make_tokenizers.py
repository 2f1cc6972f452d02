#!/usr/bin/env python3
"""Makes gpt2.json and llama3.json, two small tokenizers of the forms that GPT-2 and Llama 3 have, and cases.json: texts
with the ids that PyPI's tokenizers gives them. Usage, in a virtual environment with `pip install tokenizers==0.23.*`:
make_tokenizers.py TEXT_FILE
"""
import json
import pathlib
import sys

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).resolve().parent
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEXTS = [
    "the time of the sea", " The  sea,   and\n\nthe land's end.\t12345 67 they'LL we've", "naïve café — 東京タワー 🙂🙂 １２３ ٣٤ ², ½",
    "a<|endoftext|>b <|begin_of_text|>", "   \n \t x  ", "\u00a0no\u2003break\u0085 space", "x\r\n\r\ny", "'s 'S ’s I'm", "e\u0301 ﬁ ß ſ 's",
    "\u0000\u0001\u007f\u00ad", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "_under_score-dash/slash\\n", "<|endoftext|>", "नमस्ते दुनिया",
]


def trained(tokenizer, special, text):
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train([str(text)], trainer)
    return tokenizer


def gpt2(text):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return trained(tokenizer, ["<|endoftext|>"], text)


def llama3(text):
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(Regex(LLAMA3), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    trained(tokenizer, ["<|begin_of_text|>", "<|end_of_text|>"], text)
    begin = processors.TemplateProcessing("<|begin_of_text|> $A", "<|begin_of_text|> $A $B", [("<|begin_of_text|>", 0)])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), begin])
    return tokenizer


def main():
    cases = {}
    for name, make in (("gpt2", gpt2), ("llama3", llama3)):
        tokenizer = make(pathlib.Path(sys.argv[1]))
        tokenizer.save(str(HERE / f"{name}.json"), pretty=False)
        cases[name] = {text: tokenizer.encode(text).ids for text in TEXTS if "\u0000" not in text}
    (HERE / "cases.json").write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main()
