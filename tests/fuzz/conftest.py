"""Damaged and malicious files for every reader: it answers or refuses in a sentence, soon and in little memory.

An input is decided by the reader's name and its number: what fails is told with both and can be made again.
"""

import random
import resource
import signal
import time
import warnings
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from mrfquant.errors import BadInput, RunFailed

FEW, MANY = 200, 10_000
SECONDS, BYTES = 10, 2**30  # that a reader may take for one input
WORDS = [
    *(b"NaN", b"Infinity", b"-1", b"1e309", b"1e308", b"9" * 30, b"0", b"null", b"true", b"[", b"]", b"{", b"}"),
    *(b"\\ud800", b"\x1b[2J", b"\xff\xfe", b"\x00", b"\r\n", b'"', b"'", b"=", b"@", b"%", b"include ", b"import "),
    *(
        b"[" * 2000,
        b"(" * 300,
        b'{"a":' * 1500,
        b"65536 ",
        b" ",
        b",",
        b":",
        b"..",
        b"/dev/zero",
        b"from __gin__ import x",
    ),
]


def mutated(data, rng):
    """The bytes with one to four changes."""
    data = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at, length = rng.randrange(len(data) + 1), rng.choice((1, 1, 2, 4, 16, 200))
        kind = rng.randrange(6)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at : at + length] = rng.randbytes(length)
        elif kind == 2:
            del data[at : at + length]
        elif kind == 3:
            data[at:at] = rng.choice(WORDS)
        elif kind == 4:
            data[at : at + rng.randrange(4)] = rng.choice(WORDS)
        else:
            source = rng.randrange(len(data) + 1)
            data[at:at] = data[source : source + length]
    return bytes(data) if rng.random() > 0.05 else bytes(data[: rng.randrange(len(data) + 1)])


@contextmanager
def limits():
    """Within the block, what takes more than BYTES of memory fails, and so does `watched` after SECONDS."""
    used = Path("/proc/self/statm")
    former = resource.getrlimit(resource.RLIMIT_AS)
    if used.exists():
        now = int(used.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + BYTES, former[1]))
    handler = signal.signal(signal.SIGALRM, too_long)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, former)


class TooLong(BaseException):
    """A reader did not end in time."""


def too_long(*_):
    raise TooLong(f"took more than {SECONDS} s")


def pytest_generate_tests(metafunc):
    if "count" in metafunc.fixturenames:
        metafunc.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])


@pytest.fixture
def fuzz(count):
    """Feed a reader with `count` changes of the file, made by `change` if it is given; prints how many it has read."""

    def fuzz(name, path, read, change=None):
        whole, taken, slowest = path.read_bytes(), 0, 0.0
        read(path)  # it is one
        with limits(), redirect_stdout(StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for number in range(count):
                rng = random.Random(f"{name} {number}")
                if change is None:
                    path.write_bytes(mutated(whole, rng))
                else:
                    change(rng)
                signal.alarm(SECONDS)
                begun = time.monotonic()
                try:
                    read(path)
                    taken += 1
                except (BadInput, RunFailed) as error:
                    if len(str(error)) > 1000:
                        raise AssertionError(
                            f"reader {name!r}, input {number}: a sentence of {len(str(error))}"
                        ) from error
                except (Exception, TooLong) as error:
                    raise AssertionError(f"reader {name!r}, input {number}: {type(error).__name__}: {error}") from error
                finally:
                    signal.alarm(0)
                slowest = max(slowest, time.monotonic() - begun)
        print(f"{name}: {taken} read, {count - taken} refused, the slowest in {slowest:.1f} s")

    return fuzz
