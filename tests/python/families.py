"""Modules of the families that export, small and with random weights, and variants of their common parts."""
import logging

import small_gpt
import transformers

logging.getLogger("transformers").setLevel(logging.ERROR)
VOCAB, CONTEXT = 256, 32
ROTARY = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=64, pad_token_id=None, bos_token_id=None, eos_token_id=None,
              use_cache=False, initializer_range=0.1, tie_word_embeddings=False)


def of_transformers(name, **options):
    """Returns a causal language model of transformers by the name of its family."""
    config = getattr(transformers, {"Gemma3": "Gemma3Text"}.get(name, name) + "Config")(**options)
    architecture = {"GPT2": "GPT2LMHeadModel", "Gemma3": "Gemma3ForCausalLM"}.get(name, name + "ForCausalLM")
    return getattr(transformers, architecture)(config)


FAMILIES = {
    "nanoGPT": lambda: small_gpt.GPT(vocab=VOCAB, context=CONTEXT, deviation=0.1),
    # With initializer_range=0.1, PyTorch's own weights in f32 are 1.4e-5 from those in f64 after ten steps of AdamW.
    "GPT-2": lambda: of_transformers(
        "GPT2", vocab_size=VOCAB, n_embd=64, n_layer=3, n_head=4, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=None, eos_token_id=None, use_cache=False, initializer_range=0.08),
    "Llama": lambda: of_transformers("Llama", **ROTARY),
    "Llama, tied": lambda: of_transformers("Llama", **{**ROTARY, "tie_word_embeddings": True}),
    "Llama 3.1": lambda: of_transformers("Llama", **ROTARY, rope_parameters=dict(
        rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=16)),
    "Llama, YaRN": lambda: of_transformers("Llama", **{**ROTARY, "num_hidden_layers": 2}, rope_parameters=dict(
        rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=16)),
    "Mistral": lambda: of_transformers("Mistral", **ROTARY),
    "Qwen2": lambda: of_transformers("Qwen2", **ROTARY),
    "Starcoder2": lambda: of_transformers("Starcoder2", **ROTARY, residual_dropout=0.0, embedding_dropout=0.0),
    "SmolLM3": lambda: of_transformers("SmolLM3", **ROTARY),
    "Mixtral": lambda: of_transformers("Mixtral", **ROTARY, num_local_experts=4),
    "Mixtral, balanced": lambda: of_transformers("Mixtral", **ROTARY, num_local_experts=4, output_router_logits=True,
                                                 router_aux_loss_coef=0.02),
    "Phi-3": lambda: of_transformers("Phi3", **ROTARY),
    "Phi-3, half of a head rotated": lambda: of_transformers("Phi3", **ROTARY, partial_rotary_factor=0.5),
    "Phi-3, LongRoPE": lambda: of_transformers(
        "Phi3", **{**ROTARY, "num_hidden_layers": 2, "initializer_range": 0.2}, partial_rotary_factor=0.75, original_max_position_embeddings=16, rope_parameters=dict(
            rope_type="longrope", rope_theta=10000.0, short_factor=[1.0, 1.1, 1.3, 1.5, 1.9, 2.5],
            long_factor=[1.0, 1.2, 1.6, 2.2, 3.0, 4.0], original_max_position_embeddings=16)),
    "Phi": lambda: of_transformers("Phi", **ROTARY, partial_rotary_factor=0.5, resid_pdrop=0.0),
    "StableLM": lambda: of_transformers("StableLm", **{**ROTARY, "num_hidden_layers": 2}, use_qkv_bias=True),
    "GLM": lambda: of_transformers("Glm", **{**ROTARY, "num_hidden_layers": 2}, head_dim=16, partial_rotary_factor=0.5),
    "Mistral with windows": lambda: of_transformers("Mistral", **ROTARY, sliding_window=8),
    # Norms after small weights amplify the rounding of f32, so that these have larger ones or fewer layers.
    "Qwen3": lambda: of_transformers("Qwen3", **{**ROTARY, "num_hidden_layers": 2}, head_dim=16),
    "OLMo 2": lambda: of_transformers("Olmo2", **{**ROTARY, "num_hidden_layers": 2, "initializer_range": 0.2}),
    "Gemma 2": lambda: of_transformers("Gemma2", **{**ROTARY, "num_hidden_layers": 2}, head_dim=16, attention_dropout=0.0),
    "Gemma 3": lambda: of_transformers("Gemma3", **{**ROTARY, "num_hidden_layers": 2}, head_dim=16),
    "Nemotron": lambda: of_transformers("Nemotron", **ROTARY),
    "Cohere": lambda: of_transformers("Cohere", **ROTARY),
    "GPT-NeoX": lambda: of_transformers(
        "GPTNeoX", vocab_size=VOCAB, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
        max_position_embeddings=64, bos_token_id=None, eos_token_id=None, use_cache=False, initializer_range=0.1),
    "GPT-J": lambda: of_transformers(
        "GPTJ", vocab_size=VOCAB, n_embd=64, n_layer=3, n_head=4, rotary_dim=8, n_positions=64, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None, use_cache=False, initializer_range=0.06),
    "Falcon": lambda: of_transformers(
        "Falcon", vocab_size=VOCAB, hidden_size=64, ffn_hidden_size=128, num_hidden_layers=3, num_attention_heads=4,
        new_decoder_architecture=True, num_kv_heads=2, alibi=False, hidden_dropout=0.0, attention_dropout=0.0,
        bos_token_id=None, eos_token_id=None, use_cache=False, initializer_range=0.1),
    "Bloom": lambda: of_transformers(
        "Bloom", vocab_size=VOCAB, hidden_size=64, n_layer=3, n_head=4, hidden_dropout=0.0, attention_dropout=0.0,
        bos_token_id=None, eos_token_id=None, use_cache=False, initializer_range=0.1),
    "Granite": lambda: of_transformers("Granite", **ROTARY, embedding_multiplier=3.0, attention_multiplier=0.2,
                                       residual_multiplier=0.6, logits_scaling=2.0),
    "OPT": lambda: of_transformers(
        "OPT", vocab_size=VOCAB, hidden_size=64, ffn_dim=128, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, word_embed_proj_dim=64, dropout=0.0, use_cache=False, init_std=0.08,
        bos_token_id=None, eos_token_id=None),
}


def batch_of(family, windows):
    """Returns the arguments of a family's forward for windows of tokens [batch, context + 1]."""
    if family.endswith("balanced"):  # the balancing loss counts each token that the model reads
        labels = windows[:, 1:].contiguous()
        return {"input_ids": windows[:, :-1].contiguous(), "labels": labels, "shift_labels": labels}
    if family == "nanoGPT":
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
    return {"input_ids": windows, "labels": windows}
