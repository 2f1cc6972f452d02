-- Names in PyTorch, DeepSpeed, Megatron-LM and Hugging Face with prun's equivalents, for messages about unknown names.
-- strategies/README.md has a longer table for reading ("Names elsewhere").

local elsewhere = {}

-- Options: our name, or a sentence about the function that has it.
local options = {
  -- sizes of models and data
  n_layer = "layers", n_layers = "layers", num_layers = "layers", num_hidden_layers = "layers", depth = "layers",
  n_head = "heads", n_heads = "heads", num_heads = "heads", num_attention_heads = "heads", nhead = "heads",
  n_kv_heads = "kv_heads", num_key_value_heads = "kv_heads", num_query_groups = "kv_heads",
  n_embd = "width", d_model = "width", hidden_size = "width", embed_dim = "width", dim = "width",
  intermediate_size = "hidden", ffn_hidden_size = "hidden", d_ff = "hidden", hidden_dim = "hidden",
  vocab_size = "vocab", block_size = "context", seq_len = "context", seq_length = "context", max_seq_len = "context",
  n_positions = "context", max_position_embeddings = "context", rope_theta = "base",
  tie_word_embeddings = "tied", tie_embeddings = "tied",
  num_experts = "experts", num_local_experts = "experts", n_experts = "experts",
  top_k = "choices", num_experts_per_tok = "choices", moe_router_topk = "choices",
  capacity_factor = "capacity", moe_expert_capacity_factor = "capacity", moe_aux_loss_coeff = "aux",
  in_features = "inputs", out_features = "outputs",
  shuffle = "order", data_path = "path", train_data_path = "path", val_split = "hold_out",
  validation_split = "hold_out",
  valid_data_path = "data of prun.eval", eval_dataset = "data of prun.eval", dataset = "data",
  batch_size = "batch of the data, which is global: the samples of all ranks and microbatches",
  per_device_train_batch_size = "batch of the data, which is global: times data ranks and micro",
  global_batch_size = "batch", train_batch_size = "batch",
  -- training
  learning_rate = "lr", lr_scheduler = "lr = prun.cosine { ... } of the optimizer",
  warmup_steps = "warmup", num_warmup_steps = "warmup", num_training_steps = "steps", min_lr = "least",
  max_steps = "steps", train_iters = "steps",
  epochs = "steps of the plan: epochs times samples / batch",
  num_epochs = "steps of the plan: epochs times samples / batch",
  num_train_epochs = "steps of the plan: epochs times samples / batch",
  grad_clip = "clip", max_grad_norm = "clip", gradient_clipping = "clip", clip_grad_norm = "clip",
  gradient_accumulation_steps = "micro", num_microbatches = "micro", n_microbatches = "micro",
  grad_accum_steps = "micro",
  micro_batch_size = "micro = how many; a microbatch has batch / data ranks / micro samples",
  train_micro_batch_size_per_gpu = "micro = how many; a microbatch has batch / data ranks / micro samples",
  beta1 = "betas", beta2 = "betas", epsilon = "eps", decay = "weight_decay",
  bf16 = 'dtype = "bf16" of the plan', fp16 = 'dtype = "bf16" of the plan; f16 is not there',
  precision = "dtype of the plan", mixed_precision = 'dtype = "bf16" of the plan', param_dtype = "dtype of the plan",
  random_seed = "seed", manual_seed = "seed", momentum_decay = "betas", amsgrad = "nothing: AdamW without it",
  decay_rate = "beta2_decay", clip_threshold = "d, the bound of an update",
  scale_parameter = "eps: its second number is the least scale; a parameter's scale always multiplies lr",
  relative_step = "nothing: lr bounds the relative step 1 / sqrt(step)",
  warmup_init = "warmup of lr = prun.warmup { ... }",
  requires_grad = 'frozen = "block*" of prun.plan', freeze = 'frozen = "block*" of prun.plan',
  param_groups = "optimizer = prun.groups { ... }", no_decay = 'prun.groups { { match = "*.bias", decay = 0 }, ... }',
  num_workers = "nothing: the data are mapped into memory and prefetched",
  pin_memory = "nothing: the data are mapped into memory and prefetched",
  drop_last = "nothing: every step has a whole batch",
  ignore_index = "ignore", label_smoothing = "label_smoothing of prun.losses.cross_entropy",
  attention_dropout = "dropout; prun has no dropout of attention scores yet",
  attn_dropout = "dropout; prun has no dropout of attention scores yet",
  r = "rank", lora_r = "rank", lora_alpha = "alpha", lora_dropout = "dropout", target_modules = 'match = "*.qkv"',
  modules_to_save = 'train = "head*"',
  -- data parallel
  bucket_cap_mb = 'bucket = "25 MiB"', bucket_size = "bucket", reduce_bucket_size = "bucket, in bytes",
  allgather_bucket_size = "prefetch, in units", first_bucket_bytes_cap = "first", first_bucket_mb = 'first = "1 MiB"',
  find_unused_parameters = "nothing: a parameter that does not reach the loss is refused",
  gradient_as_bucket_view = "nothing: buckets are always views", static_graph = "nothing: graphs are always static",
  broadcast_buffers = "nothing: buffers are equal on all ranks", contiguous_gradients = "nothing: they always are",
  overlap_comm = "nothing: communication always overlaps", no_sync = "micro of the plan",
  overlap_grad_reduce = "nothing: communication always overlaps",
  overlap_param_gather = "nothing: communication always overlaps",
  forward_prefetch = "prefetch = 1, in units", backward_prefetch = "prefetch = 1, in units",
  stage3_prefetch_bucket_size = "prefetch = 1, in units", limit_all_gathers = "prefetch, in units",
  stage3_max_live_parameters = "prefetch: prefetch + 1 units are gathered at most",
  stage3_param_persistence_threshold = 'persist_below = "100 KiB"',
  reshard = "reshard_after_forward", use_orig_params = "nothing: parameters keep their names",
  sharding_strategy = "prun.ddp, prun.zero1, prun.zero2 or prun.zero3", stage = "prun.ddp, zero1, zero2 or zero3",
  zero_hpz_partition_size = 'reshard_after_forward = "group"',
  zero_stage = "prun.ddp, zero1, zero2 or zero3", mics_shard_size = 'over = { "replicate", "shard" }',
  hybrid_shard = 'over = { "replicate", "shard" }', shard_size = 'over = { "replicate", "shard" }',
  reduce_dtype = 'wire = "bf16"', communication_data_type = 'wire = "bf16"', grad_reduce_dtype = 'wire = "bf16"',
  mp_policy = 'dtype = "bf16" of the plan, wire = "bf16" of the strategy',
  cpu_offload = 'offload = "optimizer"', offload_policy = 'offload = "optimizer"',
  offload_optimizer = 'offload = "optimizer"', offload_param = 'offload = "optimizer"; parameters stay on the device',
  use_distributed_optimizer = "prun.zero1 in place of prun.ddp",
  process_group = "axis", device_mesh = "axis", mesh_dim = "axis", mesh_dim_name = "axis", group = "axis",
  reduce_op = "op", async_op = "stream",
  -- other axes
  tensor_model_parallel_size = "an axis tp of the mesh, and prun.tensor_parallel",
  tensor_parallel_size = "an axis tp of the mesh, and prun.tensor_parallel",
  pipeline_model_parallel_size = "an axis pp of the mesh, and prun.pipeline",
  pipeline_parallel_size = "an axis pp of the mesh, and prun.pipeline",
  context_parallel_size = "an axis cp of the mesh, and prun.context_parallel",
  expert_model_parallel_size = "an axis ep of the mesh, and prun.expert_parallel",
  expert_parallel_size = "an axis ep of the mesh, and prun.expert_parallel",
  sequence_parallel = "sequence", colwise = "column", rowwise = "row",
  num_stages = "the size of the pipeline's axis", num_chunks = "chunks",
  virtual_pipeline_model_parallel_size = "chunks",
  num_layers_per_virtual_pipeline_stage = "chunks", num_model_chunks = "chunks",
  checkpoint_activations = "prun.recompute", activation_checkpointing = "prun.recompute",
  gradient_checkpointing = "prun.recompute", recompute_granularity = "prun.recompute",
  approximation = "approximate", is_causal = "causal", nproc_per_node = "--nproc on the command line",
}

