#!/usr/bin/env python3
"""prun.fit on arrays and batches as PyTorch's users have them: each module's losses and weights are PyTorch's in f64.

Usage: fit_data_test.py PRUN VENV. VENV: see export_families_test.py.
"""
import copy
import os
import pathlib
import sys
import tempfile
import unittest

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tests"))
import packages  # noqa: E402

packages.run_inside(__file__, sys.argv[2])
os.environ["PRUN_COMMAND"] = os.path.abspath(sys.argv[1])
sys.path[:0] = [str(TOP / "tools/python"), str(TOP / "tests/python")]
import families  # noqa: E402
import prun  # noqa: E402
import reference  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import transformers  # noqa: E402
from small_gpt import GPT  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

SAMPLES, STEPS, LR, PAD = 8, 3, 0.01, 0


class Module(nn.Module):
    """Layers by name, and a function of them and of the arguments that returns the loss."""

    def __init__(self, function, **layers):
        super().__init__()
        self.layers, self.function = nn.ModuleDict(layers), function


class Two(Module):
    def forward(self, x, y):
        return self.function(self.layers, x, y)


class Three(Module):
    def forward(self, user, item, rating):
        return self.function(self.layers, user, item, rating)


class Samples(Dataset):
    """Samples of a dict or a tuple of tensors."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return SAMPLES

    def __getitem__(self, i):
        if isinstance(self.data, dict):
            return {name: part[i] for name, part in self.data.items()}
        return tuple(part[i] for part in self.data)


def numbers(*shape):
    return torch.randn(SAMPLES, *shape, dtype=torch.float64)


def masked_text(tokens=12, first=1):
    """Returns ids, and a mask that hides the last ones of some samples."""
    ids, mask = torch.randint(first, 64, (SAMPLES, tokens)), torch.ones(SAMPLES, tokens, dtype=torch.long)
    mask[::2, tokens - 4:] = 0
    return torch.where(mask == 1, ids, PAD), mask


def normed_classes(layers, x, y):
    return F.cross_entropy(layers["out"](layers["norm"](layers["up"](x)).relu()), y)


def class_token(layers, x, y):
    h = torch.cat([layers["token"].weight[None].expand(len(x), -1, -1), layers["up"](x)], 1)
    return F.cross_entropy(layers["out"](h.transpose(1, 2) @ h)[:, 0], y)


def mean_of_tokens(layers, ids, y):
    keep = (ids != PAD).unsqueeze(-1).to(torch.float64)
    h = (layers["table"](ids) * keep).sum(1) / keep.sum(1).clamp(min=1)
    return F.cross_entropy(layers["out"](h), y)


def ratings(layers, user, item, rating):
    return F.mse_loss((layers["users"](user) * layers["films"](item)).sum(-1) + layers["bias"](item).squeeze(-1), rating)


def columns_of_ids(layers, x, y):
    h = torch.cat([layers["a"](x[:, 0]), layers["b"](x[:, 1]), layers["b"](x[:, 2:]).flatten(1)], 1)
    return F.l1_loss(layers["out"](h).squeeze(-1), y)


def pairs(layers, x, y):
    a, b = F.normalize(layers["a"](x), dim=-1), F.normalize(layers["b"](y), dim=-1)
    logits, own = a @ b.t() * 3, torch.arange(len(x))
    return (F.cross_entropy(logits, own) + F.cross_entropy(logits.t(), own)) / 2


def fixed_positions(layers, ids, targets):
    """The language model of PyTorch's tutorial, whose positions are no parameter."""
    tokens = ids.shape[1]
    angles = torch.outer(torch.arange(tokens, dtype=torch.float64), 100 ** (-torch.arange(8, dtype=torch.float64) / 8))
    h = layers["table"](ids) * 4 + torch.cat([angles.sin(), angles.cos()], -1)[None]
    mask = nn.Transformer.generate_square_subsequent_mask(tokens)
    h = layers["norm"](layers["body"](h, mask=mask, is_causal=True))
    return F.cross_entropy(layers["out"](h).flatten(0, 1), targets.flatten())


class Translation(nn.Module):
    """An encoder and a decoder that share a parameter of positions."""

    def __init__(self):
        super().__init__()
        self.table, self.positions = nn.Embedding(64, 16), nn.Parameter(torch.randn(1, 12, 16))
        self.body, self.out = nn.Transformer(16, 2, 1, 1, 32, 0.0, batch_first=True), nn.Linear(16, 64)

    def forward(self, source, target, labels):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        h = self.body(self.table(source) + self.positions, self.table(target) + self.positions, tgt_mask=mask,
                      src_key_padding_mask=source == PAD, memory_key_padding_mask=source == PAD, tgt_is_causal=True)
        return F.cross_entropy(self.out(h).transpose(1, 2), labels)


