#!/usr/bin/env python3
"""Counts the architectures that prun.export takes as given and trains as PyTorch does.

Usage: coverage_count.py PRUN MODELS.json [ARCHITECTURE ..] [--nproc N] [--set NAME=VALUE] [--keep FOLDER]

MODELS.json maps a name to the class and the configuration of a model of transformers and the kind of its inputs: ids,
padded, classes, images, source_and_target or other. Each model is exported in train mode with its own configuration.
Then it is trained for ten steps of AdamW in f64, in PyTorch and in prun; for these the shares of dropout are 0. If
PyTorch learns nothing from the initial weights, because signals vanish, its layers draw them as PyTorch does.
"""
import argparse
import collections
import contextlib
import io
import json
import logging
import pathlib
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tools/python")]

import inputs_by_name  # noqa: E402
import numpy  # noqa: E402
import reference  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from prun.export import ExportError, export  # noqa: E402

BATCH, TOKENS, STEPS, RATE = 8, 16, 10, 1e-3
CLOSE = 1e-5
logging.getLogger("transformers").setLevel(logging.ERROR)


def ids_of(config, batch=BATCH, tokens=TOKENS, least=5):
    """Returns ids that are no special tokens."""
    vocab = getattr(config, "text_config", config).vocab_size
    return torch.randint(least, vocab, (batch, tokens), generator=torch.Generator().manual_seed(1))


def windows(config):
    """Returns windows of one text, each of which begins with the last token of the one before, as prun's samples do."""
    text = ids_of(config, 1, BATCH * TOKENS + 1)[0]
    return torch.stack([text[i * TOKENS:(i + 1) * TOKENS + 1] for i in range(BATCH)])


def lengths():
    return torch.tensor([TOKENS - 2 * (i % 6) for i in range(BATCH)])


def padded(config):
    """Returns texts of different lengths and their mask."""
    mask = (torch.arange(TOKENS) < lengths()[:, None]).long()
    padding = config.pad_token_id if isinstance(config.pad_token_id, int) else 0
    return {"input_ids": ids_of(config) * mask + padding * (1 - mask), "attention_mask": mask}


def labels_of(mask, classes):
    draw = torch.Generator().manual_seed(2)
    targets = torch.randint(0, classes, mask.shape, generator=draw)
    targets[(mask == 0) | (torch.rand(mask.shape, generator=draw) < 0.3)] = -100
    return targets


def images_of(config):
    config = getattr(config, "vision_config", config)
    size = getattr(config, "image_size", 32) or 32
    size = min(size, 64) if "patch_size" not in config.to_dict() else size
    channels = getattr(config, "num_channels", 3)
    return torch.randn(BATCH, channels, size, size, generator=torch.Generator().manual_seed(3))


def samples_of(config, classes=None):
    return torch.arange(BATCH) % (classes or config.num_labels)