-- Functions of prun and its families.
local words = {
  fully_shard = "prun.fsdp", fullyshardeddataparallel = "prun.fsdp", fsdp1 = "prun.fsdp", fsdp2 = "prun.fsdp",
  zero = "prun.zero1, prun.zero2 or prun.zero3", deepspeed = "prun.zero1, prun.zero2 or prun.zero3",
  distributeddataparallel = "prun.ddp", dataparallel = "prun.ddp", data_parallel = "prun.ddp", replicate = "prun.ddp",
  dp = "prun.ddp", tp = "prun.tensor_parallel", pp = "prun.pipeline", cp = "prun.context_parallel",
  ep = "prun.expert_parallel", parallelize_module = "prun.tensor_parallel",
  colwiseparallel = "prun.tensor_parallel { column = { ... } }",
  rowwiseparallel = "prun.tensor_parallel { row = { ... } }",
  sequence_parallel = "prun.tensor_parallel { sequence = true }",
  sequenceparallel = "prun.tensor_parallel { sequence = true }",
  pipeline_parallel = "prun.pipeline", model_parallel = "prun.tensor_parallel or prun.pipeline",
  ulysses = "prun.context_parallel", ring_attention = "prun.context_parallel", moe = "prun.nn.moe, prun.models.moe",
  checkpoint = "prun.recompute", checkpoint_wrapper = "prun.recompute", activation_checkpoint = "prun.recompute",
  init_device_mesh = "prun.mesh", devicemesh = "prun.mesh", device_mesh = "prun.mesh", init_process_group = "prun.mesh",
  world_size = "prun.world", get_world_size = "prun.world", get_rank = "r.rank, in a program",
  optim = "prun.adamw, adam, lion, muon, adafactor or sgd", transformer = "prun.models.gpt",
  dataloader = "prun.data.bytes",
  all_gather_into_tensor = "prun.all_gather", reduce_scatter_tensor = "prun.reduce_scatter",
  allreduce = "prun.all_reduce",
  allgather = "prun.all_gather", alltoall = "prun.all_to_all", all_to_all_single = "prun.all_to_all",
  send = "prun.pipeline, or a collective", recv = "prun.pipeline, or a collective",
  cosineannealinglr = "prun.cosine", lambdalr = "lr = function(step) ... end", onecyclelr = "prun.one_cycle",
  steplr = "prun.step_decay", multisteplr = "lr = { { 0, 1e-3 }, { 99, 1e-3 }, { 100, 1e-4 } }",
  exponentiallr = "lr = function(step) return 1e-3 * 0.99 ^ step end",
  polynomiallr = "lr = function(step) return 1e-3 * (1 - step / 100) ^ 2 end",
  cosineannealingwarmrestarts = "lr = function(step) ... end",
  bceloss = "prun.losses.bce", bcewithlogitsloss = "prun.losses.bce", kldivloss = "prun.losses.kl",
  kl_div = "prun.losses.kl", weight_penalty = "prun.losses.l2", argmax = "prun.metrics.accuracy",
  crossentropyloss = "prun.losses.cross_entropy", mseloss = "prun.losses.mse", mse_loss = "prun.losses.mse",
  scaled_dot_product_attention = "prun.nn.attention", multiheadattention = "prun.nn.attention",
  convtranspose1d = "prun.nn.conv_transpose1d", convtranspose2d = "prun.nn.conv_transpose2d",
  max_pool1d = "prun.nn.maxpool1d", avg_pool1d = "prun.nn.avgpool1d", max_pool2d = "prun.nn.maxpool2d",
  avg_pool2d = "prun.nn.avgpool2d", adaptiveavgpool2d = "prun.nn.mean(x, { 2, 3 })", interpolate = "prun.nn.upsample",
  view = "prun.nn.reshape", cat = "prun.nn.concat", chunk = "prun.nn.split", narrow = "prun.nn.slice",
  index_select = "prun.nn.gather",
  module = "prun.nn.unit", sequential = "prun.nn.unit", embed = "prun.nn.embedding", rope = "prun.nn.rotary",
  swiglu = "prun.nn.silu_mul", logsoftmax = "prun.nn.log_softmax", layer_norm = "prun.nn.layernorm",
  group_norm = "prun.nn.groupnorm", batch_norm = "prun.nn.batchnorm", batchnorm1d = "prun.nn.batchnorm",
  batchnorm2d = "prun.nn.batchnorm", syncbatchnorm = "prun.nn.batchnorm", instancenorm2d = "prun.nn.instancenorm",
  register_buffer = "prun.nn.buffer",
  rms_norm = "prun.nn.rmsnorm", dense = "prun.nn.linear", matmul = "prun.nn.linear with `weight`, or a * b elementwise",
  train = "return prun.plan { ... }; the command `prun PLAN` trains it",
  fit = "return prun.plan { ... }; the command `prun PLAN` trains it",
  trainer = "return prun.plan { ... }; the command `prun PLAN` trains it",
  save = "--checkpoint DIR on the command line", load = "--resume on the command line, or prun.init.from",
  from_pretrained = "prun ckpt import FOLDER, then prun.init.from", compile = "nothing: every plan is compiled",
  device = "--device on the command line", cuda = "--device cuda on the command line",
  functional = "prun.nn itself", no_grad = "prun.eval, which evaluates during a run", set_seed = "seed of the plan",
  autocast = "dtype of the plan", ema = "ema of the optimizer", averagedmodel = "ema of the optimizer",
  swa_utils = "ema of the optimizer", swa = "ema of the optimizer",
  manual_seed = "seed of the plan", gradscaler = 'dtype = "bf16" of the plan, which needs no loss scaling',
  amp = 'dtype = "bf16" of the plan', mixed_precision = 'dtype = "bf16" of the plan',
  qlora = 'lora = prun.lora { match = "block*.qkv" } of prun.plan',
  peft = 'lora = prun.lora { match = "block*.qkv" } of prun.plan',
  loraconfig = 'lora = prun.lora { match = "block*.qkv" } of prun.plan',
  wandb = "--metrics FILE on the command line", distributedsampler = "nothing: each data rank reads its share",
}

