"""PyTorch's tensor parallelism and pipelines for the GPT of torch_step.py, as in its tutorials."""
import torch
import torch.distributed as dist


def tensors(model, sequence):
    """Splits weights over all ranks; with `sequence` also tokens between the layers, as plans/megatron.lua does."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor import parallel as tp

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    if not sequence:
        block = {"qkv": tp.ColwiseParallel(), "proj": tp.RowwiseParallel(), "up": tp.ColwiseParallel(), "down": tp.RowwiseParallel()}
        for each in model.blocks:
            tp.parallelize_module(each, mesh, block)
        return model
    split = Shard(1)  # tokens
    columns = tp.ColwiseParallel(input_layouts=split)
    rows = tp.RowwiseParallel(output_layouts=split)
    block = {"norm1": tp.SequenceParallel(), "qkv": columns, "proj": rows, "norm2": tp.SequenceParallel(), "up": columns, "down": rows}
    for each in model.blocks:
        tp.parallelize_module(each, mesh, block)
    first = tp.PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(split,), use_local_output=True)
    tp.parallelize_module(model.blocks[0], mesh, first)
    tp.parallelize_module(model, mesh, {
        "norm": tp.SequenceParallel(),
        "head": tp.ColwiseParallel(input_layouts=split, output_layouts=Replicate()),
    })
    return model


class Layers(torch.nn.Module):
    """The layers of one pipeline rank."""

    def __init__(self, model, rank, ranks):
        super().__init__()
        each = len(model.blocks) // ranks
        self.blocks = model.blocks[rank * each:(rank + 1) * each]
        if rank == 0:
            self.tokens, self.positions, self.embed = model.tokens, model.positions, model.embed
        if rank == ranks - 1:
            self.norm, self.head = model.norm, model.head

    def forward(self, x):
        x = self.embed(x) if hasattr(self, "embed") else x
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)) if hasattr(self, "head") else x


class Stage:
    """One rank of torch.distributed.pipelining's 1F1B; a step is forward and backward of all microbatches."""

    def __init__(self, model, x, y, loss_of, microbatches):
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.x, self.y = x, y
        self.layers = Layers(model, self.rank, self.ranks)
        stage = PipelineStage(self.layers, self.rank, self.ranks, torch.device("cpu"))
        self.schedule = Schedule1F1B(stage, microbatches, loss_of)

    def parameters(self):
        return self.layers.parameters()

    def step(self):
        if self.rank == 0:
            self.schedule.step(self.x)
        else:
            self.schedule.step(target=self.y)
