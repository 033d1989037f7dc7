"""Where a run computes: its device, and the processes that train one network together.

Each process computes on its part of every batch, all hold the same labels:

    torchrun --nproc_per_node=2 -m mrfquant run --gin gin/pmf_lenet300_mnist.gin

A step averages one vector of m gradients, whatever the number of labels, and every process then takes the same step; or
each process takes that of its part, if they share the variables out (`Experiment.shard`).
"""

import math
import os
import re
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mrfquant.errors import BadInput, RunFailed

T = TypeVar("T")
TIMEOUT = 600  # seconds that a process waits for its peers, unless MRFQUANT_TIMEOUT says otherwise


def choose_device(name: str = "auto") -> torch.device:
    """Choose a device: 'auto' takes CUDA, then MPS, then the CPU; one that is not there is refused."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError, NotImplementedError):
        there = ["cpu"] + [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        there += ["mps"] if torch.backends.mps.is_available() else []
        raise BadInput(f"there is no device {name!r} here: choose auto or one of {', '.join(there)}") from None
    return device


def widest(device: torch.device) -> torch.dtype:
    """Return the type of long sums: MPS has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def free_memory(device: torch.device) -> int:
    """Return the bytes that can still be taken on a device, or all that there are where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        (line,) = (x for x in Path("/proc/meminfo").read_text().splitlines() if x.startswith("MemAvailable:"))
        return 1024 * int(line.split()[1])
    except (OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def check_memory(needed: int, device: torch.device, what: str) -> None:
    """Refuse what takes more than there is, before it is allocated."""
    if needed > (there := free_memory(device)):
        raise BadInput(
            f"{what} takes {needed / 2**30:,.1f} GiB or more, free on {device.type} are {there / 2**30:,.1f} GiB: make "
            "the network smaller, or use fewer levels"
        )


def computes_bfloat16(device: torch.device) -> bool:
    """Return whether products in bfloat16 are faster than in float32 there, not many times slower as on most CPUs."""
    if device.type != "cpu":
        return True
    has: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # older versions do not tell
    return has.get("architecture") != "x86_64" or has.get("avx512_bf16", False) or has.get("amx_bf16", False)


def carry_channels_last(model: nn.Module) -> None:
    """Let images between convolutions lie channels last, 1.2 times as fast on CPUs; weights stay as they are."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(_channels_last_images)
            # torch 2.13 writes past the end of the gradient of such a layer's images on the CPU if these lie so.
            if module.kernel_size == (1, 1) and module.stride != (1, 1) and module.in_channels // module.groups < 8:
                module.register_forward_pre_hook(_contiguous_images)