class Adapted(nn.Module):
    """A decoder of grouped queries with adapters, as peft puts them on each linear layer in `where`."""

    def __init__(self, where):
        super().__init__()
        self.table, self.out = nn.Embedding(64, 16), nn.Linear(16, 64)
        sizes = {"q": (16, 16), "k": (16, 8), "v": (16, 8), "o": (16, 16), "gate": (16, 24), "up": (16, 24), "down": (24, 16)}
        self.layers = nn.ModuleDict({name: nn.Linear(*size, bias=False) for name, size in sizes.items()})
        self.a = nn.ModuleDict({name: nn.Linear(sizes[name][0], 2, bias=False) for name in where})
        self.b = nn.ModuleDict({name: nn.Linear(2, sizes[name][1], bias=False) for name in where})
        self.layers.requires_grad_(False)

    def layer(self, name, x):
        y = self.layers[name](x)
        return y + self.b[name](self.a[name](x)) * 2.0 if name in self.a else y

    def forward(self, ids, targets):
        h = self.table(ids)
        q, k, v = (self.layer(name, h).unflatten(-1, (-1, 4)).transpose(1, 2) for name in "qkv")
        k, v = (x[:, :, None].expand(-1, -1, 2, -1, -1).reshape(q.shape) for x in (k, v))
        h = h + self.layer("o", F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        h = h + self.layer("down", F.silu(self.layer("gate", h)) * self.layer("up", h))
        return F.cross_entropy(self.out(h).flatten(0, 1), targets.flatten())


def bert():
    return transformers.BertForSequenceClassification(transformers.BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=16, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))