for ours, names in pairs {
  ['dtype = "f32" of the plan'] = "f32 fp32 float32", ['dtype = "f64" of the plan'] = "f64 fp64 float64",
  ['dtype = "bf16" of the plan'] = "bf16 bfloat16",
  ['dtype = "bf16" of the plan; f16 is not there'] = "f16 fp16 float16",
} do
  for name in names:gmatch "%S+" do words[name] = ours end
end

-- Fields of prun and its families that are too common as names for a hint about an unknown global.
local fields = {
  float = 'dtype = "f32" of the plan', double = 'dtype = "f64" of the plan', half = 'dtype = "bf16" of the plan',
  cpu = "--device cpu on the command line, the default", gpu = "--device cuda on the command line",
  optimizer = "prun.adamw, adam, lion, muon, adafactor or sgd",
  optimizers = "prun.adamw, adam, lion, muon, adafactor or sgd",
  lr_scheduler = "prun.cosine, prun.linear, prun.warmup", lr_schedulers = "prun.cosine, prun.linear, prun.warmup",
  strategies = "prun.ddp, prun.zero3, prun.pipeline", parallel = "prun.ddp, prun.zero3, prun.pipeline",
  schedules = 'prun.pipeline { schedule = "1f1b" }', gpipe = 'prun.pipeline { schedule = "gpipe" }',
  interleaved = 'prun.pipeline { schedule = "interleaved" }', zb_v = 'prun.pipeline { schedule = "zb_v" }',
  zb_h1 = 'prun.pipeline { schedule = "zb_h1" }', dualpipe = 'prun.pipeline { schedule = "dualpipe_v" }',
  layers = "prun.nn", modules = "prun.nn", torch = "prun.nn",
  text = "prun.data.bytes", texts = "prun.data.bytes", file = "prun.data.bytes", files = "prun.data.bytes",
  dataset = "prun.data.bytes, prun.data.tokens", datasets = "prun.data.bytes, prun.data.tokens",
}