def _contiguous_images(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(x.contiguous() for x in inputs)


def _channels_last_images(module: nn.Module, inputs: Any, images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last) if images.ndim == 4 else images


@contextmanager
def bounded_network(most: float = math.inf) -> Iterator[None]:
    """Refuse a network that takes more memory than is free, or `most` parameters, while it is built in the block."""
    seen = number = 0

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal seen, number
        number += 1
        if number > most:
            raise BadInput(f"the network has more than {most} parameters")
        if parameter is not None and not parameter.is_meta:
            seen += 3 * parameter.nbytes
            shape = "x".join(map(str, parameter.shape))
            check_memory(seen, torch.device("cpu"), f"a network with a {type(module).__name__} of {shape}")

    hook = nn.modules.module.register_module_parameter_registration_hook(count)
    try:
        yield
    except BadInput:
        raise
    except (RuntimeError, TypeError, MemoryError, OverflowError) as error:
        if not re.search("allocat|overflow|too large|too big", str(error), re.IGNORECASE):
            raise
        raise BadInput("the network is too large: the memory for one of its parameters is not there") from None
    finally:
        hook.remove()


def background(function: Callable[..., int], *arguments: Any, log: Path, jobs: int) -> BaseProcess:
    """Call a function, found by its name, in a process that Ctrl-C does not reach; `jobs` share this one's threads."""
    threads = max(1, torch.get_num_threads() // jobs)
    process = get_context("spawn").Process(target=_work, args=(function, arguments, log, threads))
    process.start()
    return process


def _work(function: Callable[..., int], arguments: Sequence[Any], log: Path, threads: int) -> None:
    os.setsid()
    with open(log, "ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    torch.set_num_threads(threads)
    sys.exit(function(*arguments))


class Team:
    """This process and its peers; alone, every operation is free."""

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self.rank, self.world_size = rank, world_size

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes and speaks."""
        return self.rank == 0

    def average(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its mean over the processes, in place."""
        if self.world_size > 1:
            for tensor in tensors:
                if tensor.numel():
                    self._reduce(tensor)
                    tensor.div_(self.world_size)

    def total(self, tensor: Tensor) -> Tensor:
        """Return the sum over the processes, in the place of `tensor`."""
        if self.world_size > 1:
            self._reduce(tensor)
        return tensor

    def broadcast(self, tensor: Tensor) -> None:
        """Replace the tensor by the leader's, in place."""
        if self.world_size > 1 and tensor.numel():
            dist.broadcast(tensor, 0)

    def scatter_mean(self, whole: Tensor, own: Tensor) -> None:
        """Replace `own`, this process's part of `whole` (n,), by the mean over processes; the rest is undefined."""
        if dist.get_backend() == "gloo":  # whose own operation moves what an all-reduce does
            parts = torch.empty_like(whole)
            dist.all_to_all_single(parts, whole)
            torch.sum(parts.view(self.world_size, -1), 0, out=own)
        else:
            _operation("reduce_scatter_single", "reduce_scatter_tensor")(own, whole)
        own.div_(self.world_size)

    def gather(self, whole: Tensor, own: Tensor) -> None:
        """Bring the parts of all processes into the vector `whole` (n,), of which `own` is this one's."""
        _operation("all_gather_single", "all_gather_into_tensor")(whole, own)

    def collect(self, part: Tensor, sizes: Sequence[int]) -> Tensor:
        """Collect the parts of all processes (sizes[rank],) in order; with the leader only, others get their own."""
        padded = part.new_zeros(max(sizes))
        padded[: len(part)] = part
        parts = [torch.empty_like(padded) for _ in sizes] if self.leads else None
        dist.gather(padded, parts, 0)
        return part if parts is None else torch.cat([p[:size] for p, size in zip(parts, sizes, strict=True)])

    def any(self, flag: bool, device: torch.device) -> bool:
        """Return whether the flag is set in one of the processes. Waits for the device."""
        return flag if self.world_size == 1 else bool(self.total(torch.tensor(float(flag), device=device)).item())

    def agree(self, value: T) -> T:
        """Return the leader's text or number, in every process."""
        values = [value]
        if self.world_size > 1:
            dist.broadcast_object_list(values)
        return values[0]

    def _reduce(self, tensor: Tensor) -> None:
        dist.all_reduce(tensor)


def _operation(name: str, former: str) -> Callable[..., Any]:
    """Return an operation of torch.distributed by its name, or by that of older versions."""
    return getattr(dist, name, None) or getattr(dist, former)


@contextmanager
def noticing_lost_peers() -> Iterator[None]:
    """End the run with a sentence if an error within the block means that another process is gone or hangs."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error):
            late = "does not answer" if re.search("time(d )?out", str(error), re.IGNORECASE) else "is gone"
            raise RunFailed(f"another process of the run {late}: resume it from its last checkpoint") from None
        raise


def present_team() -> Team:
    """Return this process and its peers as torch.distributed knows them, whoever has started them."""
    if dist.is_available() and dist.is_initialized():
        return Team(dist.get_rank(), dist.get_world_size())
    return Team()


def join_team(device: torch.device) -> tuple[Team, torch.device]:
    """Join the team of torchrun; return it and this process's device. Without torchrun, the team is this process."""
    size = _number_in("WORLD_SIZE", 1, math.inf, 1)
    if size == 1:
        return Team(), device
    needed = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    if missing := [name for name in needed if name not in os.environ]:
        raise BadInput(
            f"WORLD_SIZE = {size} says that there are other processes, but {', '.join(missing)} is not set: "
            "start the run with torchrun, or unset WORLD_SIZE"
        )
    rank, local_rank = _number_in("RANK", 0, size - 1), _number_in("LOCAL_RANK", 0, size - 1)
    port, timeout = _number_in("MASTER_PORT", 0, 65535), _number_in("MRFQUANT_TIMEOUT", 1, 10**6, TIMEOUT)
    if device.type == "cuda":
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    try:
        with _ending_at_once():
            backend, wait = "nccl" if device.type == "cuda" else "gloo", timedelta(seconds=timeout)
            store, *_ = next(dist.rendezvous("env://", timeout=wait))
            store = dist.PrefixStore(_agree_on_names(store, rank, size, timeout), store)
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=wait)
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{port}"
        raise RunFailed(
            f"process {rank} of {size} did not meet the others at {where} within {timeout} seconds "
            f"({str(error).splitlines()[0][:200]}): look whether all were started and reach each other, and start "
            "them again"
        ) from None
    return present_team(), device


def _agree_on_names(store: dist.Store, rank: int, size: int, timeout: float) -> str:
    """Return a text that the processes of this start share, and no others that use the store.

    Where torchrun starts all processes again, the store still has what those before have left: a process that reads
    their addresses waits for ever. So each gives itself a name, and the leader lists them until every process has
    found its own in the list, and said so.
    """
    name, deadline = secrets.token_hex(8), time.monotonic() + timeout
    store.set(f"name {rank}", name)
    while time.monotonic() < deadline:
        if rank == 0:
            names = " ".join(store.get(f"name {peer}").decode() for peer in range(size))
            store.set("names", names)
            if store.check([f"{names} seen by {peer}" for peer in range(1, size)]):
                store.set(f"{names} complete", "")
                return names
        elif name in (names := store.get("names").decode()):
            store.set(f"{names} seen by {rank}", "")
            if store.check([f"{names} complete"]):
                return names
        time.sleep(0.01)
    raise RuntimeError("some did not come")


def _number_in(variable: str, least: float, most: float, default: int | None = None) -> int:
    """Return the whole number in a variable of the environment, which torchrun or the user has set."""
    given = os.environ.get(variable, default)
    try:
        number = int(given or "")
    except ValueError:
        number = None
    if number is None or not least <= number <= most:
        expected = f"a whole number from {least}" + (f" to {most}" if most < math.inf else "")
        raise BadInput(f"the variable {variable} is {given!r}, expected {expected}: unset it, and start with torchrun")
    return number


@contextmanager
def _ending_at_once() -> Iterator[None]:
    """Let SIGTERM end the process within the block: nothing is to be saved yet, and torchrun would wait for it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def exit_process(status: int) -> None:
    """End a process of a team at once: threads of its group would sometimes abort an interpreter that shuts down."""
    if dist.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def synchronise_batch_norm(model: nn.Module, device: torch.device) -> nn.Module:
    """Compute batch norm over the whole batch instead of each process's part of it."""
    if device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.__class__ = _SynchronisedBatchNorm
    return model


class _Sum(torch.autograd.Function):
    """The sum over the processes; its gradient is again one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    backward = forward  # of every process's loss, with respect to this process's x


class _SynchronisedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm over all processes, as torch's SyncBatchNorm, for devices that it does not support."""

    def _check_input_dim(self, x: Tensor) -> None:
        """Accept any number of dimensions after (batch, channel)."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        dims = [0, *range(2, x.dim())]
        shape = [1, -1] + [1] * (x.dim() - 2)
        count = x.numel() // x.shape[1] * dist.get_world_size()
        wide = x.to(torch.promote_types(x.dtype, torch.float32))  # sums of bfloat16 would round
        mean = _Sum.apply(wide.sum(dims)) / count
        centred = wide - mean.view(shape)
        variance = _Sum.apply((centred * centred).sum(dims)) / count
        means, variances, seen = self.running_mean, self.running_var, self.num_batches_tracked
        if self.track_running_stats and means is not None and variances is not None and seen is not None:
            with torch.no_grad():
                seen += 1
                momentum = self.momentum if self.momentum is not None else 1 / float(seen)
                means.lerp_(mean, momentum)
                variances.lerp_(variance * count / (count - 1), momentum)
        y = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.weight is not None:
            y = y * self.weight.view(shape) + self.bias.view(shape)
        return y.to(x.dtype)
