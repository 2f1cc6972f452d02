"""The same training in PyTorch and in prun, for comparisons of losses and weights."""
import copy
import json
import math
import pathlib
import subprocess

import torch
from safetensors import safe_open
from torch.overrides import TorchFunctionMode


def grouped_mm(rows, matrices, offs):
    """Returns rows [offs[e - 1], offs[e]) times matrices[e], which PyTorch does not compute in f64."""
    ends = [0, *offs.tolist()]
    return torch.cat([rows[a:b] @ matrix for a, b, matrix in zip(ends, ends[1:], matrices)])


class Wide(TorchFunctionMode):
    """Computes in f64 what a program asks to compute in f32, as a plan in f64 does."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        def wider(value):
            return torch.float64 if value is torch.float32 else value

        if function is torch._grouped_mm and args[0].dtype == torch.float64:
            return grouped_mm(args[0], args[1], kwargs["offs"])
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        if function in (torch.Tensor.to, torch.softmax, torch.nn.functional.softmax):
            args, kwargs = tuple(map(wider, args)), {name: wider(value) for name, value in (kwargs or {}).items()}
        return function(*args, **(kwargs or {}))


def exact_angles(module):
    """Replaces rotary frequencies, which transformers rounds to f32, by those in f64."""
    for one in module.modules():
        for name, frequencies in list(one.named_buffers(recurse=False)):
            if not name.endswith("inv_freq") or not hasattr(one, "config"):
                continue
            count = frequencies.numel()
            given = one.config.rope_parameters
            given = given.get(name.removesuffix("_inv_freq").removesuffix("_original"), given)  # by the kind of layer
            kind = given["rope_type"]
            if kind not in ("default", "linear", "llama3", "yarn", "longrope"):
                continue  # the exporter reads the rounded ones
            speeds = given["rope_theta"] ** (-torch.arange(count, dtype=torch.float64) / count)
            if kind == "longrope":
                if not name.startswith("original"):
                    one.long_inv_freq = speeds / torch.tensor(given["long_factor"], dtype=torch.float64)
                speeds = speeds / torch.tensor(given["short_factor"], dtype=torch.float64)
            if kind == "yarn":  # pairs that turn more than 32 times in the original context keep their speed
                turns = torch.tensor([32.0, 1.0], dtype=torch.float64)
                ends = count * (given["original_max_position_embeddings"] / (turns * 2 * math.pi)).log() / math.log(given["rope_theta"])
                first, last = max(math.floor(ends[0]), 0), min(math.ceil(ends[1]), 2 * count - 1)
                slow = ((torch.arange(count, dtype=torch.float64) - first) / max(last - first, 1e-3)).clamp(0, 1)
                speeds = speeds * (1 - slow + slow / given["factor"])
            if kind == "llama3":
                turns = given["original_max_position_embeddings"] * speeds / (2 * math.pi)
                low, high = given["low_freq_factor"], given["high_freq_factor"]
                kept = ((turns - low) / (high - low)).clamp(0, 1)
                speeds = speeds * (kept + (1 - kept) / given["factor"])
            frequencies.copy_(speeds)


def loss_of(module, batch):
    """Returns the loss that a module computes of a batch."""
    result = module(**batch) if isinstance(batch, dict) else module(*batch)
    return result[1] if isinstance(result, tuple) else result.loss


def train(module, batch, steps, optimizer):
    """Trains a copy of the module; returns the losses, the copy, and the first step's gradients."""
    module = copy.deepcopy(module).train()
    optimizer, losses, first = optimizer(module.parameters()), [], []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(module, batch)
        loss.backward()
        first = first or [None if one.grad is None else one.grad.clone() for one in module.parameters()]
        optimizer.step()
        losses.append(loss.item())
    return losses, module, first


def run(prun, plan, folder, nproc, settings=(), options=()):
    """Runs a plan; returns the losses and the trained tensors by name."""
    command = [prun, plan, "--nproc", nproc, "--metrics", "-", "-q", "--checkpoint", folder, "--overwrite", *options]
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stderr}")
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    newest = max(pathlib.Path(folder).glob("step_*"))
    return [row["loss"] for row in rows if "loss" in row], read(newest)


def read(folder):
    """Returns the whole tensors of a folder whose files hold pieces."""
    pieces = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            at = json.loads(file.metadata()["DCP_SHARDING_INFO"])
            for name in file.keys():
                pieces.setdefault(name, []).append((at[name]["saved_offsets"], file.get_tensor(name)))
    whole = {}
    for name, parts in pieces.items():
        dims = range(parts[0][1].dim())
        whole[name] = torch.empty([max(at[d] + part.shape[d] for at, part in parts) for d in dims],
                                  dtype=parts[0][1].dtype)
        for at, part in parts:
            whole[name][tuple(slice(start, start + size) for start, size in zip(at, part.shape))] = part
    return whole