-- Functions that prun does not have yet: kind, and after "; " the way round, if there is one = names.
local missing = {}
for what, names in pairs {
  ["convolution of three dims"] = "conv3d convtranspose3d",
  ["recurrent layer"] = "lstm gru rnn lstmcell grucell",
  ["state-space layer"] = "mamba mamba2 ssm s4",
  ["such optimizer; it has prun.adamw, adam, lion, muon, adafactor and sgd"] =
    "adagrad adadelta adamax nadam radam rmsprop lamb lars lbfgs shampoo soap sophia adam8bit adamw8bit",
  ["learning rate that follows the loss; it has prun.cosine, prun.linear, prun.wsd, prun.one_cycle, " ..
    "prun.step_decay, prun.inverse_root, points and functions of the step"] = "reducelronplateau",
  ["such loss; it has prun.losses.cross_entropy, mse, bce, kl, z_loss, l2, mean_square and mean"] =
    "nllloss nll_loss l1 l1loss l1_loss smoothl1loss ctcloss dpo",
  ["8-bit numbers; dtype = \"bf16\" of the plan halves memory and traffic"] = "fp8 float8 int8 quantize bitsandbytes",
} do
  for name in names:gmatch "%S+" do missing[name] = what end
end

-- Methods of PyTorch's tensors.
local methods = {
  size = "x.shape[1], from 1", dim = "#x.shape", backward = "nothing: prun derives the backward pass",
  item = "nothing: it is a name for a value that only ranks have",
  numpy = "nothing: it is a name for a value that only ranks have",
  detach = "nn.detach(x)", clone = "nothing: ops do not change their inputs",
  contiguous = "nothing: tensors are contiguous", requires_grad = 'frozen = "block*" of prun.plan',
  to = "--device and the plan's dtype", cuda = "--device cuda on the command line",
  cpu = "--device on the command line",
  float = "dtype of the plan", half = "dtype of the plan", bfloat16 = "dtype of the plan", type = "x.dtype",
  mean = "prun.losses.mean(x)", relu = "prun.nn.relu(x)", tanh = "prun.nn.tanh(x)", add = "x + y", mul = "x * y",
  sub = "x - y", div = "x / 2, by a number", view = "x:reshape { .. }", chunk = "x:split(size, dim)",
  narrow = "x:slice(dim, first, last)", index_select = "x:gather(ids)", ["repeat"] = "x:expand { .. }",
}

