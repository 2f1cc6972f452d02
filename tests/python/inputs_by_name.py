"""Architectures whose inputs are more than tokens and the next ones: masks, labels, positions, two texts. Each with the
batch that it is trained on.
"""
import logging

import torch
import transformers

logging.getLogger("transformers").setLevel(logging.ERROR)
VOCAB, BATCH, TOKENS, PADDING = 128, 8, 16, 0
SIZES = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
             initializer_range=0.1, pad_token_id=PADDING)
MARIAN = dict(vocab_size=VOCAB, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
              decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=32,
              pad_token_id=0, decoder_start_token_id=1, init_std=0.1, forced_eos_token_id=None)
DISTIL = dict(vocab_size=VOCAB, dim=32, hidden_dim=64, n_layers=2, n_heads=4, initializer_range=0.1)


def without_dropout(module):
    """Returns the module in train mode whose masks of dropout would keep everything."""
    for one in module.modules():
        for name in ("p", "dropout", "attention_dropout", "activation_dropout", "dropout_prob", "drop_prob"):
            if isinstance(getattr(one, name, None), float):
                setattr(one, name, 0.0)
    return module.train()


def of(name, **options):
    """Returns a model of transformers and its configuration by the name of its class."""
    kind = getattr(transformers, name)
    config = kind.config_class(**options)
    config.use_cache = False
    return without_dropout(kind(config))


def padded(labels="tokens", **more):
    """Returns sentences of different lengths. `labels`: of each token, "classes" of two, or one of each sample."""
    def batch():
        draw = torch.Generator().manual_seed(1)
        lengths = torch.tensor([TOKENS - 2 * (i % 6) for i in range(BATCH)])
        mask = (torch.arange(TOKENS) < lengths[:, None]).long()
        padding = more.get("padding", PADDING)
        ids = torch.randint(5, VOCAB, (BATCH, TOKENS), generator=draw) * mask + padding * (1 - mask)
        if labels == "samples":
            targets = torch.randint(0, 2, (BATCH,), generator=draw)
        else:
            targets = torch.randint(0, 2 if labels == "classes" else VOCAB, (BATCH, TOKENS), generator=draw)
            targets[(mask == 0) | (torch.rand(BATCH, TOKENS, generator=draw) < 0.3)] = -100
        result = {"input_ids": ids, "attention_mask": mask, "labels": targets}
        if more.get("positions"):
            result["position_ids"] = torch.arange(1, TOKENS + 1).expand(BATCH, -1) * mask + more.get("first", 0)
        return result
    return batch


def translated(given=True):
    """Returns texts with padding and their translations. `given`: also what the decoder reads, not computed from them."""
    batch = padded()()
    target = torch.randint(5, VOCAB, (BATCH, 12), generator=torch.Generator().manual_seed(2))
    if not given:
        target[:, 8:] = torch.where(torch.arange(BATCH)[:, None] % 2 == 0, -100, target[:, 8:])
        return {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "labels": target}
    before = torch.cat([torch.full((BATCH, 1), 1), target[:, :-1]], 1)
    return {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "decoder_input_ids": before,
            "labels": target}


ARCHITECTURES = {
    "BERT, masked tokens": (lambda: of("BertForMaskedLM", **SIZES), padded()),
    "BERT, classes of texts": (lambda: of("BertForSequenceClassification", **SIZES), padded("samples")),
    "BERT, classes of tokens": (lambda: of("BertForTokenClassification", **SIZES), padded("classes")),
    "DistilBERT": (lambda: of("DistilBertForSequenceClassification", **DISTIL), padded("samples")),
    "ModernBERT": (lambda: of("ModernBertForMaskedLM", **SIZES, bos_token_id=1, eos_token_id=2, cls_token_id=1,
                              sep_token_id=2, initializer_cutoff_factor=3.0), padded()),
    "ModernBERT with windows": (lambda: of("ModernBertForMaskedLM", **SIZES, bos_token_id=1, eos_token_id=2, cls_token_id=1,
                                           sep_token_id=2, local_attention=8), padded()),
    "RoBERTa": (lambda: of("RobertaForMaskedLM", **{**SIZES, "pad_token_id": 1}, max_position_embeddings=40),
                padded(positions=True, first=1)),
    "ESM": (lambda: of("EsmForMaskedLM", **SIZES, mask_token_id=3, max_position_embeddings=40),
            padded(positions=True)),
    "Marian": (lambda: of("MarianMTModel", **MARIAN), translated),
    # Ids that the module computes: positions from padding, the decoder's tokens from the labels, the last token.
    "RoBERTa, positions from tokens": (lambda: of("RobertaForMaskedLM", **{**SIZES, "pad_token_id": 1},
                                                  max_position_embeddings=40), padded(padding=1)),
    "ESM, positions from tokens": (lambda: of("EsmForMaskedLM", **SIZES, mask_token_id=3, max_position_embeddings=40),
                                   padded()),
    "Llama, classes of texts": (lambda: of("LlamaForSequenceClassification", **SIZES, num_key_value_heads=2),
                                padded("samples")),
    "Marian, from labels": (lambda: of("MarianMTModel", **{**MARIAN, "decoder_start_token_id": 0}),
                            lambda: translated(False)),
    # Relative positions, and layers that are applied several times.
    "MPNet": (lambda: of("MPNetForMaskedLM", **{**SIZES, "pad_token_id": 1}), padded(padding=1)),
    "T5": (lambda: of("T5ForConditionalGeneration", vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=64, num_layers=2,
                      num_decoder_layers=1, num_heads=4, decoder_start_token_id=0), lambda: translated(False)),
    "ALBERT": (lambda: of("AlbertForMaskedLM", **SIZES, embedding_size=32), padded()),
}