class FitData(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(folder.name)

    def same(self, module, data, arguments=None, **options):
        """Checks steps of SGD on all samples. `data`: of fit; `arguments`: those of the module, if they are not the data."""
        module = module.double()
        arguments = data if arguments is None else arguments
        with reference.Wide():
            losses, trained, _ = reference.train(
                _Loss(module), (arguments,), STEPS, lambda parameters: torch.optim.SGD(parameters, lr=LR))
        mine = copy.deepcopy(module)
        rows = prun.fit(mine, data, steps=STEPS, batch=SAMPLES, optimizer="sgd", lr=LR, device="reference", **options)
        self.assertEqual(len(rows), STEPS)
        for row, loss in zip(rows, losses):
            self.assertLess(abs(row["loss"] - loss), 1e-9 * abs(loss))
        for (name, a), b in zip(mine.state_dict().items(), trained.module.state_dict().values()):
            self.assertLess((a - b).abs().max().item(), 1e-9, name)

    def test_modules_that_differ_for_one_sample(self):
        """The data's first sample alone would not show these modules: a batch norm, a token that is repeated, one number."""
        classes = torch.randint(0, 4, (SAMPLES,))
        self.same(Two(normed_classes, up=nn.Linear(6, 8), norm=nn.BatchNorm1d(8), out=nn.Linear(8, 4)), (numbers(6), classes),
                  mesh="dp=2")
        self.same(Two(class_token, token=nn.Embedding(1, 8), up=nn.Linear(6, 8), out=nn.Linear(8, 4)), (numbers(5, 6), classes))
        self.same(Two(lambda layers, x, y: F.mse_loss(layers["out"](x).squeeze(), y), out=nn.Linear(6, 1)),
                  (numbers(6), numbers()), mesh="dp=2")

    def test_tensor_parallelism_of_several_layers(self):
        """Every second layer reads columns that the one before it splits; after a norm, columns are whole."""
        for between in ([nn.ReLU()], [nn.BatchNorm1d(8), nn.ReLU()], [nn.ReLU(), nn.LayerNorm(8)], [nn.Mish(), nn.Dropout(0.0)]):
            net = [nn.Linear(6, 8), *copy.deepcopy(between), nn.Linear(8, 8), *copy.deepcopy(between), nn.Linear(8, 8), nn.GELU()]
            net += [nn.Linear(8, 3)]
            for mesh in ("tp=2", "dp=2, tp=2"):
                with self.subTest(between=between, mesh=mesh):
                    self.same(Two(lambda layers, x, y: F.l1_loss(layers["net"](x), y), net=nn.Sequential(*copy.deepcopy(net))),
                              (numbers(6), numbers(3)), mesh=mesh)

    def test_arrays_are_arguments_in_their_order(self):
        self.same(Two(lambda layers, y, x: F.mse_loss(layers["out"](x), y), out=nn.Linear(6, 6)), (numbers(6), numbers(6)))
        self.same(Two(lambda layers, y, x: F.cross_entropy(layers["out"](x), y), out=nn.Linear(6, 4)),
                  (torch.randint(0, 4, (SAMPLES,)), numbers(6)))
        self.same(Two(lambda layers, y, x: (y - layers["out"](x)).abs().mean(), out=nn.Linear(6, 6)), (numbers(6), numbers(6)))

    def test_ids_of_one_dim_and_several_tables(self):
        tables = dict(users=nn.Embedding(20, 4), films=nn.Embedding(30, 4), bias=nn.Embedding(30, 1))
        ids = torch.randint(0, 20, (SAMPLES,)), torch.randint(0, 30, (SAMPLES,))
        self.same(Three(ratings, **tables), (*ids, numbers()), mesh="dp=2")
        self.same(Three(ratings, **tables), {"rating": numbers(), "user": ids[0], "item": ids[1]})
        self.same(Two(columns_of_ids, a=nn.Embedding(9, 4), b=nn.Embedding(9, 3), out=nn.Linear(13, 1)),
                  (torch.randint(0, 9, (SAMPLES, 4)), numbers()))

    def test_a_mask_that_the_module_computes(self):
        ids, _ = masked_text()
        self.same(Two(mean_of_tokens, table=nn.Embedding(64, 8), out=nn.Linear(8, 4)), (ids, torch.randint(0, 4, (SAMPLES,))),
                  mesh="dp=2")

    def test_positions(self):
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
        body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        ids = torch.randint(0, 64, (SAMPLES, 13))
        for mesh in ("dp=2", "tp=2"):
            self.same(Two(fixed_positions, table=nn.Embedding(64, 16), body=copy.deepcopy(body), norm=nn.RMSNorm(16),
                          out=nn.Linear(16, 64)), (ids[:, :-1], ids[:, 1:]), mesh=mesh)
        self.same(Translation(), (masked_text()[0], ids[:, :-1], ids[:, 1:]), mesh="dp=2")

    def test_adapters(self):
        ids = torch.randint(0, 64, (SAMPLES, 9))
        for where in ("qv", "qkv", ["q", "v", "up"], ["down"], ["gate", "up", "o"]):
            for mesh in ("dp=2", "tp=2"):
                with self.subTest(where=where, mesh=mesh):
                    self.same(Adapted(where), (ids[:, :-1], ids[:, 1:]), mesh=mesh)

    def test_samples_compared_with_each_other(self):
        module = Two(pairs, a=nn.Linear(6, 4), b=nn.Linear(5, 4))
        data = numbers(6), numbers(5)
        self.same(module, data)
        with self.assertRaisesRegex(prun.UsageError, "compares all samples of a batch: train with mesh='dp=1' and micro=1"):
            prun.fit(module, data, batch=SAMPLES, mesh="dp=2")

    def test_windows_of_tokens(self):
        """Pairs of arrays of ids, and of ids and labels, which are no text."""
        ids, targets = torch.randint(0, 256, (SAMPLES, 16)), torch.randint(0, 256, (SAMPLES, 16))
        self.same(GPT(), (ids, targets), mesh="dp=2")
        llama = families.of_transformers("Llama", **families.ROTARY)
        reference.exact_angles(llama.double())
        labels = ids.clone()
        labels[:, :5] = -100
        self.same(llama, (ids, labels), {"input_ids": ids, "labels": labels})

    def test_models_of_transformers(self):
        """Padded batches: a dict of arrays, a Dataset and a DataLoader of dicts."""
        ids, mask = masked_text()
        data = {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(0, 3, (SAMPLES,))}
        self.same(bert(), data, mesh="dp=2")
        self.same(bert(), Samples(data), data)
        self.same(bert(), DataLoader(Samples(data), SAMPLES), data)
        llama = families.of_transformers("Llama", **families.ROTARY)
        reference.exact_angles(llama.double())
        data["labels"] = torch.where(mask == 1, ids, -100)
        self.same(llama, data, mesh="dp=2")
        self.same(llama, Samples(data), data)

    def test_mistakes(self):
        module = Three(ratings, users=nn.Embedding(20, 4), films=nn.Embedding(30, 4), bias=nn.Embedding(30, 1))
        ids, mask = masked_text()
        user, item = ids[:, 0] % 20, ids[:, 1] % 30
        rating = torch.randn(SAMPLES)
        for problem, error, data, options in [
            ("arrays of the data have 8, 8, 7 samples", prun.UsageError, (user, item, rating[:7]), {}),
            ("does not fit forward: missing a required argument: 'rating'", prun.PrunError, (user, item), {}),
            ("a tuple or a dict of arrays", prun.UsageError, {"user": [1, 2]}, {}),
            ("a token file has no item, rating, user: give an array for each", prun.UsageError, user,
             {"example": (user, item, rating)}),
            ("the data have no 'rating', which the module reads; they have user, item", prun.UsageError,
             {"user": user, "item": item}, {"example": (user, item, rating)}),
            ("batches have 8 samples, and batch=4: .* arrays are a tuple", prun.UsageError, [user, item, rating], {}),
            ("batches have 8 samples, and batch=4", prun.UsageError, DataLoader(Samples((user, item, rating)), SAMPLES), {}),
        ]:
            with self.subTest(problem), self.assertRaisesRegex(error, problem):
                prun.fit(module, data, **{"batch": 4, **options})
        for wrong, name in ((Three, "Three"), (ratings, "function")):
            with self.assertRaisesRegex(prun.PrunError, f"the module is {name}; pass an nn.Module, such as Model()"):
                prun.fit(wrong, (user, item, rating))


class _Loss(nn.Module):
    """A module's loss of arguments in a tuple or a dict, as reference.train takes it."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, arguments):
        result = self.module(**arguments) if isinstance(arguments, dict) else self.module(*arguments)
        return None, (result if isinstance(result, torch.Tensor) else result[1] if isinstance(result, tuple) else result.loss)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
