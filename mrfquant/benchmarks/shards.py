"""What every one of several processes keeps and sends when they share the variables out, and when they do not."""

import os
import tempfile
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from mrfquant.benchmarks.scaling import FORMS, MIDDLE, Update
from mrfquant.benchmarks.timing import Options, Row
from mrfquant.errors import RunFailed
from mrfquant.families import Form

PROCESSES = (1, 2, 4)
LEVELS = 4


def measure_shards(options: Options) -> Iterator[tuple[str, Row]]:
    """Bytes a parameter that a process keeps, has at its peak and sends at a step; the largest of the processes."""
    for form, of in FORMS.items():
        for size in PROCESSES:
            for shard in (False, True) if size > 1 else (False,):
                how = ", shared out" if shard else ""
                yield f"d={LEVELS}{of}, {size} processes{how}", together(size, form, shard)


def together(size: int, form: Form, shard: bool) -> Row:
    """Return the figures of so many processes of their own."""
    context = get_context("spawn")
    results: Any = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (size, form, shard, str(Path(folder) / "store"), results)
        workers = [context.Process(target=_work, args=(rank, *arguments)) for rank in range(size)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if any(worker.exitcode for worker in workers):
            raise RunFailed("a process of the measurement has ended early")
        rows = [results.get() for _ in workers]
    return {name: max(row[name] for row in rows) for name in rows[0]}


def _work(rank: int, size: int, form: Form, shard: bool, store: str, results: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    Update(MIDDLE // 10, LEVELS, form, shard)()  # imports and compiles what takes memory itself
    before = _resident("VmRSS")
    update = Update(MIDDLE, LEVELS, form, shard)
    update()
    dist.barrier()
    sent = _sent()
    dist.barrier()
    update()
    dist.barrier()
    sent = _sent() - sent
    dist.barrier()
    peak = _resident("VmHWM") - before
    results.put({"kept": update.kept() / MIDDLE, "peak": peak / MIDDLE, "sent": sent / size / MIDDLE})
    results.close()
    results.join_thread()
    os._exit(0)  # gloo's threads do not always survive the interpreter's end


def _resident(kind: str) -> int:
    """Return the bytes of memory of this process, VmRSS now or VmHWM at most; 0 where the system does not tell."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(kind))
    except (OSError, StopIteration):
        return 0


def _sent() -> int:
    """Return the bytes that processes of this machine have sent each other; 0 where the system does not tell."""
    try:
        lines = Path("/proc/net/dev").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.strip().startswith("lo:"))
    except (OSError, StopIteration):
        return 0
