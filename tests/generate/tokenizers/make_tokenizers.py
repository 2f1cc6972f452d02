#!/usr/bin/env python3
"""Makes small tokenizers of the types of GPT-2, Llama 3, Llama 2 (characters, spaces by a normalizer) and Mistral
(characters, spaces by Metaspace), and cases.json: texts with the ids from PyPI's tokenizers. Usage, in a virtual
environment with `pip install tokenizers==0.23.*`: make_tokenizers.py TEXT_FILE
"""
import json
import pathlib
import sys

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).resolve().parent
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEXTS = [
    "the time of the sea", " The  sea,   and\n\nthe land's end.\t12345 67 they'LL we've", "naïve café — 東京タワー 🙂🙂 １２３ ٣٤ ², ½",
    "a<|endoftext|>b <|begin_of_text|>", "   \n \t x  ", "\u00a0no\u2003break\u0085 space", "x\r\n\r\ny", "'s 'S ’s I'm", "e\u0301 ﬁ ß ſ 's",
    "\u0000\u0001\u007f\u00ad", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "_under_score-dash/slash\\n", "<|endoftext|>", "नमस्ते दुनिया",
    "the</s>sea", "<s> the sea</s> and</s>the <unk> land", "\u2581the\u2581\u2581sea", "<0x0A>",
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


def characters(text, byte_fallback=True):
    """Returns a BPE over characters in SentencePiece's form: merges are learnt over words, but it does not split into
    words.
    """
    first = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=byte_fallback, fuse_unk=True))
    first.pre_tokenizer = pre_tokenizers.Metaspace()
    table = [f"<0x{byte:02X}>" for byte in range(256)] if byte_fallback else []
    first.train([str(text)], trainers.BpeTrainer(vocab_size=400 if byte_fallback else 200, special_tokens=["<unk>", "<s>", "</s>", *table]))
    model = json.loads(first.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    tokenizer = Tokenizer(models.BPE(model["vocab"], merges, unk_token="<unk>", byte_fallback=byte_fallback, fuse_unk=True))
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 1)])
    return tokenizer


def llama2(text):
    tokenizer = characters(text)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return tokenizer


def mistral(text):
    tokenizer = characters(text)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = llama2(text).decoder
    return tokenizer


def metaspace(text):
    """Returns a tokenizer as the package trains it: split at spaces, a space before every part, no byte fallback."""
    tokenizer = characters(text, byte_fallback=False)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return tokenizer


KINDS = {"gpt2": gpt2, "llama3": llama3, "llama2": llama2, "mistral": mistral, "metaspace": metaspace}


def main():
    cases = {}
    for name, make in KINDS.items():
        path = HERE / f"{name}.json"
        # Training is not deterministic, so existing tokenizers are kept.
        tokenizer = Tokenizer.from_file(str(path)) if path.exists() else make(pathlib.Path(sys.argv[1]))
        tokenizer.save(str(path), pretty=False)
        cases[name] = {text: tokenizer.encode(text).ids for text in TEXTS if "\u0000" not in text}
    (HERE / "cases.json").write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main()
