"""A failed check is retried with parts of the device's machinery switched off; the report names the remedies that cured
it.

The first retry changes nothing, because a check that then passes is flaky and no remedy would explain it.
"""
import dataclasses
import pathlib

FIRST_TRIES = 6  # failed checks per part that are retried; more would repeat the same answer


@dataclasses.dataclass(frozen=True)
class Remedy:
    name: str
    device_options: str = ""
    graphs: bool = True
    environment: tuple = ()


AGAIN = "a second try"
REMEDIES = {remedy.name: remedy for remedy in (
    Remedy(AGAIN),
    Remedy("cudnn=0", device_options="cudnn=0"),
    Remedy("no graphs", graphs=False),
    Remedy("CUDA_LAUNCH_BLOCKING=1", environment=(("CUDA_LAUNCH_BLOCKING", "1"),)),
)}
OF_KERNELS = (AGAIN, "cudnn=0", "CUDA_LAUNCH_BLOCKING=1")  # tests without graph capture
OF_RUNS = tuple(REMEDIES)
OF_TRANSPORTS = (AGAIN, "no graphs", "CUDA_LAUNCH_BLOCKING=1")
OF_DEVICES = (AGAIN, "CUDA_LAUNCH_BLOCKING=1")


def joined(before, values):
    """Merges options "k=v,..."; those in `values` take precedence."""
    keys = {value.split("=")[0] for value in values.split(",")}
    return ",".join([*(value for value in before.split(",") if value and value.split("=")[0] not in keys), values])


def with_option(words, option, values):
    if option not in words:
        return [*words, option, values]
    at = words.index(option) + 1
    return [*words[:at], joined(words[at], values), *words[at + 1:]]


def applied(context, words, environment):
    """Returns (words, environment) of a command under the context's remedy."""
    remedy = context.remedy
    if remedy is None:
        return words, environment
    environment = {**environment, **dict(remedy.environment)}
    program = pathlib.Path(words[0]).name
    on_cuda = "--device" in words and words[words.index("--device") + 1].startswith("cuda")
    if remedy.device_options:
        if words[0] == str(context.prun) and on_cuda and words[1].endswith(".lua"):
            words = with_option(words, "--device-options", remedy.device_options)
        elif program == "cuda_agreement_test":
            environment["PRUN_CUDA_OPTIONS"] = joined(environment.get("PRUN_CUDA_OPTIONS", ""), remedy.device_options)
    if not remedy.graphs and words[0] == str(context.prun) and on_cuda and words[1].endswith(".lua") and "--trace" not in words:
        words = [*words, "--trace", str(context.log.with_suffix(".trace.json"))]  # a traced run captures no graph
    return words, environment