-- Values of options: dtypes, reductions, stages.
local values = {
  float64 = "f64", double = "f64", fp64 = "f64", float32 = "f32", float = "f32", fp32 = "f32", tf32 = "f32",
  bfloat16 = "bf16", float16 = "bf16", half = "bf16", fp16 = "bf16", f16 = "bf16", int64 = "i64", long = "i64",
  int32 = "i32", int = "i32", int8 = "i8", uint8 = "u8", mean = "avg", average = "avg", add = "sum", product = "prod",
  cpu = "optimizer", layer = "layers", gelu_new = "gelu", gelu_tanh = "tanh",
  dynamic = "nothing: 'dynamic' changes the angles when a text outgrows the original context; up to there it is 'none'",
}

-- The function of each of our options, for options passed to the wrong function.
local owner_of = {}
for owner, names in pairs {
  ["the plan"] = { "micro", "steps", "seed", "dtype", "reduce", "eval", "report", "checkpoint" },
  ["the model"] = { "vocab", "layers", "width", "heads", "kv_heads", "hidden", "context", "base", "tied", "dropout",
                    "experts", "choices", "capacity", "aux", "activation" },
  ["the data"] = { "batch", "path", "skip_bytes", "order" },
  ["the optimizer"] = { "lr", "betas", "eps", "weight_decay", "clip", "momentum" },
  ["a learning rate, such as prun.cosine"] = { "warmup", "least" },
  ["some strategies"] = { "axis", "bucket", "first", "prefetch", "inflight", "wire", "offload", "reshard_after_forward",
                     "over", "persist_below", "sequence", "column", "row" },
  ["prun.pipeline"] = { "schedule", "chunks", "split", "stages", "transfer" },
} do
  for _, name in ipairs(names) do owner_of[name] = owner end