def other(name, config):
    """Returns the arguments of an architecture with inputs of its own."""
    draw = torch.Generator().manual_seed(4)
    if "input_channels" in str(config.to_dict().keys()):  # time series
        return {"past_values": torch.randn(BATCH, config.context_length, config.num_input_channels, generator=draw),
                "future_values": torch.randn(BATCH, config.prediction_length, config.num_input_channels, generator=draw)}
    if hasattr(config, "conv_stride"):  # speech
        return {"input_values": torch.randn(BATCH, 400, generator=draw),
                "labels": torch.randint(1, config.vocab_size, (BATCH, 5), generator=draw)}
    if hasattr(config, "text_config"):  # pairs of texts and images
        tokens = ids_of(config, tokens=TOKENS)
        tokens[:, -1] = config.text_config.vocab_size - 1
        return {"input_ids": tokens, "pixel_values": images_of(config), "return_loss": True}
    images = images_of(config)
    if "mask_ratio" in config.to_dict():  # the noise whose order masks patches, which the module otherwise draws
        return {"pixel_values": images, "noise": torch.rand(BATCH, (config.image_size // config.patch_size)**2, generator=draw)}
    if "decoder_hidden_size" in config.to_dict():  # a label for each pixel
        return {"pixel_values": images, "labels": torch.randint(0, config.num_labels, (BATCH, *images.shape[2:]),
                                                                generator=draw)}
    return {"pixel_values": images, "labels": samples_of(config)}


def batch_of(kind, config, name):
    """Returns the arguments of a model's forward."""
    if kind == "ids":
        ids = windows(config)
        return {"input_ids": ids, "labels": ids}
    if kind == "padded":
        batch = padded(config)
        classes = config.num_labels if "Token" in name else config.vocab_size
        return {**batch, "labels": labels_of(batch["attention_mask"], classes)}
    if kind == "classes":
        return {**padded(config), "labels": samples_of(config)}
    if kind == "images":
        return {"pixel_values": images_of(config), "labels": samples_of(config)}
    if kind == "source_and_target":
        batch = padded(config)
        target = labels_of(batch["attention_mask"][:, :12], config.vocab_size)
        target[:, 0] = 7
        return {**batch, "labels": target}
    return other(name, config)


def build(given):
    """Returns a new model in train mode with the same weights each time, and its arguments."""
    kind = getattr(transformers, given["class"])
    config = kind.config_class(**given["config"])
    config.use_cache = False
    torch.manual_seed(0)
    module = kind(config).train()
    return module, batch_of(given["inputs"], config, given["class"])


def file_of(folder, name, value):
    """Writes an array and returns its path."""
    value = value.double().numpy() if value.is_floating_point() else value.int().numpy()
    numpy.save(folder / f"{name}.npy", value)
    return folder / f"{name}.npy"


def settings_of(exported, batch, folder):
    """Writes the arguments as files of prun's; returns the plan's settings."""
    names = list(exported.template.arrays)
    if names:
        return [f"{name}={file_of(folder, name, batch[name])}" for name in names]
    if not exported.template.has_targets:
        ids = batch["input_ids"]
        text = torch.cat([ids[:, :-1].flatten(), ids[-1:, -1]])
        text.numpy().astype("<u2").tofile(folder / "tokens.bin")
        return [f"file={folder / 'tokens.bin'}"]
    x, y = (batch[name] for name in batch if isinstance(batch[name], torch.Tensor))
    return [f"file={file_of(folder, 'x', x)}", f"targets={file_of(folder, 'y', y)}"]


def in_pytorch(module, batch):
    """Returns the losses of the steps in PyTorch and the trained module."""
    with reference.Wide():
        return reference.train(module, batch, STEPS, lambda p: torch.optim.AdamW(
            [one for one in p if one.requires_grad], lr=RATE))[:2]


def trained(prun, given, nproc, settings, folder):
    """Returns the largest difference of a loss and of a weight after ten steps, relative to 1 or to the loss."""
    module, batch = build(given)
    module = inputs_by_name.without_dropout(module).double()
    batch = {name: value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
             for name, value in batch.items()}
    reference.exact_angles(module)
    losses, theirs = in_pytorch(module, batch)
    if losses[0] - losses[-1] < 1e-12:
        for one in module.modules():
            if hasattr(one, "reset_parameters"):
                one.reset_parameters()
        losses, theirs = in_pytorch(module, batch)
    exported = export(module, batch)
    exported.save(folder / "plan")
    settings = [f"batch={BATCH}", *settings_of(exported, batch, folder), *settings]
    ours, tensors = reference.run(prun, folder / "plan.lua", folder / "out", nproc, settings,
                                  ["--device", "reference"])
    if len(ours) != STEPS:
        raise AssertionError(f"{len(ours)} steps")
    exported.load_tensors(tensors)
    return (max(abs(a - b) for a, b in zip(ours, losses)),
            max((one - two).abs().max().item() for one, two in zip(module.parameters(), theirs.parameters())),
            losses[0] - losses[-1])


def short(error):
    """Returns an error on one line, with the file's name only."""
    if isinstance(error, ExportError):
        where = f"{pathlib.Path(error.file).name}:{error.line}: " if error.file else ""
        return f"{where}{error.op}: {error.problem}" if error.op else f"{where}{error.problem}"
    return f"{type(error).__name__}: {' '.join(str(error).split())[-300:]}"


def judge(prun, given, nproc, settings, folder):
    """Returns the state of one architecture and a sentence."""
    module, batch = build(given)
    refusal = ""
    try:
        export(module, batch)
    except ExportError as error:
        refusal = short(error)
        if "torch.export" in error.problem or "data" in error.problem and not error.op:
            try:
                with torch.no_grad(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                    torch.export.export(module, (), batch, strict=False)
            except Exception:  # whatever it raises, it does not take the module
                return "untraceable", short(error)
        if "dropout" not in refusal:
            return "refused", refusal
        refusal += "; without dropout: "
    except Exception as error:
        return "fails", short(error)
    try:
        loss, weight, learned = trained(prun, given, nproc, settings, folder)
    except Exception as error:
        return "refused" if refusal else "does not train", refusal + short(error)
    state = "exact" if loss < CLOSE and weight < CLOSE and learned > 0 else "differs"
    return "refused" if refusal else state, f"{refusal}losses within {loss:.1e}, weights within {weight:.1e}, the loss fell by {learned:.2g}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prun")
    parser.add_argument("models", type=pathlib.Path)
    parser.add_argument("only", nargs="*")
    parser.add_argument("--nproc", type=int, default=1)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for the plans")
    options = parser.parse_args()
    models = json.loads(options.models.read_text())
    count = collections.Counter()
    for name in options.only or models:
        begin = time.time()
        with tempfile.TemporaryDirectory(prefix="prun-coverage-") as place:
            folder = pathlib.Path(place)
            if options.keep:
                folder = options.keep / name
                folder.mkdir(parents=True, exist_ok=True)
            state, reason = judge(options.prun, models[name], options.nproc, options.set, folder)
        count[state] += 1
        print(f"{name:16} {state:14} {reason} ({time.time() - begin:.0f} s)", flush=True)
    print(", ".join(f"{number} {state}" for state, number in count.most_common()))


if __name__ == "__main__":
    main()