end

-- Returns " (here: ...)", or for "nothing: why" the reason alone: " (why)".
local function here(ours)
  local why = ours:match "^nothing: (.*)"
  return why and (" (%s)"):format(why) or (" (here: %s)"):format(ours)
end

-- Returns the end of a message about an unknown option: " (here: ...)" for another system's name, or the likely right
-- one, or the option's owner, or the list. `has`: the function's options by name, `names`: in their order.
function elsewhere.option(name, has, names)
  local ours = options[tostring(name):lower():gsub("-", "_")]
  if ours then
    local owner = ours:find("^[%w_]+$") and not has[ours] and owner_of[ours]
    return owner and (" (here: %s, an option of %s)"):format(ours, owner) or here(ours)
  end
  local likely = #names > 0 and host.did_you_mean(tostring(name), names) or ": it has none"
  local owner = owner_of[name]
  if owner == "the optimizer" and has.weight_decay then owner = nil end  -- the function is an optimizer
  if owner and not likely:find "did you mean" then
    return (" (that is an option of %s)"):format(owner)
  end
  return likely
end

-- Returns " (here: 'bf16')" or the likely right one of `choices`.
function elsewhere.value(value, choices)
  local ours, named = values[tostring(value):lower()], {}
  if ours and ours:find "^nothing: " then return here(ours) end
  for _, choice in ipairs(choices) do
    if choice == ours then return (" (here: '%s')"):format(ours) end
    if choice ~= "" then named[#named + 1] = choice end  -- an empty text is the absence of the option
  end
  return host.did_you_mean(tostring(value), named)
end

-- Returns the same for an unknown function of a family, whose functions are `names`.
function elsewhere.word(name, names)
  local function plain(text) return (text:lower():gsub("_", "")) end
  for _, known in ipairs(names) do
    if plain(known) == plain(tostring(name)) then return (" (did you mean '%s'?)"):format(known) end
  end
  local lower = tostring(name):lower()
  if words[lower] then return here(words[lower]) end
  return missing[lower] and (": prun has no %s"):format((missing[lower]:gsub("^[^;]+", "%0 yet", 1)))
end

-- Returns the same for an unknown field of prun or of one of its families, functions or words; never nil.
function elsewhere.field(name, names)
  local ours = elsewhere.word(name, names)
  if ours then return ours end
  local lower, same = tostring(name):lower(), require("prun.bare_names")(tostring(name))
  if same:find "^ %(here: " then return same end
  if fields[lower] then return here(fields[lower]) end
  if owner_of[lower] then return (" (that is an option of %s)"):format(owner_of[lower]) end
  return #names > 0 and host.did_you_mean(tostring(name), names) or ""
end

-- Returns the same for an unknown field or method of a tensor, whose fields are `names`.
function elsewhere.method(name, names)
  local lower = tostring(name):lower()
  if methods[lower] then return here(methods[lower]) end
  return elsewhere.word(name, names) or host.did_you_mean(tostring(name), names)
end

return elsewhere
